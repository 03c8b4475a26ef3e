"""Reading logs: bytes → lines → signatures → judged events → a summary. Pure but for `read`."""
