"""Configuration and facts to ordered steps with reasons. Pure."""
