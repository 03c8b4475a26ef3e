"""The command line: one command, one file. The only room that prints."""
