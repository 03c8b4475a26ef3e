"""The answer in two sentences: do it, do not, or measure first, and why."""

from dataclasses import dataclass

from pdctl.base.durations import format_duration

LITTLE = 0.2
"""A share of prompts below which there is nothing to win."""
MUCH = 0.4
"""A share of prompts that is worth two more settings and a router."""
FEW = 200
"""Follow-up turns below which a log says little."""
SHORT_MS = 30.0
"""Saved for each turn at best: below this nobody notices."""


@dataclass(frozen=True)
class Grounds:
    """What a verdict stands on.

    Attributes:
        follow_ups: how many there were.
        repeated: share of their prompts that was there before.
        longest: share that the longest TTL would have reused.
        ttl: the recommended TTL in seconds; None: there is none.
        reused: share that it reuses with the room that decode has.
        room_known: whether that room is known.
        none_fits: every TTL would take more than there is.
        saved_ms: for each follow-up turn, at least and at most.
        ratios: cold over reused time to first token, at least and at most.
    """

    follow_ups: int
    repeated: float
    longest: float
    ttl: float | None
    reused: float
    room_known: bool
    none_fits: bool
    saved_ms: tuple[float, float] | None
    ratios: tuple[float, float] | None


@dataclass(frozen=True)
class Verdict:
    """What to do.

    Attributes:
        decision: `do`, `do not` or `measure first`.
        text: two sentences.
    """

    decision: str
    text: str


def judge(grounds: Grounds) -> Verdict:
    """Decide; the first ground that holds is the one that is named."""
    return _no(grounds) or _unsure(grounds) or _yes(grounds)


def _no(grounds: Grounds) -> Verdict | None:
    if grounds.follow_ups < FEW:
        return None
    if grounds.repeated < LITTLE:
        return Verdict(
            "do not",
            f"Do not disaggregate for this: only {grounds.repeated:.0%} of the prompts of "
            "follow-up turns was there in the turn before. Prefix caching on one node is the "
            "simpler answer.",
        )
    if grounds.longest < LITTLE:
        return Verdict(
            "do not",
            f"Do not reuse across nodes: {grounds.repeated:.0%} of the prompts is repeated, but "
            f"even decode's longest TTL would catch only {grounds.longest:.0%}, since turns come "
            "too late. A cache in host memory or on disk keeps KV for hours; decode's memory does "
            "not.",
        )
    if grounds.saved_ms is not None and grounds.saved_ms[1] < SHORT_MS:
        return Verdict(
            "do not",
            f"Do not bother: prompts are so short that a turn would save {grounds.saved_ms[1]:.0f} "
            "ms at best. Prefix caching on one node is the simpler answer.",
        )
    return None


def _unsure(grounds: Grounds) -> Verdict | None:
    if grounds.follow_ups < FEW:
        turns = f"{grounds.follow_ups} follow-up turn" + "s" * (grounds.follow_ups != 1)
        return Verdict(
            "measure first",
            f"Measure first: the log has only {turns}, too few to say anything. Log "
            "`conversation_id`, `ts` and `prompt_tokens` for a day of ordinary traffic.",
        )
    if grounds.none_fits:
        return Verdict(
            "measure first",
            f"Measure first: {grounds.repeated:.0%} of the prompts is repeated, but what every TTL "
            "would pin is more than decode has room for. Add decode servers (`pdctl size`); with "
            f"those there are, {grounds.reused:.0%} would be reused before blocks make room.",
        )
    if grounds.reused < MUCH:
        return Verdict(
            "measure first",
            f"Measure first: a TTL of {_ttl(grounds)} would reuse {grounds.reused:.0%} of the "
            f"prompts of follow-up turns, which may or may not be worth it. {_range(grounds)}",
        )
    return None


def _yes(grounds: Grounds) -> Verdict:
    unknown = "" if grounds.room_known else " if decode has the room"
    return Verdict(
        "do",
        f"Do it{unknown}: a TTL of {_ttl(grounds)} would reuse {grounds.reused:.0%} of the prompts "
        f"of follow-up turns. {_range(grounds)}",
    )


def _range(grounds: Grounds) -> str:
    if grounds.ratios is None:
        return "How much faster that is has to be measured."
    low, high = grounds.ratios
    return (
        f"Expect the first token of such turns {low:.1f} times as fast where prefill's own prefix "
        f"cache is healthy, and up to {high:.1f} times where it holds nothing of them."
    )


def _ttl(grounds: Grounds) -> str:
    return format_duration(grounds.ttl or 0.0)
