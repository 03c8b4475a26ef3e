"""A machine over SSH. `host.SshHost` is the door; only `connect` and `keys` know paramiko."""
