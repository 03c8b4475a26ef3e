"""One run on somebody's hardware that tries everything within a budget, and keeps what it saw."""
