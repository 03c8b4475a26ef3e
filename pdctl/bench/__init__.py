"""Measuring reuse off against on, on the user's own pair, and the report of it."""
