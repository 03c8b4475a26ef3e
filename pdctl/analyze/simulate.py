"""Decode's memory as turns come and go: one simulation, for a log and for traffic that is made up.

What happens is what the engine and the router do (FACTS T6, DESIGN 5): a turn takes blocks while it
runs; when it ends its blocks stay, until the next turn of the conversation has pulled them, the
router does not offer them any more, or new work needs the room and the oldest go. Events are
handled in order of time, so nothing is averaged.
"""

import heapq
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf, log
from typing import NamedTuple

from pdctl.engine.ttl import kept_for, safe_router_ttl


class Turn(NamedTuple):
    """A request to simulate; turns come in order of `start`.

    Attributes:
        start, end: seconds.
        conversation: any number or name.
        prompt: tokens of the prompt.
        held: tokens that decode has when it ends: the prompt and the answer.
    """

    start: float
    end: float
    conversation: object
    prompt: int
    held: int


@dataclass(frozen=True)
class Rules:
    """What retention is like.

    Attributes:
        ttl: seconds that blocks stay on decode after a turn.
        usable: seconds after a turn in which the router still offers them.
        block: tokens in a block.
        capacity: blocks of all decode servers together; None: without end.
        threshold: a reuse of fewer tokens is not done.
    """

    ttl: float
    usable: float
    block: int = 16
    capacity: int | None = None
    threshold: int = 64


def rules_of(
    decoder_ttl: float, *, block: int = 16, capacity: int | None = None, threshold: int = 64
) -> Rules:
    """With the router, for decode's TTL: it gives back what it does not offer any more."""
    usable = max(0.0, safe_router_ttl(decoder_ttl))
    return Rules(kept_for(decoder_ttl), usable, block, capacity, threshold)


@dataclass
class Outcome:
    """What came of it. Retained blocks are those of turns that have ended.

    Attributes:
        width: seconds of a bin of `mean` and `peak`.
        since: when the first bin begins.
        mean, peak: retained blocks in each bin.
        running_peak: most blocks of turns that ran at once.
        turns, follow_ups: how many were simulated, and of them with one before.
        hits, late, evicted: follow-ups that reuse; that come too late; whose blocks had to go.
        reused, prompt: tokens pulled, and prompt tokens of follow-ups.
        waited: turns that had no room even with nothing retained.
        open_peak: most conversations that had blocks retained at once.
    """

    width: float
    since: float
    mean: list[float] = field(default_factory=list)
    peak: list[int] = field(default_factory=list)
    running_peak: int = 0
    turns: int = 0
    follow_ups: int = 0
    hits: int = 0
    late: int = 0
    evicted: int = 0
    reused: int = 0
    prompt: int = 0
    waited: int = 0
    open_peak: int = 0

    def average(self, since: float = 0.0) -> float:
        """Retained blocks over time, from some time after the begin on."""
        later = self.mean[int(since / self.width) :]
        return sum(later) / len(later) if later else 0.0

    def most(self, since: float = 0.0) -> int:
        """The most retained blocks, from some time after the begin on."""
        return max(self.peak[int(since / self.width) :], default=0)


