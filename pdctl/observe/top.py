"""What happens on a deployment now: two looks, and what changed between them.

Taking a look is I/O; what two looks show is pure. Without an earlier look, counters are since the
processes started.
"""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from pdctl.base import metric_names as names
from pdctl.base.errors import PdctlError
from pdctl.base.facts import PairFacts, RouterMetrics, ServingFacts
from pdctl.base.process import RoleName
from pdctl.observe.endpoints import Endpoints
from pdctl.observe.facts import gather
from pdctl.observe.metrics import Samples, growth, scrape

Buckets = Mapping[float, float]
"""Counts of a histogram by upper bound in seconds, each with all that are below."""
QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Glance:
    """Everything at one moment.

    Attributes:
        ttft: of all turns that the router has answered.
    """

    facts: PairFacts
    ttft: Buckets = field(default_factory=dict)


@dataclass(frozen=True)
class EngineView:
    """One engine; None where it does not say.

    Attributes:
        problem: why it does not answer; empty when it does.
        used, room: tokens that its KV blocks in use, and all of them, have room for.
    """

    name: str
    role: RoleName
    url: str
    problem: str
    version: str | None
    running: int | None
    waiting: int | None
    used: int | None
    room: int | None

    def as_dict(self) -> dict[str, object]:
        """In `top --json`."""
        return {**vars(self), "healthy": not self.problem}


@dataclass(frozen=True)
class View:
    """What two looks show.

    Attributes:
        window_s: between them; None: since the processes started.
        turns: by outcome.
        prompt_tokens, reused_tokens: of these turns.
        ttft_ms: by quantile; empty when no turn was answered.
        handles, retained_tokens: that the router could offer now.
        room_tokens: of all decode engines.
        pulled_bytes, pulls: from decode to prefill.
        handed_bytes, hands: from prefill to decode.
        failed, expired: transfers that failed, requests whose blocks expired before they were read.
    """

    name: str
    window_s: float | None
    engines: tuple[EngineView, ...]
    router_problem: str
    turns: Mapping[str, int]
    prompt_tokens: int | None
    reused_tokens: int | None
    ttft_ms: Mapping[float, float]
    in_flight: int | None
    handles: int | None
    retained_tokens: int | None
    room_tokens: int | None
    pulled_bytes: int | None
    pulls: int | None
    handed_bytes: int | None
    hands: int | None
    failed: int | None
    expired: int | None

    @property
    def hit_share(self) -> float | None:
        """HITs of the turns that may reuse."""
        may = sum(count for outcome, count in self.turns.items() if outcome != "OFF")
        return self.turns.get("HIT", 0) / may if may else None

    @property
    def healthy(self) -> bool:
        """Whether everything answers."""
        return not self.router_problem and not any(each.problem for each in self.engines)

    def as_dict(self) -> dict[str, Any]:
        """`top --once --json`, but for the alerts."""
        rest = {
            key: value for key, value in vars(self).items() if key not in ("engines", "ttft_ms")
        }
        quantiles = {f"p{quantile * 100:g}": value for quantile, value in self.ttft_ms.items()}
        return {
            **rest,
            "turns": dict(self.turns),
            "engines": [each.as_dict() for each in self.engines],
            "ttft_ms": quantiles,
            "hit_share": self.hit_share,
            "healthy": self.healthy,
        }


async def glance(session: aiohttp.ClientSession, endpoints: Endpoints) -> Glance:
    """Look at everything at the same time; what does not answer says so in its facts."""
    facts, ttft = await asyncio.gather(gather(session, endpoints), _ttft(session, endpoints))
    return Glance(facts, ttft)


async def _ttft(session: aiohttp.ClientSession, endpoints: Endpoints) -> Buckets:
    if endpoints.router is None:
        return {}
    try:
        samples = await scrape(session, endpoints.router.url, key=endpoints.router_key)
    except PdctlError:
        return {}
    return buckets(samples, names.ROUTER_TTFT)


def buckets(samples: Samples, name: str) -> Buckets:
    """A histogram of one scrape."""
    return {
        float(bound): count
        for bound, count in samples.by_label(f"{name}_bucket", "le").items()
        if bound
    }


