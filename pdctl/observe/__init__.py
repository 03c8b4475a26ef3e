"""Typed facts read from what runs, and the two-turn proof."""
