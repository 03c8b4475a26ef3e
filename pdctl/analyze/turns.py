"""Turns that follow one another, found in one pass over rows in the order of the log.

A turn is paired with the row before it of its conversation. Where a row is older than the one
before, the conversation is out of order; it is noted, and all its pairs are made again from its
sorted rows by a second pass (see `ordered`).
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from math import inf, nan
from operator import attrgetter
from typing import Any, cast
from zlib import crc32

import msgspec

from pdctl.analyze.record import Plain, Rich, Row
from pdctl.analyze.sums import Sums, end_of

Id = str | int
_PACK = msgspec.msgpack.encode
_PLAIN = msgspec.msgpack.Decoder(list[Plain])
_RICH = msgspec.msgpack.Decoder(list[Rich])
_ID = attrgetter("conversation_id")
WIDTH = 6
"""Numbers kept of a row: arrival, prompt tokens, output tokens, end, reused tokens, TTFT in ms."""


@dataclass
class Sample:
    """All rows of some conversations: all of them, or of every 2nd, 4th, … by a digest of their
    ids, so that no more than `most` rows are kept.

    Attributes:
        most: rows.
        mask: a conversation is in when the digest has none of these bits.
        rows: how many there are.
        kept: `WIDTH` numbers for each row, in the order of the log; NaN: not logged.
    """

    most: int = 400_000
    mask: int = 0
    rows: int = 0
    kept: dict[Id, "array[float]"] = field(default_factory=dict)

    @property
    def rate(self) -> int:
        """One conversation of how many is kept."""
        return self.mask + 1

    def begin(self, ids: Iterable[Id]) -> None:
        """Conversations that were not seen before."""
        for each in ids:
            if not digest(each) & self.mask and each not in self.kept:
                self.kept[each] = array("d")

    def add(self, rows: Sequence[Row]) -> None:
        """Keep what is of a conversation that is in."""
        kept = self.kept
        if not kept:
            return
        for row in compress(rows, map(kept.__contains__, map(_ID, rows))):
            kept[row.conversation_id].extend(numbers(row))  # type: ignore[index]
            self.rows += 1
        while self.rows > self.most:
            self.thin(self.mask * 2 + 1)

    def thin(self, mask: int) -> None:
        """Let go of what is not in under the mask."""
        self.mask = mask
        self.kept = {id: rows for id, rows in self.kept.items() if not digest(id) & mask}
        self.rows = sum(map(len, self.kept.values())) // WIDTH

    def merge(self, later: "Sample") -> None:
        """Put what was kept of a later part of the log behind."""
        mask = self.mask | later.mask
        for each in (self, later):
            if each.mask != mask:
                each.thin(mask)
        for id, rows in later.kept.items():
            if id in self.kept:
                self.kept[id].extend(rows)
            else:
                self.kept[id] = rows
        self.rows += later.rows
        while self.rows > self.most:
            self.thin(self.mask * 2 + 1)


def digest(id: Id) -> int:
    """The same in every process, unlike `hash`."""
    return crc32(str(id).encode("utf-8", "surrogatepass"))


def numbers(row: Row) -> tuple[float, ...]:
    """A row as it is kept."""
    assert row.ts is not None
    assert row.prompt_tokens is not None
    if isinstance(row, Rich):
        return (
            row.ts,
            row.prompt_tokens,
            _or_nan(row.output_tokens),
            end_of(row) if row.total_ms is not None else nan,
            _or_nan(row.reused_tokens),
            _or_nan(row.ttft_ms),
        )
    return (row.ts, row.prompt_tokens, nan, nan, nan, nan)


def _or_nan(value: float | None) -> float:
    return nan if value is None else value


@dataclass
class Tally:
    """What one pass has found so far.

    Attributes:
        sums: over pairs.
        sample: rows to replay.
        first, last: of each conversation, in the order of the log; what is put together keeps the
            first ones of its first part only, since nobody needs more.
        disordered: conversations that have a row older than the one before it.
        rows: how many there were.
        since, until: the earliest and the latest arrival.
    """

    sums: Sums
    sample: Sample = field(default_factory=Sample)
    first: dict[Id, Row] = field(default_factory=dict)
    last: dict[Id, Row] = field(default_factory=dict)
    disordered: set[Id] = field(default_factory=set)
    rows: int = 0
    since: float = inf
    until: float = -inf

    def __getstate__(self) -> dict[str, object]:
        """For another process: rows as bytes, ten times as fast as pickle."""
        rich = type(next(iter(self.last.values()), None)) is Rich
        packed = [_PACK(list(rows.values())) for rows in (self.first, self.last)]
        return self.__dict__ | {"first": (rich, packed[0]), "last": (rich, packed[1])}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        for name in ("first", "last"):
            rich, packed = state[name]
            rows = (_RICH if rich else _PLAIN).decode(packed)
            setattr(self, name, {row.conversation_id: row for row in rows})

    def add(self, rows: list[Row]) -> None:
        """Count rows, in the order of the log."""
        if not rows:
            return
        self.rows += len(rows)
        self._see((rows[0].ts, rows[-1].ts))
        if type(rows[0]) is Plain:
            self._add_plain(cast(list[Plain], rows))
        else:
            self._add_rich(rows)
        self.sample.add(rows)

    def _add_plain(self, rows: list[Plain]) -> None:
        """Millions of rows go through this loop: what is not needed for each is done after it."""
        last, fresh, ttl = self.last, [], self.sums.ttl
        get = last.get
        prompt = repeated = late = 0
        for row in rows:
            id = row.conversation_id
            old = get(id)
            last[id] = row
            if old is None:
                fresh.append(row)
                continue
            tokens, before = row.prompt_tokens, old.prompt_tokens
            prompt += tokens
            repeated += before if before < tokens else tokens  # type: ignore[operator]
            gap = row.ts - old.ts  # type: ignore[operator]
            if gap > ttl:
                late += 1
            elif gap <= 0 and (gap < 0 or tokens < before):  # type: ignore[operator]
                self._found_disorder(row)
        sums = self.sums
        sums.follow_ups += len(rows) - len(fresh)
        sums.prompt += prompt
        sums.repeated += repeated
        sums.late += late
        self._meet(fresh)

    def _add_rich(self, rows: list[Row]) -> None:
        last, fresh = self.last, []
        pairs: list[tuple[Row, Row]] = []
        for row in rows:
            id = row.conversation_id
            old = last.get(id)  # type: ignore[arg-type]
            last[id] = row  # type: ignore[index]
            if old is None:
                fresh.append(row)
            else:
                pairs.append((old, row))
        self._pair([old for old, _ in pairs], [new for _, new in pairs])
        self._meet(fresh)

    def _meet(self, rows: Sequence[Row]) -> None:
        """The first rows of conversations."""
        new = {row.conversation_id: row for row in rows}
        self.first.update(new)  # type: ignore[arg-type]
        self.sample.begin(new)  # type: ignore[arg-type]

    def _found_disorder(self, row: Row) -> None:
        self.disordered.add(row.conversation_id)  # type: ignore[arg-type]
        self._see((row.ts,))

    def _see(self, times: Iterable[float | None]) -> None:
        for ts in times:
            assert ts is not None
            self.since = min(self.since, ts)
            self.until = max(self.until, ts)

    def _pair(self, before: Sequence[Row], rows: Sequence[Row]) -> None:
        if self.sums.add(before, rows) <= 0:
            for old, new in zip(before, rows, strict=True):
                if _key(new) < _key(old):
                    self._found_disorder(new)

    def merge(self, later: "Tally") -> None:
        """Add what was found in a later part of the log."""
        joined = [(old, new) for id, new in later.first.items() if (old := self.last.get(id))]
        self.sums.merge(later.sums)
        self._pair([old for old, _ in joined], [new for _, new in joined])
        self.last.update(later.last)
        self.disordered |= later.disordered
        self.sample.merge(later.sample)
        self.rows += later.rows
        if later.rows:
            self._see((later.since, later.until))

    def reorder(self, rows: dict[Id, list[Row]]) -> None:
        """Correct the sums for conversations that were out of order.

        Args:
            rows: all rows of each, in the order of the log.
        """
        wrong, right = Sums(self.sums.ttl), Sums(self.sums.ttl)
        for each in rows.values():
            wrong.add(each[:-1], each[1:])
            self._see(row.ts for row in each)
            each.sort(key=_key)
            right.add(each[:-1], each[1:])
        self.sums.merge(wrong, -1)
        self.sums.merge(right)


def _key(row: Row) -> tuple[float, int]:
    """The order of turns: by time, and by length where that is equal."""
    assert row.ts is not None
    assert row.prompt_tokens is not None
    return row.ts, row.prompt_tokens
