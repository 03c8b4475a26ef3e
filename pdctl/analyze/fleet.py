"""How many hosts some traffic needs: formulas, their assumptions, and a simulation of them."""

from dataclasses import asdict, dataclass
from math import ceil, exp

from pdctl.analyze.simulate import Traffic, made_up, rules_of, simulate
from pdctl.analyze.speed import Curve
from pdctl.base.durations import format_duration
from pdctl.base.prices import AS_OF, REGION, Host
from pdctl.engine.kv_arithmetic import KvModel, gpu_kv_bytes
from pdctl.engine.ttl import MARGIN_S, kept_for, safe_router_ttl

TRIED = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0)
"""TTLs that are tried when none is given: what the router can use of them, in mean gaps."""
BUSY = 0.6
"""How busy prefill may be in the mean, so that a turn seldom waits."""
FULL = 0.9
"""How full decode's cache may be in the mean."""
ROUTER_RATE = 200.0
"""Turns a second that one router is given to do; measured is more (benchmarks/router_speed.py)."""
HANDLE_BYTES = 1024
TOKEN_BYTES = 4.9
"""What a shared store takes for a handle, and for each of its tokens (docs/router.md)."""
_CYCLES = 0.4
_TURNS = 50_000
"""How many times around simulated sessions are counted: more where they are few."""


class TooSmallError(ValueError):
    """A host cannot hold the model, or one conversation."""


@dataclass(frozen=True)
class Load:
    """The question.

    Attributes:
        sessions: open at once.
        gap: mean seconds between the end of an answer and the next turn.
        context: tokens of a turn, prompt and answer, in the mean.
        answer: tokens of an answer.
        tpot_ms: milliseconds for each of them.
        ttl: decode's TTL; None: that which needs the fewest hosts.
    """

    sessions: int
    gap: float
    context: int
    answer: int = 300
    tpot_ms: float = 20.0
    ttl: float | None = None


@dataclass(frozen=True)
class Site:
    """What it runs on.

    Attributes:
        model: its KV.
        weights: bytes of the model.
        host, type: the host of either role, and its name.
        curve: time to first token on such a host.
        max_num_seqs: turns that an engine decodes at once.
        utilization: `gpu_memory_utilization`.
        other: bytes on each GPU for activations, graphs and libraries.
        capacity: tokens that a decode engine says it has room for; None: computed.
    """

    model: KvModel
    weights: int
    host: Host
    type: str
    curve: Curve
    max_num_seqs: int = 64
    utilization: float = 0.9
    other: int = 6 * 2**30
    capacity: int | None = None

    @property
    def engines(self) -> int:
        """On a host."""
        return self.host.gpus // self.model.tensor_parallel

    def engine_tokens(self, context: int) -> int:
        """Tokens that one engine has room for.

        Raises:
            TooSmallError: none.
        """
        if self.capacity is not None:
            return self.capacity
        if not self.engines:
            raise TooSmallError(
                f"{self.type} has {self.host.gpus} GPUs, fewer than "
                f"{self.model.tensor_parallel} for tensor parallelism"
            )
        left = gpu_kv_bytes(
            self.host.gpu_bytes,
            self.weights,
            tensor_parallel=self.model.tensor_parallel,
            utilization=self.utilization,
            other=self.other,
        )
        tokens = self.model.tokens_in(left, length=context)
        if tokens < context:
            raise TooSmallError(
                f"{self.type} with tensor parallel size {self.model.tensor_parallel} has room for "
                f"{tokens:,} tokens beside the weights, less than one conversation of {context:,}"
            )
        return tokens


@dataclass(frozen=True)
class Checked:
    """The same by simulation.

    Attributes:
        sessions, turns: how many were simulated.
        retained_tokens: in the mean, scaled to all sessions.
        hit_share: of turns.
        difference: of `retained_tokens` from the formula, as a share of it.
    """

    sessions: int
    turns: int
    retained_tokens: int
    hit_share: float
    difference: float


@dataclass(frozen=True)
class Choice:
    """A TTL, and the hosts it needs.

    Attributes:
        ttl_s: 0: nothing is reused.
        hit_share: turns that reuse.
        prefill_hosts, decode_hosts: how many.
    """

    ttl_s: float
    hit_share: float
    prefill_hosts: int
    decode_hosts: int

    @property
    def hosts(self) -> int:
        """Of both roles."""
        return self.prefill_hosts + self.decode_hosts


