"""The YAML file: schema, loading and errors."""
