"""Numbers and names as people write them."""

from collections.abc import Sequence


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`; empty for none."""
    if not names:
        return ""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
