"""Applies a plan: runner, health gates, teardown."""
