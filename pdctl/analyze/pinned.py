"""The kept rows, turn by turn: what a TTL would have reused, and what it pins on decode."""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, inf, isnan
from operator import add, sub
from typing import NamedTuple

from pdctl.analyze.simulate import Turn
from pdctl.analyze.turns import WIDTH, Id

INSTANTS = 400
"""At how many moments of a log the pinned blocks are looked at."""


class Step(NamedTuple):
    """A turn, and when the next of its conversation comes.

    Attributes:
        start, end: seconds; the end is the start where the log does not say.
        then: start of the next turn; infinite after the last.
        prompt, held: tokens of the prompt; and with the answer, where the log says.
        conversation: a number.
        wants: tokens of the next prompt.
        computed, ttft_ms: prompt tokens that were not pulled, and milliseconds; NaN: not logged.
    """

    start: float
    end: float
    then: float
    prompt: int
    held: int
    conversation: int
    wants: int
    reused: float
    ttft_ms: float


def steps_of(kept: Mapping[Id, "array[float]"]) -> list[Step]:
    """All kept turns, each conversation in order of time."""
    return [
        step for number, numbers in enumerate(kept.values()) for step in _steps(number, numbers)
    ]


def _steps(number: int, numbers: "array[float]") -> Iterator[Step]:
    rows = sorted(zip(*(numbers[at::WIDTH] for at in range(WIDTH)), strict=True))
    after: tuple[float, ...] = (inf, 0.0)
    steps = []
    for row in reversed(rows):
        start, prompt, answer, end, reused, ttft = row
        steps.append(
            Step(
                start,
                start if isnan(end) else end,
                after[0],
                int(prompt),
                int(prompt if isnan(answer) else prompt + answer),
                number,
                int(after[1]),
                reused,
                ttft,
            )
        )
        after = row
    return reversed(steps)


def gaps_of(steps: Sequence[Step]) -> Counter[int]:
    """Seconds from the end of a turn to the next, rounded up → how many."""
    return Counter(ceil(max(0.0, step.then - step.end)) for step in steps if step.then < inf)


def turns_of(steps: Sequence[Step]) -> list[Turn]:
    """For a simulation: in order of time."""
    turns = [
        Turn(each.start, each.end, each.conversation, each.prompt, each.held) for each in steps
    ]
    turns.sort(key=lambda turn: turn.start)
    return turns


@dataclass(frozen=True)
class Pinned:
    """Blocks that a TTL pins.

    Attributes:
        at: blocks at each of the instants.
        mean: over the whole time.
        peak: the most at an instant.
    """

    at: list[int]
    mean: float
    peak: int


def pinned(
    steps: Sequence[Step], ttls: Sequence[float], *, block: int, since: float, until: float
) -> list[Pinned]:
    """Replay turns without a bound on memory, for several TTLs at once.

    Blocks are pinned from the end of a turn until the next turn of the conversation or the TTL.

    Args:
        steps: of whole conversations.
        ttls: seconds.
        block: tokens in a block.
        since, until: what is looked at.
    """
    order = sorted(range(len(ttls)), key=lambda number: ttls[number])
    ladder = [ttls[number] for number in order]
    span = max(until - since, 1e-9)
    scale = INSTANTS / span
    begins = _none()
    expired = [_none() for _ in ladder]
    taken = [_none() for _ in ladder]  # by the next turn, with this TTL and all longer ones
    areas = [0.0] * len(ladder)
    shared = [0.0] * len(ladder)
    for step in steps:
        blocks = ceil(step.held / block)
        end, then = step.end, max(step.end, step.then)
        begins[_instant(end, since, scale)] += blocks
        first = bisect_left(ladder, then - end)
        for number in range(first):
            gone = end + ladder[number]
            expired[number][_instant(gone, since, scale)] += blocks
            areas[number] += blocks * max(0.0, min(gone, until) - end)
        if first < len(ladder):
            taken[first][_instant(then, since, scale)] += blocks
            shared[first] += blocks * max(0.0, min(then, until) - end)
    found: list[Pinned] = [Pinned([], 0.0, 0)] * len(ladder)
    for place, number in enumerate(order):
        if place:
            taken[place] = list(map(add, taken[place], taken[place - 1]))
            shared[place] += shared[place - 1]
        gone_at = map(add, expired[place], taken[place])
        at = list(accumulate(map(sub, begins, gone_at)))[: INSTANTS + 1]
        found[number] = Pinned(at, (areas[place] + shared[place]) / span, max(at))
    return found


def _none() -> list[int]:
    return [0] * (INSTANTS + 2)


def _instant(moment: float, since: float, scale: float) -> int:
    """The first instant that is not before."""
    return max(0, min(INSTANTS + 1, ceil((moment - since) * scale)))


def reusable(steps: Sequence[Step], ttls: Sequence[float], *, threshold: int) -> list[int]:
    """Tokens that each TTL would have reused.

    Args:
        steps: of whole conversations.
        ttls: seconds after the end of a turn in which it can be reused.
        threshold: fewer tokens are not pulled.
    """
    gaps = []
    for step in steps:
        tokens = min(step.held, step.wants - 1)
        if step.then < inf and tokens >= threshold:
            gaps.append((max(0.0, step.then - step.end), tokens))
    return [sum(tokens for gap, tokens in gaps if gap <= ttl) for ttl in ttls]
