"""What is written down: a row a turn, a row a cell. One place for who writes and who reads."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self

from pdctl.base.errors import BadAnswerError

Reuse = Literal["off", "on"]
Phase = Literal["first", "later", "all"]
"""First turns of conversations, the turns after those, or both where they are not kept apart."""


@dataclass(frozen=True)
class Leg:
    """What is compared.

    Attributes:
        reuse: whether the router reuses.
        caching: prefill's own prefix cache; None where no engine says.
    """

    reuse: Reuse
    caching: bool | None = None

    @property
    def label(self) -> str:
        """In one word, such as `on` or `on+cache`."""
        tail = "" if self.caching is None else ("+cache" if self.caching else "-cache")
        return self.reuse + tail

    @property
    def words(self) -> str:
        """As the report names it."""
        cache = {None: "", True: ", prefill's prefix cache on", False: ", prefix cache off"}
        return f"reuse {self.reuse}{cache[self.caching]}"


class _Row:
    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """The inverse of `as_dict`; unknown keys are ignored, as a newer pdctl may write them.

        Raises:
            BadAnswerError: a key is missing.
        """
        known = {each.name for each in fields(cls)}  # type: ignore[arg-type]
        try:
            return cls(**{key: item for key, item in value.items() if key in known})
        except TypeError as error:
            raise BadAnswerError(f"this is no row of a bench: {error}") from error

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]


@dataclass(frozen=True)
class TurnRow(_Row):
    """One turn. Times are milliseconds, from just before the request is sent.

    Attributes:
        cell, attempt: which cell, and which run of it, this belongs to.
        conversation, turn: counted from 0 and from 1.
        sent_at: wall clock, seconds since the epoch.
        late_ms: after it was due; 0 in a closed loop.
        error: empty when it was answered to its end.
        ttft_ms: to the first token; tpot_ms: between tokens, in the mean; total_ms: to the end.
        prompt_tokens, output_tokens: counted by the engine.
        reused_tokens: that prefill did not compute, where it pulled at all.
        outcome, reason: the router's words.
        retries: legs that the router ran again, by cause.
    """

    cell: str
    attempt: int
    conversation: int
    turn: int
    sent_at: float
    late_ms: float
    error: str
    ttft_ms: float | None
    tpot_ms: float | None
    total_ms: float
    prompt_tokens: int | None
    output_tokens: int | None
    reused_tokens: int | None
    outcome: str
    reason: str
    retries: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CellRow(_Row):
    """One leg at one length, once.

    Attributes:
        key: of the cell; the last attempt with the same key counts.
        length: tokens that conversations began with; None for a trace.
        repeat: counted from 1.
        complete: False when it was interrupted.
        began_at: wall clock, seconds since the epoch.
        seconds: that it took, without settling.
        counted: growth of the engines' counters, by phase and role (`Counted`).
        turns: by phase, how many were answered.
        pinned_tokens: room of decode's blocks in use, the greatest of what was seen.
        room_tokens: room of all of decode's blocks.
        settled_s: from its end until decode held nothing any more.
    """

    key: str
    attempt: int
    reuse: Reuse
    caching: bool | None
    length: int | None
    repeat: int
    complete: bool
    began_at: float
    seconds: float
    counted: Mapping[str, Mapping[str, Mapping[str, float | None]]]
    turns: Mapping[str, int]
    pinned_tokens: int | None
    room_tokens: int | None
    settled_s: float | None

    @property
    def leg(self) -> Leg:
        """What it is a measurement of."""
        return Leg(self.reuse, self.caching)


def cell_key(leg: Leg, length: int | None, repeat: int) -> str:
    """The name of a cell."""
    return f"{leg.label}/{length if length is not None else 'trace'}/{repeat}"
