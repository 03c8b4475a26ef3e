"""Scripts that run on an engine's host, with its Python and without pdctl: stdlib only."""
