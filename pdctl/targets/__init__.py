"""How to reach a machine: local processes, SSH, EC2."""
