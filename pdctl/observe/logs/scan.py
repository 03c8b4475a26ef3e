"""Finding, in a block of bytes, the places where a signature may be. Pure, and fast.

Python finds one short text in a block at some three gigabytes a second, and an alternation of many
at thirty megabytes. So a few hooks are looked for, one after the other: bits of text that are rare
in ordinary lines, one of them in every literal. Where a hook is found, the literals that have it
are compared in place.
"""

import re
from collections.abc import Callable, Iterable, Iterator

from pdctl.observe.signatures.model import Signature

Candidates = tuple[Signature, ...]
Hit = tuple[int, Candidates]
"""Where a literal begins, and the signatures that have it."""

HOOKS = (
    *(b"ail", b"emo", b"KV ", b"r: ", b"NIX", b" ca", b"blo", b"id ", b"ss "),
    *(b"ted", b"ter", b"mlx", b"e in", b"ara", b"sages ", b"MES", b"CON"),
    *(b"TCP f", b"ace left", b"IDIA d"),
)
"""Found as a least costly cover of all literals, on the lines of real logs that have none."""
JOURNAL_BYTES = (b'"MESSAGE":[', b'"MESSAGE": [', b'"MESSAGE" : [')
"""journald writes lines that hold colour as lists of numbers, where no literal can be seen."""


class Scanner:
    """Looks for the literals of a table of signatures.

    Raises:
        ValueError: a literal has no hook, and would never be found.
    """

    def __init__(self, signatures: Iterable[Signature]) -> None:
        by_literal: dict[bytes, list[Signature]] = {}
        for signature in signatures:
            for literal in signature.literals:
                by_literal.setdefault(literal.encode(), []).append(signature)
        self.literals = tuple(by_literal)
        self._candidates = {key: tuple(found) for key, found in by_literal.items()}
        self.passes = tuple(self._passes())

    def hits(self, block: bytes) -> list[Hit]:
        """All of them, in order of place."""
        found: list[Hit] = []
        for look in self.passes:
            look(block, found)
        found.sort(key=_place)
        return found

    def candidates(self, text: str) -> Candidates:
        """Signatures whose literal is in a text that no block showed as it is."""
        return tuple(each for _, hit in self.hits(text.encode()) for each in hit)

    def _passes(self) -> Iterator[Callable[[bytes, list[Hit]], None]]:
        rest = self._candidates | dict.fromkeys(JOURNAL_BYTES, ())
        for hook in HOOKS:
            having = {each: rest.pop(each) for each in list(rest) if hook in each}
            if having:
                yield _pass(hook, having)
        if rest:
            raise ValueError(f"no hook in {', '.join(map(repr, rest))}")


def _place(hit: Hit) -> int:
    return hit[0]


def _pass(hook: bytes, literals: dict[bytes, Candidates]) -> Callable[[bytes, list[Hit]], None]:
    """Looks for one hook, and where it stands for the literals around it, all of it in C."""
    table: list[tuple[int, Candidates]] = []
    parts: list[bytes] = []
    for literal in sorted(literals, key=len, reverse=True):
        place = literal.index(hook)
        behind = literal[place + len(hook) :]
        # What stands before the hook is looked back at; the empty group tells which one it was.
        parts.append(re.escape(behind) + b"(?<=" + re.escape(literal) + b")()")
        table.append((place, literals[literal]))
    finditer = re.compile(re.escape(hook) + b"(?:" + b"|".join(parts) + b")").finditer

    def look(block: bytes, found: list[Hit]) -> None:
        for hit in finditer(block):
            before, candidates = table[hit.lastindex - 1]  # type: ignore[operator]
            found.append((hit.start() - before, candidates))

    return look
