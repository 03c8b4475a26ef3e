"""What the proofs on real engines are made of, without engines: clients, and an oracle."""
