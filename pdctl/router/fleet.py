"""What the router knows of its engines and of each prefill × decode pair. Pure state.

Health says whether an engine gets requests; a pair's verdict says whether handles go between
them. Both change by what the shell reports, never by a clock of their own.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

EngineRole = Literal["prefill", "decode"]
Verdict = Literal["unknown", "ok", "no_reuse"]

# From this 0.x on, a refused request notifies the other side (read in 0.32.0 and 0.33.0).
_REFUSAL_NOTIFIES = 32

_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 60.0


@dataclass
class Engine:
    """One server.

    Attributes:
        block_size: tokens in a KV block, None until read from its metrics.
        start: what changes when it restarts, None while unknown.
        outstanding: prompt tokens of the requests that are there now.
        silent: looks in a row at which it did not answer in time.
    """

    url: str
    role: EngineRole
    healthy: bool = False
    why: str = "not asked yet"
    block_size: int | None = None
    start: str | None = None
    version: str | None = None
    outstanding: int = 0
    silent: int = 0


@dataclass
class Pair:
    """One prefill server with one decode server.

    Attributes:
        moves_kv: a probe saw prefill's blocks arrive on decode.
        verdict: whether decode's blocks can be pulled back, by the probe.
        why: the reason for a verdict that is not ok.
        final: only a restart of an engine can change the verdict.
        pauses: breaker by decode engine start: until when no handle is offered, and how long
            the next pause will be.
    """

    prefill: str
    decode: str
    moves_kv: bool = False
    verdict: Verdict = "unknown"
    why: str = "not probed yet"
    final: bool = False
    pauses: dict[str, tuple[float, float]] = field(default_factory=dict)


class Fleet:
    """All engines and pairs of one router."""

    def __init__(self, prefill: Iterable[str], decode: Iterable[str]) -> None:
        self.prefill = {url: Engine(url, "prefill") for url in prefill}
        self.decode = {url: Engine(url, "decode") for url in decode}
        self.pairs = {(p, d): Pair(p, d) for p in self.prefill for d in self.decode}
        self.decode_starts: dict[str, str] = {}

    def engines(self) -> list[Engine]:
        """Prefill servers, then decode servers."""
        return [*self.prefill.values(), *self.decode.values()]

    def engine_up(self, url: str, *, start: str | None, block_size: int | None) -> bool:
        """An engine answered. True when it is not the start that was known before."""
        engine = self._engine(url)
        fresh = not engine.healthy or (start is not None and start != engine.start)
        engine.healthy, engine.why = True, ""
        engine.start = start
        if block_size is not None:
            engine.block_size = block_size
        if fresh:
            self._reset_pairs(url)
        return fresh

    def engine_down(self, url: str, why: str) -> bool:
        """An engine did not answer. True when it was healthy before."""
        engine = self._engine(url)
        was = engine.healthy
        engine.healthy, engine.why = False, why
        if was:
            self._reset_pairs(url)
        return was

    def choose_prefill(self, avoid: Iterable[str] = ()) -> str | None:
        """The healthy prefill server with the fewest outstanding tokens."""
        return _least(self.prefill, avoid)

    def choose_decode(self, hint: str | None = None, avoid: Iterable[str] = ()) -> str | None:
        """The conversation's own decode server if healthy, else the least loaded."""
        if hint in self.decode and self.decode[hint].healthy and hint not in avoid:
            return hint
        return _least(self.decode, avoid)

    def reuse_refused(self, prefill: str, decode: str, start: str, now: float) -> str | None:
        """Why no handle of this decode start may go to this prefill server; None if it may."""
        pair = self.pairs.get((prefill, decode))
        if pair is None:
            return "unknown_decode"
        if pair.verdict != "ok":
            return "pair_not_proven"
        until, _ = pair.pauses.get(start, (0.0, 0.0))
        return "pair_paused" if now < until else None

    def reuse_failed(self, prefill: str, decode: str, start: str, now: float) -> None:
        """A pull failed: pause this pair, twice as long each time."""
        pair = self.pairs[(prefill, decode)]
        _, length = pair.pauses.get(start, (0.0, _FIRST_PAUSE_S))
        pair.pauses[start] = (now + length, min(2 * length, _LONGEST_PAUSE_S))

    def reuse_worked(self, prefill: str, decode: str, start: str) -> None:
        """A pull worked: the next failure starts with the short pause again."""
        self.pairs[(prefill, decode)].pauses.pop(start, None)

    def releases_by_refusal(self, prefill: str, decode: str) -> bool:
        """Whether a request that prefill refuses frees a handle: it must know decode already."""
        pair = self.pairs.get((prefill, decode))
        version = self.prefill[prefill].version or ""
        known = re.match(r"0\.(\d+)", version)
        recent = known is not None and int(known.group(1)) >= _REFUSAL_NOTIFIES
        return recent and pair is not None and pair.verdict == "ok"

    def unproven_pairs(self) -> list[Pair]:
        """Pairs of healthy engines that wait for a probe."""
        return [
            pair
            for pair in self.pairs.values()
            if pair.verdict == "unknown"
            and self.prefill[pair.prefill].healthy
            and self.decode[pair.decode].healthy
        ]

    def ready(self) -> bool:
        """True when some pair of healthy engines was seen to move KV."""
        return any(
            pair.moves_kv
            and self.prefill[pair.prefill].healthy
            and self.decode[pair.decode].healthy
            for pair in self.pairs.values()
        )

    def _engine(self, url: str) -> Engine:
        return self.prefill[url] if url in self.prefill else self.decode[url]

    def _reset_pairs(self, url: str) -> None:
        for key, pair in self.pairs.items():
            if url in key:
                self.pairs[key] = Pair(pair.prefill, pair.decode)


def _least(engines: dict[str, Engine], avoid: Iterable[str]) -> str | None:
    shunned = set(avoid)
    healthy = [e for e in engines.values() if e.healthy and e.url not in shunned]
    if not healthy:
        return None
    return min(healthy, key=lambda engine: engine.outstanding).url