@dataclass(frozen=True)
class Fleet:
    """The answer, in the order of the JSON output; docs/analyze.md explains each."""

    sessions: int
    turn_gap_s: float
    context_tokens: int
    host_type: str
    ttl_s: float
    router_ttl_s: float
    turns_per_s: float
    hit_share: float
    retained_tokens: int
    retained_gib: float
    running_tokens: int
    prefill: dict[str, object]
    decode: dict[str, object]
    routers: int
    store: dict[str, object]
    cost: dict[str, object]
    alternatives: list[Choice]
    simulated: Checked | None
    assumptions: list[str]

    @property
    def hosts(self) -> int:
        """Of both roles."""
        return _number(self.prefill["hosts"]) + _number(self.decode["hosts"])

    def as_dict(self) -> dict[str, object]:
        """For `--json`."""
        return asdict(self)


def plan_fleet(load: Load, site: Site, *, simulate_sessions: int) -> Fleet:
    """Answer the question.

    Args:
        load: the traffic.
        site: what it runs on.
        simulate_sessions: how many to simulate at most; 0: none.

    Raises:
        TooSmallError: a host cannot hold the model or a conversation.
    """
    room = site.engine_tokens(load.context)
    flows = {ttl: _Flow.of(load, site, room, ttl) for ttl in _tried(load)}
    alternatives = [flow.choice for flow in flows.values()]
    ttl = load.ttl
    if ttl is None:  # the fewest hosts; of equals, the most hits
        best = min(alternatives[1:], key=lambda choice: (choice.hosts, -choice.hit_share))
        ttl = best.ttl_s
    flow = flows[ttl]
    hosts = flow.choice.hosts
    hourly = None if site.host.hourly_usd is None else round(hosts * site.host.hourly_usd, 2)
    return Fleet(
        sessions=load.sessions,
        turn_gap_s=load.gap,
        context_tokens=load.context,
        host_type=site.type,
        ttl_s=ttl,
        router_ttl_s=max(0.0, safe_router_ttl(ttl)),
        turns_per_s=flow.rate,
        hit_share=flow.hits,
        retained_tokens=round(flow.retained),
        retained_gib=_gib(flow.retained, load, site),
        running_tokens=round(flow.running),
        prefill=flow.prefill | {"hosts_without_reuse": alternatives[0].prefill_hosts},
        decode=flow.decode,
        routers=max(2, ceil(flow.rate / ROUTER_RATE)),
        store=_store(flow.retained, load),
        cost={"hourly_usd": hourly, "as_of": AS_OF, "region": REGION},
        alternatives=alternatives,
        simulated=_check(load, ttl, flow, simulate_sessions),
        assumptions=_assumptions(load, site),
    )


def _tried(load: Load) -> list[float]:
    """No reuse first, then TTLs in order."""
    tried = {float(ceil(load.gap * each + MARGIN_S)) for each in TRIED}
    return [0.0, *sorted(tried | ({load.ttl} if load.ttl else set()))]


@dataclass(frozen=True)
class _Flow:
    """What a TTL means in the mean.

    Attributes:
        rate: turns a second.
        seconds: that an answer takes.
        hits: share of turns that reuse.
        retained, running: tokens on decode.
        prefill, decode: the hosts, as they are told.
        choice: the same in short.
    """

    rate: float
    seconds: float
    hits: float
    retained: float
    running: float
    prefill: dict[str, object]
    decode: dict[str, object]
    choice: Choice

    @classmethod
    def of(cls, load: Load, site: Site, room: int, ttl: float) -> "_Flow":
        """By Little's law: what is there at once is the rate times how long it stays."""
        hits = _within(load.gap, max(0.0, safe_router_ttl(ttl)))
        seconds = _answer_seconds(load, site, hits)
        rate = load.sessions / (load.gap + seconds)
        retained = rate * _pinned_seconds(load.gap, kept_for(ttl)) * load.context
        running = rate * seconds * load.context
        decode = _decode(site, room, retained + running, rate * seconds)
        prefill = _prefill(load, site, rate, hits)
        hosts = _number(prefill["hosts"]), _number(decode["hosts"])
        choice = Choice(ttl, hits, *hosts)
        return cls(rate, seconds, hits, retained, running, prefill, decode, choice)


