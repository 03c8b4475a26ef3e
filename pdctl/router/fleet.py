"""What the router knows of its engines and of each prefill × decode pair. Pure state.

Health says whether an engine gets requests; a pair's verdict says whether handles go between
them. Both change by what the shell reports, never by a clock of their own.
"""

import random
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pdctl.base.explain import PAIR_NOT_PROVEN
from pdctl.router.prefixes import PrefixMap

EngineRole = Literal["prefill", "decode"]
Verdict = Literal["unknown", "ok", "no_reuse"]

# From this 0.x on, a refused request notifies the other side (read in 0.32.0 and 0.33.0).
_REFUSAL_NOTIFIES = 32

_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 60.0
# A trial whose outcome nobody tells (its client left) keeps others away no longer than this.
_TRIAL_S = 120.0

# Doubt of a prefill server that has no decode server to work with.
_ALONE = 3
_COMPUTED_AGAIN = 3
# A conversation moves only to where the queue is shorter by this many times the tokens it would
# have to bring along, by this share of all the room, and at most half as long.
_LOYALTY = 2
_WORTH_MOVING = 0.1
# Who waits for room stands for this share of it: then there is none.
_WAITING = 0.05
# Room of a decode server that does not say how much it has.
_USUAL_ROOM = 1_000_000


@dataclass
class Engine:
    """One server.

    Attributes:
        block_size: tokens in a KV block, None until read from its metrics.
        capacity_tokens: tokens that its KV blocks can hold, over all data-parallel ranks.
        kv_usage: share of its KV blocks in use, 0 to 1, of the fullest rank.
        waiting: requests that wait for blocks or a place there.
        others: tokens held there by what this router does not know of.
        start: what changes when it restarts, None while unknown.
        renders: it gives the ids of a chat as its own rendering makes them.
        outstanding: tokens of the requests that are there now.
        retained: tokens of the handles kept on it.
        silent: looks in a row at which it did not answer in time.
        cell: engines of different cells never work together.
        generation: the same for engines that were replaced while others are still to be.
        drained: why it gets nothing new; empty when it does.
        turns: requests that need it until they are further.
        outages: how often it went down. What it had before, it has no more.
        salt: goes into the `cache_salt` of all it is asked, since blocks of other tokens may be in
            its prefix cache; empty where they are not.
    """

    url: str
    role: EngineRole
    healthy: bool = False
    why: str = "not asked yet"
    block_size: int | None = None
    capacity_tokens: int | None = None
    kv_usage: float | None = None
    waiting: int | None = None
    others: int = 0
    start: str | None = None
    version: str | None = None
    renders: bool = False
    outstanding: int = 0
    retained: int = 0
    silent: int = 0
    cell: str = ""
    generation: str = ""
    drained: str = ""
    turns: int = 0
    outages: int = 0
    salt: str = ""

    @property
    def serves(self) -> bool:
        """Whether new requests may go there."""
        return self.healthy and not self.drained


@dataclass
class Pause:
    """A breaker that is open, or half-open while one request tries.

    Attributes:
        until: until when no handle is offered; router clock.
        length: seconds that it was, or will be, closed for.
        trying: one request tries whether the pair works again.
    """

    until: float
    length: float
    trying: bool = False


@dataclass
class Pair:
    """One prefill server with one decode server.

    Attributes:
        moves_kv: a probe saw prefill's blocks arrive on decode.
        verdict: whether decode's blocks can be pulled back, by the probe.
        why: the reason for a verdict that is not ok.
        final: only a restart of an engine can change the verdict.
        again_at: when it may be probed once more; the watcher's clock.
        pauses: breaker by decode engine start.
        lost: a request's blocks did not reach decode, or one of the two was silent, and no probe
            saw any arrive since.
    """

    prefill: str
    decode: str
    moves_kv: bool = False
    verdict: Verdict = "unknown"
    why: str = "not probed yet"
    final: bool = False
    again_at: float | None = None
    pauses: dict[str, Pause] = field(default_factory=dict)
    lost: bool = False

    @property
    def doubt(self) -> int:
        """Whether prefill's blocks reach decode: 0 for yes, 1 for unknown, 2 for no."""
        if self.moves_kv:
            return 0
        return 1 if self.verdict == "unknown" else 2


