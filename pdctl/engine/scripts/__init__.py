"""Scripts that run on a deployment's hosts, without pdctl: stdlib only."""