def _within(gap: float, seconds: float) -> float:
    """The share of gaps that are no longer, when they are as if by chance."""
    return 1 - exp(-seconds / gap) if gap > 0 else 1.0


def _pinned_seconds(gap: float, kept: float) -> float:
    """How long blocks stay in the mean: until the next turn, or for so long at most."""
    return gap * _within(gap, kept)


def _answer_seconds(load: Load, site: Site, hits: float) -> float:
    first = hits * site.curve.on(load.context) + (1 - hits) * site.curve.off(load.context)
    return max(0.002, (first + load.answer * load.tpot_ms) / 1000)


def _gib(tokens: float, load: Load, site: Site) -> float:
    return tokens / load.context * site.model.sequence_bytes(load.context) / 2**30


def _decode(site: Site, room: int, tokens: float, at_once: float) -> dict[str, object]:
    by_memory = ceil(tokens / (room * FULL))
    by_slots = ceil(at_once / site.max_num_seqs)
    engines = max(1, by_memory, by_slots)
    hosts = ceil(engines / max(1, site.engines))
    engines = hosts * max(1, site.engines)
    return {
        "hosts": hosts,
        "engines": engines,
        "bound_by": "memory" if by_memory >= by_slots else "turns at once",
        "engine_tokens": room,
        "capacity_tokens": room * engines,
        "used_share": tokens / (room * engines),
        "turns_at_once": at_once,
    }


def _prefill(load: Load, site: Site, rate: float, hits: float) -> dict[str, object]:
    off, on = site.curve.off(load.context) / 1000, site.curve.on(load.context) / 1000
    busy = rate * (hits * on + (1 - hits) * off)
    hosts = max(1, ceil(busy / BUSY))
    return {
        "hosts": hosts,
        "busy_share": busy / hosts,
    }


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value


def _store(retained: float, load: Load) -> dict[str, object]:
    handles = retained / load.context
    return {
        "handles": round(handles),
        "mib": round((handles * HANDLE_BYTES + retained * TOKEN_BYTES) / 2**20, 1),
    }


def _check(load: Load, ttl: float, flow: _Flow, most: int) -> Checked | None:
    sessions = min(load.sessions, most)
    if not sessions:
        return None
    cycle = load.gap + flow.seconds
    until = ttl + cycle * max(_CYCLES, min(5.0, _TURNS / sessions))
    answer = min(load.answer, load.context - 1)
    traffic = Traffic(sessions, load.gap, load.context, answer, flow.seconds)
    rules = rules_of(ttl, block=1, threshold=1)
    done = simulate(made_up(traffic, until), rules, until=until, counted=ttl)
    found = done.average(ttl) * load.sessions / sessions
    return Checked(
        sessions,
        done.turns,
        round(found),
        done.hits / done.turns if done.turns else 0.0,  # every session was there before
        found / flow.retained - 1 if flow.retained else 0.0,
    )


def _assumptions(load: Load, site: Site) -> list[str]:
    held = (
        "its own report"
        if site.capacity is not None
        else (
            f"{site.host.gpu_bytes / 1e9:.0f} GB a GPU × {site.utilization:g}, less weights of "
            f"{site.weights / 1e9:,.0f} GB over {site.model.tensor_parallel} GPUs and "
            f"{site.other / 2**30:.0f} GiB for activations and graphs"
        )
    )
    return [
        f"gaps are as if by chance (exponential) with a mean of {format_duration(load.gap)}",
        f"an answer has {load.answer} tokens of {load.tpot_ms:g} ms",
        f"time to first token as published for {site.curve.name} on two p5en.48xlarge with "
        "prefill's own prefix cache off; a host of another type is not converted",
        "a prefill host computes one turn at a time; what batching gains is left out",
        f"prefill is busy {BUSY:.0%} of the time at most, decode's cache {FULL:.0%} full in the "
        "mean",
        f"a decode engine runs {site.max_num_seqs} turns at once (`decode.max_num_seqs`)",
        f"room of a decode engine: {held}",
        "block rounding is left out: up to a block for each conversation",
        f"a router does {ROUTER_RATE:g} turns a second, and there are two so that one may fail",
        f"hosts cost what they do on demand in {REGION} on {AS_OF}; routers, store, storage and "
        "traffic are left out",
        *site.model.notes,
    ]