class Fleet:
    """All engines and pairs of one router.

    Attributes:
        decode_starts: by decode server, what its handles say of its present start.
        ended_starts: those that another one has followed.
        prefixes: what each prefill server may have in its prefix cache.
    """

    def __init__(
        self,
        prefill: Iterable[str],
        decode: Iterable[str],
        cells: Mapping[str, str] | None = None,
    ) -> None:
        named = cells or {}
        self.prefill = {url: Engine(url, "prefill", cell=named.get(url, "")) for url in prefill}
        self.decode = {url: Engine(url, "decode", cell=named.get(url, "")) for url in decode}
        self.pairs = {(p, d): Pair(p, d) for p in self.prefill for d in self.decode}
        self.decode_starts: dict[str, str] = {}
        self.ended_starts: set[str] = set()
        self.prefixes = PrefixMap()
        self._random = random.Random()

    def engines(self) -> list[Engine]:
        """Prefill servers, then decode servers."""
        return [*self.prefill.values(), *self.decode.values()]

    def together(self, prefill: str, decode: str) -> bool:
        """Whether blocks may go between the two at all: one cell, and no two versions of vLLM."""
        p, d = self.prefill.get(prefill), self.decode.get(decode)
        if p is None or d is None or (p.cell, p.generation) != (d.cell, d.generation):
            return False
        return None in (p.version, d.version) or p.version == d.version

    def drain(self, url: str, why: str) -> None:
        """Nothing new goes to an engine, until `why` is empty again."""
        self.engine(url).drained = why

    def move(self, url: str, generation: str) -> None:
        """An engine belongs to another generation now: what was known of its pairs is void.

        Not when generations end, with an empty one: that changes nothing in an engine, and a pair
        that has to be proven again reuses nothing until then.
        """
        engine = self.engine(url)
        if engine.generation != generation:
            engine.generation = generation
            if generation:
                self._reset_pairs(url)

    def engine_up(self, url: str, *, start: str | None, block_size: int | None) -> None:
        """An engine answered. What was known of another start of it is void."""
        engine = self.engine(url)
        restarted = None not in (start, engine.start) and start != engine.start
        fresh = not engine.healthy or restarted
        engine.healthy, engine.why = True, ""
        engine.start = start or engine.start
        if block_size is not None:
            engine.block_size = block_size
        if restarted:
            engine.salt = ""
        if fresh:
            self._reset_pairs(url)
            self.prefixes.forget(url)

    def engine_down(self, url: str, why: str) -> bool:
        """An engine did not answer. True when it was healthy before."""
        engine = self.engine(url)
        was = engine.healthy
        engine.healthy, engine.why = False, why
        if was:
            engine.outages += 1
            self._reset_pairs(url)
        return was

    def only_prefill(self) -> str | None:
        """The one healthy prefill server, where there is nothing to choose; None else."""
        healthy = [engine.url for engine in self.prefill.values() if engine.healthy]
        return healthy[0] if len(healthy) == 1 else None

    def choose_prefill(
        self,
        *,
        tokens: int = 0,
        known: Mapping[str, int] | None = None,
        decode: str | None = None,
        avoid: Iterable[str] = (),
    ) -> str | None:
        """The prefill server with the least to do for a prompt, and before it.

        Args:
            tokens: length of the prompt.
            known: tokens of its beginning that each server's prefix cache may have.
            decode: with which it has to work; None for any.
            avoid: servers that shall not be chosen.
        """
        candidates = _candidates(self.prefill, avoid)
        if decode is not None:
            candidates = [e for e in candidates if self.together(e.url, decode)]
        working = _least_doubtful(candidates, self._best_doubt)
        had = known or {}

        def cost(engine: Engine) -> float:
            uncached = tokens - min(tokens, had.get(engine.url, 0))
            return engine.outstanding + _COMPUTED_AGAIN * uncached

        return self._pick(working, cost)

    def choose_decode(
        self,
        *,
        hint: str | None = None,
        held: int = 0,
        tokens: int = 0,
        prefill: str | None = None,
        avoid: Iterable[str] = (),
    ) -> str | None:
        """The conversation's own decode server unless it is clearly overloaded, else the freest.

        Args:
            hint: the server that has the conversation.
            held: tokens of the conversation that it holds.
            tokens: length of the prompt.
            prefill: whose blocks it shall get; where those were not seen to arrive is chosen
                only when there is no other.
            avoid: servers that shall not be chosen.
        """
        candidates = _candidates(self.decode, avoid)
        if prefill is not None:
            candidates = [e for e in candidates if self.together(prefill, e.url)]
            candidates = _least_doubtful(candidates, lambda url: self.pairs[(prefill, url)].doubt)
        own = next((e for e in candidates if e.url == hint), None)
        if own is not None:
            least = min(_queue(e, tokens) for e in candidates)
            worth = max(_LOYALTY * max(held, tokens), _WORTH_MOVING * _capacity(own), least)
            if _queue(own, tokens) - least <= worth:
                return own.url
        return self._pick(candidates, lambda e: _load(e, tokens))

    def _pick(self, candidates: Collection[Engine], cost: Callable[[Engine], float]) -> str | None:
        """The cheapest; any of equals, so that each gets its share whoever else asks."""
        if not candidates:
            return None
        costs = [cost(engine) for engine in candidates]
        least = min(costs)
        equal = [e for e, its in zip(candidates, costs, strict=True) if its == least]
        return self._random.choice(equal).url

    def _best_doubt(self, prefill: str) -> int:
        partners = (
            e.url for e in self.decode.values() if e.serves and self.together(prefill, e.url)
        )
        return min((self.pairs[(prefill, url)].doubt for url in partners), default=_ALONE)

    def reuse_refused(self, prefill: str, decode: str, start: str, now: float) -> str | None:
        """Why no handle of this decode start may go to this prefill server; None if it may."""
        pair = self.pairs.get((prefill, decode))
        if pair is None:
            return "unknown_decode"
        if not self.together(prefill, decode):
            return "another_cell"
        if self.decode[decode].drained:
            return "drained"
        if pair.verdict != "ok":
            return PAIR_NOT_PROVEN
        pause = pair.pauses.get(start)
        return "pair_paused" if pause is not None and now < pause.until else None

    def reuse_starts(self, prefill: str, decode: str, start: str, now: float) -> str | None:
        """`reuse_refused`, said just before a handle is claimed.

        After a pause the first who asks is the trial: all others are refused until
        `reuse_worked`, `reuse_failed` or `reuse_dropped` tells how it went.
        """
        refused = self.reuse_refused(prefill, decode, start, now)
        pause = None if refused else self.pairs[(prefill, decode)].pauses.get(start)
        if pause is not None:
            pause.until, pause.trying = now + _TRIAL_S, True
        return refused

    def reuse_dropped(self, prefill: str, decode: str, start: str, now: float) -> None:
        """What `reuse_starts` allowed did not take place: the next request may try."""
        pause = self.pairs[(prefill, decode)].pauses.get(start)
        if pause is not None and pause.trying:
            pause.until, pause.trying = now, False

    def reuse_failed(self, prefill: str, decode: str, start: str, now: float) -> None:
        """A pull failed: pause this pair, twice as long each time."""
        pauses = self.pairs[(prefill, decode)].pauses
        pause = pauses.get(start)
        if pause is None:
            pauses[start] = Pause(now + _FIRST_PAUSE_S, _FIRST_PAUSE_S)
        elif pause.trying or now >= pause.until:
            length = min(2 * pause.length, _LONGEST_PAUSE_S)
            pauses[start] = Pause(now + length, length)
        # Else it began before the pause, and says nothing new.

    def reuse_worked(self, prefill: str, decode: str, start: str, now: float) -> None:
        """A pull worked: the next failure starts with the short pause again."""
        pauses = self.pairs[(prefill, decode)].pauses
        pause = pauses.get(start)
        # One that began before the pause does not end it; the trial does.
        if pause is not None and (pause.trying or now >= pause.until):
            del pauses[start]

    def blocks_lost(self, prefill: str, decode: str) -> None:
        """Prefill's blocks did not reach decode, twice: no more until a probe sees some."""
        pair = self.pairs.get((prefill, decode))
        if pair is not None:
            _doubt(pair, "decode did not get a request's blocks")

    def silent(self, url: str) -> None:
        """An engine let a request wait beyond its limit, and may well say that it is healthy.

        No more until a probe has gone through it: else each request waits for as long.
        """
        for pair in self.pairs.values():
            if url in (pair.prefill, pair.decode):
                _doubt(pair, f"{self.engine(url).role} let a request wait beyond its limit")

    def blocks_arrive(self, prefill: str) -> bool:
        """Whether there is a healthy decode server that may get this one's blocks."""
        pairs = [self.pairs[(prefill, e.url)] for e in self.decode.values() if e.healthy]
        return not pairs or any(pair.moves_kv or not pair.lost for pair in pairs)

    def doubt_cache(self, url: str) -> None:
        """Blocks of other tokens may be in an engine's prefix cache: nobody finds them there."""
        self.engine(url).salt = f"-pdctl-{self._random.getrandbits(64):016x}"
        self.prefixes.forget(url)

    def quarantine(self, prefill: str, decode: str, why: str) -> None:
        """No reuse between these two until a restart: answers were wrong, which no probe sees."""
        # Both keep what was pulled, and what was computed from it.
        self.doubt_cache(prefill)
        self.doubt_cache(decode)
        pair = self.pairs[(prefill, decode)]
        pair.verdict, pair.why, pair.final = "no_reuse", why, True

    def releases_by_refusal(self, prefill: str, decode: str) -> bool:
        """Whether a request that prefill refuses frees a handle: it must know decode already.

        It does from the probe on. With the flag off on prefill, this is the only way there is.
        """
        pair = self.pairs.get((prefill, decode))
        version = self.prefill[prefill].version or ""
        known = re.match(r"0\.(\d+)", version)
        recent = known is not None and int(known.group(1)) >= _REFUSAL_NOTIFIES
        met = pair is not None and pair.verdict != "unknown" and pair.moves_kv
        return recent and met and self.together(prefill, decode)

    def ready(self) -> bool:
        """True when some pair of healthy engines was seen to move KV."""
        return any(
            pair.moves_kv
            and self.prefill[pair.prefill].serves
            and self.decode[pair.decode].serves
            and self.together(pair.prefill, pair.decode)
            for pair in self.pairs.values()
        )

    def engine(self, url: str) -> Engine:
        """One of them.

        Raises:
            KeyError: there is no such engine.
        """
        return self.prefill[url] if url in self.prefill else self.decode[url]

    def _reset_pairs(self, url: str) -> None:
        for key, pair in self.pairs.items():
            if url in key:
                self.pairs[key] = Pair(pair.prefill, pair.decode)


