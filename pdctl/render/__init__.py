"""Configuration to the exact argv, environment and files. Pure."""
