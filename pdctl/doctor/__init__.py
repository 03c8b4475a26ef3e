"""The checks: pure judges over facts."""