class Simulation:
    """Handles events; `run` feeds it turns.

    Args:
        rules: of retention.
        since: when time begins.
        width: seconds of a bin.
        counted: turns that start earlier only fill the memory; they are not counted.
    """

    def __init__(self, rules: Rules, since: float, width: float, *, counted: float = -inf) -> None:
        self.outcome = Outcome(width, since)
        self._counted = counted
        self._rules = rules
        self._kept: dict[object, tuple[float, int, int]] = {}
        # One TTL for all, so the order of ends is the order of deadlines. What was taken since
        # stays in it until it is the oldest: to look for it would take longer.
        self._oldest: deque[tuple[float, object]] = deque()
        self._running: list[tuple[float, int, object, int, int]] = []
        # Conversations that were seen, and why their blocks are gone; "" where they are not.
        self._lost: dict[object, str] = {}
        self._retained = 0
        self._active = 0
        self._now = since
        self._edge = since + width
        self._area = 0.0
        self._most = 0
        self._number = 0

    def run(self, turns: Iterable[Turn], *, until: float | None = None) -> Outcome:
        """Simulate all turns, to a time or until nothing is retained any more."""
        for turn in turns:
            if until is not None and turn.start > until:
                break
            self._finish_until(turn.start)
            self._begin(turn)
        self._finish_until(inf if until is None else until)
        if until is not None:
            self._advance(until)
        self._close_bin(self._now)
        return self.outcome

    def _begin(self, turn: Turn) -> None:
        outcome = self.outcome
        start, end, id, prompt, held = turn
        kept = self._kept.pop(id, None)
        if kept is not None:
            self._advance(start)
            self._retained -= kept[1]
        lost = self._lost.get(id)
        if start >= self._counted:
            outcome.turns += 1
            if lost is not None:
                outcome.follow_ups += 1
                outcome.prompt += prompt
                self._reuse(turn, kept, lost)
        if lost != "":
            self._lost[id] = ""
        blocks = -(-held // self._rules.block)
        self._active += blocks
        if self._active > outcome.running_peak:
            outcome.running_peak = self._active
        if self._rules.capacity is not None:
            self._make_room(start, self._rules.capacity)
        self._number += 1
        heapq.heappush(self._running, (end, self._number, id, blocks, held))

    def _reuse(self, turn: Turn, kept: tuple[float, int, int] | None, lost: str) -> None:
        outcome = self.outcome
        if kept is None:
            outcome.late += lost == "late"
            outcome.evicted += lost == "evicted"
            return
        if turn.start - kept[0] > self._rules.usable:
            outcome.late += 1
            return
        tokens = min(kept[2], turn.prompt - 1)
        if tokens >= self._rules.threshold:
            outcome.hits += 1
            outcome.reused += tokens

    def _make_room(self, now: float, capacity: int) -> None:
        while self._active + self._retained > capacity and self._next_end() < inf:
            self._advance(now)
            self._drop("evicted")
        self.outcome.waited += self._active > capacity

    def _finish_until(self, now: float) -> None:
        """All that ends or expires before then, in order of time."""
        running, ttl = self._running, self._rules.ttl
        while True:
            ends = running[0][0] if running else inf
            expires = self._next_end() + ttl
            if expires <= ends:
                if expires > now or expires == inf:
                    return
                self._advance(expires)
                self._drop("late")
            else:
                if ends > now:
                    return
                self._advance(ends)
                self._end(heapq.heappop(running))

    def _next_end(self) -> float:
        """When the turn ended that was retained first; infinite where none is."""
        oldest, kept = self._oldest, self._kept
        while oldest:
            end, id = oldest[0]
            now = kept.get(id)
            if now is not None and now[0] == end:
                return end
            oldest.popleft()
        return inf

    def _end(self, ended: tuple[float, int, object, int, int]) -> None:
        at, _, id, blocks, held = ended
        kept = self._kept
        self._active -= blocks
        if id in kept:
            self._retained -= kept[id][1]  # two turns at once; the later one takes its place
        kept[id] = (at, blocks, held)
        self._oldest.append((at, id))
        self._retained += blocks
        if self._retained > self._most:
            self._most = self._retained
        if len(kept) > self.outcome.open_peak:
            self.outcome.open_peak = len(kept)

    def _drop(self, why: str) -> None:
        _, id = self._oldest.popleft()
        self._retained -= self._kept.pop(id)[1]
        self._lost[id] = why

    def _advance(self, now: float) -> None:
        while now >= self._edge:
            self._close_bin(self._edge)
            self._edge += self.outcome.width
        self._area += self._retained * (now - self._now)
        self._now = now

    def _close_bin(self, at: float) -> None:
        begin = self._edge - self.outcome.width
        self._area += self._retained * (at - self._now)
        self._now = at
        if at > begin:
            self.outcome.mean.append(self._area / (at - begin))
            self.outcome.peak.append(self._most)
        self._area, self._most = 0.0, self._retained


@dataclass(frozen=True)
class Traffic:
    """Sessions that are made up.

    Attributes:
        sessions: that are open at once.
        gap: mean seconds from the end of a turn to the next.
        spread: 0: every gap is the mean; 1: as if by chance (exponential).
        context: tokens of a turn's prompt and answer together, in the mean.
        answer: tokens of an answer.
        seconds: that an answer takes, prefill included; more than a millisecond.
    """

    sessions: int
    gap: float
    context: int
    answer: int = 300
    seconds: float = 10.0
    spread: float = 1.0


def made_up(traffic: Traffic, horizon: float, *, seed: int = 0) -> Iterator[Turn]:
    """Turns of sessions that are all open at the begin, each somewhere in its gap, until a horizon.

    Contexts are between half and one and a half of the mean.
    """
    chance = random.Random(seed)
    draw, fixed = chance.random, traffic.gap * (1 - traffic.spread)
    mean, seconds = traffic.gap * traffic.spread, traffic.seconds
    context, answer = traffic.context, traffic.answer
    for start, number, again in _agenda(traffic, horizon, draw):
        held = max(2, int(context * (0.5 + draw())))
        end = start + seconds
        yield Turn(start, end, number, max(1, held - answer), held)
        again(end + fixed - log(1 - draw()) * mean, number)


def _agenda(
    traffic: Traffic, horizon: float, draw: Callable[[], float]
) -> Iterator[tuple[float, int, Callable[[float, int], None]]]:
    """Starts of turns in order, with what puts the next one of a session on the agenda.

    A page of it is as long as a turn takes, or less, so that the next one is never on the same
    page: a page is sorted once, which is much faster than a heap of a million sessions.
    """
    page = 0.9 * max(1e-3, min(1.0, traffic.seconds))
    pages: dict[int, list[tuple[float, int]]] = defaultdict(list)

    def put(start: float, number: int) -> None:
        pages[int(start / page)].append((start, number))

    gap, seconds = traffic.gap, traffic.seconds
    fixed, mean = gap * (1 - traffic.spread), gap * traffic.spread
    for number in range(traffic.sessions):
        # As it would be found at any time: some are being answered, the others are in their gap.
        # The fixed part of a gap may be over, the other knows nothing of how long it has been.
        first = draw() * (gap + seconds)
        if first < seconds:
            put(first + fixed - log(1 - draw()) * mean, number)
        else:
            put(draw() * fixed - log(1 - draw()) * mean, number)
    for each in range(int(horizon / page) + 1):
        for start, number in sorted(pages.pop(each, ())):
            if start > horizon:
                return
            yield start, number, put


def simulate(
    turns: Iterable[Turn], rules: Rules, *, until: float, counted: float = -inf
) -> Outcome:
    """Run turns from second 0 on through, with two hundred bins."""
    width = max(until / 200, 1e-9)
    return Simulation(rules, 0.0, width, counted=counted).run(turns, until=until)
