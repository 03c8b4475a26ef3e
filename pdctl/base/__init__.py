"""What every room may use: errors, exit codes, events, command values."""
