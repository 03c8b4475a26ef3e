"""Workloads, legs and reports."""
