"""The rows of the table of checks, one file for each thing that is looked at."""
