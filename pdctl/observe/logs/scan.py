"""Finding, in a block of bytes, the places where a signature may be. Pure, and fast.

Python looks for one text in a block at several gigabytes a second, and for an alternation of many
at some thirty megabytes. So each text is looked for by itself; those that begin alike share one
pass, whose common beginning the regular expression engine looks for in the same fast way.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from pdctl.observe.signatures.model import Signature

Candidates = tuple[Signature, ...]
Hit = tuple[int, Candidates]
"""Where a literal begins, and the signatures that have it."""

ALIKE = (b"KV", b"NIXL", b"Nixl", b"cache", b"emote ", b"ailed to ", b"ocal ", b"EFA ", b"ibfabric")
"""Beginnings that several literals share."""
JOURNAL_BYTES = (b'"MESSAGE":[', b'"MESSAGE" : [')
"""journald writes lines that hold colour as lists of numbers, where no literal can be seen."""


class Scanner:
    """Looks for the literals of a table of signatures."""

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
            found.extend(look(block))
        found.sort(key=_place)
        return found

    def candidates(self, text: bytes) -> Candidates:
        """Signatures whose literal is in a text that no block showed as it is."""
        return tuple(
            signature
            for literal, signatures in self._candidates.items()
            if literal in text
            for signature in signatures
        )

    def _passes(self) -> Iterator[Callable[[bytes], Iterable[Hit]]]:
        rest = dict(self._candidates)
        for beginning in ALIKE:
            alike = [literal for literal in rest if literal.startswith(beginning)]
            if len(alike) > 1:
                yield _many({literal: rest.pop(literal) for literal in alike})
        for literal, candidates in rest.items():
            yield _one(literal, candidates)
        for literal in JOURNAL_BYTES:
            yield _one(literal, ())


def _place(hit: Hit) -> int:
    return hit[0]


def _one(literal: bytes, candidates: Candidates) -> Callable[[bytes], Iterable[Hit]]:
    def look(block: bytes) -> Iterable[Hit]:
        place = block.find(literal)
        if place < 0:
            return ()
        found = []
        while place >= 0:
            found.append((place, candidates))
            place = block.find(literal, place + len(literal))
        return found

    return look


def _many(alike: dict[bytes, Candidates]) -> Callable[[bytes], Iterable[Hit]]:
    # The longest first: `remote engine at ` before `remote engine `.
    ordered: Sequence[bytes] = sorted(alike, key=len, reverse=True)
    finditer = re.compile(b"|".join(re.escape(each) for each in ordered)).finditer
    # A literal that begins with another one is also a hit of that.
    table = {
        literal: tuple(
            dict.fromkeys(
                signature
                for other in ordered
                if literal.startswith(other)
                for signature in alike[other]
            )
        )
        for literal in ordered
    }

    def look(block: bytes) -> Iterable[Hit]:
        return [(found.start(), table[found.group()]) for found in finditer(block)]

    return look
