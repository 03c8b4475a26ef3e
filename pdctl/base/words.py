"""Numbers and names as people write them."""

from collections.abc import Sequence


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`; empty for none."""
    if not names:
        return ""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def one_line(text: str) -> str:
    """Somebody else's text for a line of a log: quoted when it would leave the line."""
    return text if text.isprintable() else repr(text)
