"""Sums over turns and the turn before. Whole numbers, so that they can be added in any order and
taken back exactly."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter, sub
from typing import cast

from pdctl.analyze.record import Plain, Rich, Row

TOKENS = attrgetter("prompt_tokens")
START = attrgetter("ts")


@dataclass
class Sums:
    """What is known of all pairs of one turn and the next of its conversation.

    Attributes:
        ttl: seconds; a turn that starts later than this after the one before is late.
        follow_ups: how many pairs.
        prompt: prompt tokens of the later turns.
        repeated: of them, those that the turn before had in its prompt.
        late: pairs further apart than the TTL, from start to start.
        answered: pairs whose earlier turn has its answer's length logged.
        answered_prompt, answered_repeated: prompt tokens of their later turns, and those of them
            that decode holds: the turn before with its answer.
        counted: later turns that say how much was reused.
        counted_prompt, reused: their prompt tokens, and those that were pulled from decode.
        hits: later turns that reused something.
    """

    ttl: float
    follow_ups: int = 0
    prompt: int = 0
    repeated: int = 0
    late: int = 0
    answered: int = 0
    answered_prompt: int = 0
    answered_repeated: int = 0
    counted: int = 0
    counted_prompt: int = 0
    reused: int = 0
    hits: int = 0

    def add(self, before: Sequence[Row], rows: Sequence[Row]) -> float:
        """Count pairs; the smallest gap of them in seconds, below zero when out of order."""
        if not rows:
            return 1.0
        tokens = list(map(TOKENS, rows))
        gaps: list[float] = list(map(sub, map(START, rows), map(START, before)))
        self.follow_ups += len(rows)
        self.prompt += sum(tokens)
        self.repeated += sum(map(min, map(TOKENS, before), tokens))
        self.late += sum(map(float(self.ttl).__lt__, gaps))
        if type(rows[0]) is Rich:
            self._add_rich(cast(Sequence[Rich], before), cast(Sequence[Rich], rows))
        return min(gaps)

    def _add_rich(self, before: Sequence[Rich], rows: Sequence[Rich]) -> None:
        for old, new in zip(before, rows, strict=True):
            assert new.prompt_tokens is not None
            assert old.prompt_tokens is not None
            if old.output_tokens is not None:
                held = old.prompt_tokens + old.output_tokens
                self.answered += 1
                self.answered_prompt += new.prompt_tokens
                self.answered_repeated += min(held, new.prompt_tokens)
            if new.reused_tokens is not None:
                self.counted += 1
                self.counted_prompt += new.prompt_tokens
                self.reused += new.reused_tokens
                self.hits += new.reused_tokens > 0

    def merge(self, other: "Sums", sign: int = 1) -> None:
        """Add what was counted elsewhere; with sign -1 take it back."""
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + sign * getattr(other, name))


_NUMBERS = (
    "follow_ups",
    "prompt",
    "repeated",
    "late",
    "answered",
    "answered_prompt",
    "answered_repeated",
    "counted",
    "counted_prompt",
    "reused",
    "hits",
)


def end_of(row: Row) -> float:
    """When the answer ended, seconds since the epoch; its start where the log does not say."""
    if isinstance(row, Plain):
        return row.ts
    assert row.ts is not None
    return row.ts + (row.total_ms or 0.0) / 1000
