"""Write an installed distribution's own requirements to a file for `pip install -r`.

Usage: python -I requirements.py DISTRIBUTION OUT [NAME_TO_LEAVE_OUT ...]
"""

import email.parser
import importlib.metadata
import os
import re
import sys
from collections.abc import Collection, Sequence


def requirements_of(metadata: str, without: Collection[str] = ()) -> list[str]:
    """Give the unconditional `Requires-Dist` of a METADATA text, as requirement lines.

    Environment markers stay as they are: pip judges them where they apply. What belongs to an
    extra is left out, and so is every (normalised) name in `without`.
    """
    lines = email.parser.HeaderParser().parsestr(metadata).get_all("Requires-Dist") or []
    return [line for line in lines if not _of_extra(line) and _name(line) not in without]


def _of_extra(line: str) -> bool:
    return re.search(r"\bextra\s*==", line.partition(";")[2]) is not None


def _name(line: str) -> str:
    match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line.strip())
    return re.sub(r"[-_.]+", "-", match.group() if match else "").lower()


def main(arguments: Sequence[str]) -> None:
    """Write the file whole or not at all."""
    distribution, out, *without = arguments
    metadata = importlib.metadata.distribution(distribution).read_text("METADATA") or ""
    lines = requirements_of(metadata, frozenset(without))
    if not lines:
        sys.exit(f"{distribution} lists no requirements: its METADATA is damaged")
    with open(out + ".part", "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    os.replace(out + ".part", out)


if __name__ == "__main__":
    main(sys.argv[1:])
