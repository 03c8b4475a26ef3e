"""The lines of a file of API keys, for the router that checks them and for who shows one to it.

One key a line: `tenant:key`, `tenant:sha256:<hex>` with the key's digest, or either without a
tenant; `#` begins a comment.
"""

from collections.abc import Iterator
from typing import NamedTuple

HASHED = "sha256:"


class KeyLine(NamedTuple):
    """A line with something on it.

    Attributes:
        number: of the line, from 1.
        tenant: empty where it names none.
        key: as it stands there, or `sha256:` and its digest.
    """

    number: int
    tenant: str
    key: str


def key_lines(text: str) -> Iterator[KeyLine]:
    """The lines in order; what is on them is not judged."""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        tenant, colon, key = line.partition(":")
        if not colon or line.startswith(HASHED):
            tenant, key = "", line
        yield KeyLine(number, tenant.strip(), key.strip())
