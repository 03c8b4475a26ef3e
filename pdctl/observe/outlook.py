"""What a TTL would mean, from what the last ones showed. Pure."""

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import orjson

from pdctl.base.facts import PairFacts

FULL = 0.8
"""Share of decode's KV cache beyond which what is retained leaves too little for what runs."""


@dataclass(frozen=True)
class Outlook:
    """What a new TTL would mean if the traffic goes on as it did.

    Attributes:
        capacity_tokens: of all decode servers; None when they do not say.
        retained_tokens: now, by the router; None when it does not say.
        expected_tokens: that would be retained, at most: nothing is taken to be reused, released
            or superseded earlier than so far. None when it cannot be told.
        gaps: pauses between two turns of a conversation that the request log knows.
        late_now, late_then: share of them that is longer than the router's TTL, now and then.
    """

    capacity_tokens: int | None = None
    retained_tokens: int | None = None
    expected_tokens: int | None = None
    gaps: int = 0
    late_now: float | None = None
    late_then: float | None = None

    @property
    def share(self) -> float | None:
        """Of decode's KV cache that would be retained."""
        if self.expected_tokens is None or not self.capacity_tokens:
            return None
        return self.expected_tokens / self.capacity_tokens

    @property
    def starves(self) -> bool:
        """Whether decode would have too little left for new work."""
        return self.share is not None and self.share > FULL

    def as_dict(self) -> dict[str, object]:
        """The shape in `set-ttl --json`."""
        return {
            "capacity_tokens": self.capacity_tokens,
            "retained_tokens": self.retained_tokens,
            "expected_tokens": self.expected_tokens,
            "share_of_capacity": self.share,
            "gaps": self.gaps,
            "late_share_now": self.late_now,
            "late_share_then": self.late_then,
        }


def look_out(
    facts: PairFacts,
    gaps: list[float],
    *,
    router_now: float,
    router_then: float,
    uptime: float,
) -> Outlook:
    """Judge a TTL.

    Args:
        gaps: seconds between the end of a turn and the next one of its conversation.
        router_now, router_then: seconds for which routers offer handles before they give them back.
        uptime: of the router, seconds; what it retains came together in that time, or in the TTL.
    """
    retained = facts.router.retained_tokens if facts.router else None
    window = min(router_now, uptime)
    expected = None
    if retained is not None and window > 0:
        expected = round(retained * router_then / window)
    return Outlook(
        capacity_tokens=_capacity(facts),
        retained_tokens=retained,
        expected_tokens=expected,
        gaps=len(gaps),
        late_now=_late(gaps, router_now),
        late_then=_late(gaps, router_then),
    )


def _capacity(facts: PairFacts) -> int | None:
    sizes = [
        each.metrics.num_blocks * each.metrics.block_size
        if each.metrics and each.metrics.num_blocks and each.metrics.block_size
        else None
        for each in facts.role("decode")
    ]
    known = [size for size in sizes if size is not None]
    return sum(known) if sizes and len(known) == len(sizes) else None


def _late(gaps: list[float], ttl: float) -> float | None:
    return sum(gap > ttl for gap in gaps) / len(gaps) if gaps else None


def gaps_in(log: bytes) -> list[float]:
    """Pauses between the end of a turn and the next of its conversation, seconds, none negative.

    Args:
        log: the router's request log, or the end of it; lines that are none are left out.
    """
    turns: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for line in log.splitlines():
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            record = orjson.loads(line)
            name = str(record["conversation_id"])
            if name not in ("", "-"):
                ended = float(record["ts"]) + float(record.get("total_ms") or 0.0) / 1000
                turns[str(record.get("tenant")), name].append((float(record["ts"]), ended))
    gaps = []
    for times in turns.values():
        times.sort()
        gaps += [max(0.0, then - ended) for (_, ended), (then, _) in pairwise(times)]
    return gaps