def view(old: Glance | None, new: Glance) -> View:
    """What happened from one look to the next; without the first, since the start."""
    facts = new.facts
    router = facts.router
    before, after = _router_metrics(old), _router_metrics(new)
    decode = [each for each in facts.engines if each.role == "decode"]
    rooms = [room for each in decode if (room := _room(each)) is not None]
    return View(
        name=facts.name,
        window_s=facts.taken_at - old.facts.taken_at if old else None,
        engines=tuple(map(_engine, facts.engines)),
        router_problem="there is none" if router is None else router.error or "",
        turns=_turns(before.turns, after.turns),
        prompt_tokens=growth(before.prompt_tokens, after.prompt_tokens),
        reused_tokens=growth(before.reused_tokens, after.reused_tokens),
        ttft_ms=quantiles(old.ttft if old else {}, new.ttft),
        in_flight=after.in_flight,
        handles=router.handles if router else None,
        retained_tokens=router.retained_tokens if router else None,
        room_tokens=sum(rooms) if rooms else None,
        pulled_bytes=_grown(old, new, "prefill", "nixl_bytes"),
        pulls=_grown(old, new, "prefill", "nixl_transfers"),
        handed_bytes=_grown(old, new, "decode", "nixl_bytes"),
        hands=_grown(old, new, "decode", "nixl_transfers"),
        failed=_both(old, new, "nixl_failed"),
        expired=_both(old, new, "nixl_expired"),
    )


def _router_metrics(seen: Glance | None) -> RouterMetrics:
    router = seen.facts.router if seen else None
    return (router.metrics if router else None) or RouterMetrics()


def quantiles(old: Buckets, new: Buckets) -> dict[float, float]:
    """Milliseconds by quantile of what came in between, as Prometheus reads them from buckets."""
    counts = {bound: count - old.get(bound, 0.0) for bound, count in sorted(new.items())}
    total = counts.get(math.inf, 0.0)
    if total <= 0 or min(counts.values()) < 0:  # nothing came, or the router is another one
        return {}
    return {quantile: _quantile(counts, quantile * total) * 1000 for quantile in QUANTILES}


def _quantile(counts: Buckets, rank: float) -> float:
    below, low = 0.0, 0.0
    for bound, count in counts.items():
        if count >= rank:
            if math.isinf(bound):
                return low  # longer than the last bound; more is not known
            return low + (bound - low) * (rank - below) / ((count - below) or 1.0)
        below, low = count, bound
    return low


def _turns(old: Mapping[str, float], new: Mapping[str, float]) -> dict[str, int]:
    grown = {outcome: growth(old.get(outcome), count) for outcome, count in new.items()}
    return {outcome: count for outcome, count in grown.items() if count}


def _engine(facts: ServingFacts) -> EngineView:
    metrics = facts.metrics
    room = _room(facts)
    usage = metrics.kv_usage if metrics else None
    return EngineView(
        name=facts.name,
        role=facts.role,
        url=facts.url,
        problem=facts.error or "",
        version=facts.version,
        running=metrics.running if metrics else None,
        waiting=metrics.waiting if metrics else None,
        used=None if room is None or usage is None else round(room * usage),
        room=room,
    )


def _room(facts: ServingFacts) -> int | None:
    metrics = facts.metrics
    if metrics is None or not metrics.num_blocks or not metrics.block_size:
        return None
    return metrics.num_blocks * metrics.block_size


def _grown(old: Glance | None, new: Glance, role: RoleName, name: str) -> int | None:
    """Growth of one counter over a role's engines; None where none of them has it."""
    before = {each.name: each.metrics for each in old.facts.engines} if old else {}
    found = []
    for each in new.facts.role(role):
        if each.metrics is None:
            continue
        earlier = before.get(each.name)
        grown = growth(getattr(earlier, name, None), getattr(each.metrics, name))
        if grown is not None:
            found.append(grown)
    return sum(found) if found else None


def _both(old: Glance | None, new: Glance, name: str) -> int | None:
    sides = (_grown(old, new, "prefill", name), _grown(old, new, "decode", name))
    known = [each for each in sides if each is not None]
    return sum(known) if known else None
