"""What pdctl remembers of a deployment: state file and lock."""
