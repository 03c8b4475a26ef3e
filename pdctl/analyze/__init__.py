"""Request logs to advice."""