def _candidates(engines: Mapping[str, Engine], avoid: Iterable[str]) -> list[Engine]:
    shunned = set(avoid)
    return [e for e in engines.values() if e.serves and e.url not in shunned]


def _least_doubtful(engines: list[Engine], doubt: Callable[[str], int]) -> list[Engine]:
    doubts = [doubt(engine.url) for engine in engines]
    return [e for e, its in zip(engines, doubts, strict=True) if its == min(doubts)]


def _capacity(engine: Engine) -> int:
    return engine.capacity_tokens or _USUAL_ROOM


def _queue(engine: Engine, tokens: int) -> float:
    """Tokens before a new request: those of this router, and of others as far as they wait."""
    return engine.outstanding + (engine.waiting or 0) * max(tokens, _WAITING * _capacity(engine))


def _load(engine: Engine, tokens: int) -> float:
    """Work for the room there is: what is retained takes room, but no time."""
    capacity = _capacity(engine)
    # Some room can always be made, by letting go of what is retained.
    room = max(capacity - engine.retained, capacity / 20)
    return (_queue(engine, tokens) + max(tokens, 1)) / room


def _doubt(pair: Pair, why: str) -> None:
    """To be probed at once; what no probe changes stays, since nothing would end this."""
    if not pair.final:
        pair.moves_kv, pair.lost, pair.again_at = False, True, None
        pair.verdict, pair.why = "no_reuse", why
