"""Scripts that run on the deployment's hosts, without pdctl: stdlib only, from Python 3.9 on."""
