"""Checks of the router."""

from pdctl.base.durations import format_duration
from pdctl.base.facts import PairFacts, RouterFacts
from pdctl.base.runfacts import ProcessFacts
from pdctl.doctor.table import Check, Fix, Verdict, failed, passed, skipped, warned
from pdctl.engine.example import LIMITS, TTL_S
from pdctl.engine.ttl import (
    SHORTEST_DECODER_TTL_S,
    no_safe_ttl,
    safe_router_ttl,
    unsafe_ttl,
)

_NONE = "the deployment has no router"
_NOT_OURS = "the router is not pdctl's and does not say"
_DEFAULT_TTL_S = 480.0
"""Of every vLLM that was read, where `decoder_kv_blocks_ttl` is not given."""


def _reach(facts: PairFacts, _: str) -> Verdict:
    if why := facts.not_asked.get("router"):
        return skipped(why)
    if facts.router is None:
        return skipped(_NONE)
    every = (facts.router, *facts.replicas)
    bad = [f"{router.url}: {router.error}" for router in every if router.error is not None]
    gone = [p for p in facts.processes if p.role == "router" and p.alive is False and p.pid]
    bad = [*(f"{each.name}: pid {each.pid} is gone" for each in gone), *bad] if bad else bad
    if bad:
        return failed(*bad) if all(router.error for router in every) else warned(*bad)
    return passed(*(f"{router.url} answers" for router in every))


def _kind(facts: PairFacts, _: str) -> Verdict:
    router = facts.router
    if router is None:
        return skipped(_NONE)
    if router.ours:
        return passed("it is pdctl's own")
    if router.example:
        return warned(*(f"upstream's example proxy: {limit}" for limit in LIMITS))
    return skipped("the router is neither pdctl's nor upstream's example, and does not say")


def _pair(facts: PairFacts, _: str) -> Verdict:
    router = facts.router
    if router is None or not router.ours:
        return skipped(_NOT_OURS)
    if facts.settings is not None and not facts.settings.bidirectional:
        return skipped("`kv.bidirectional` is false, so there is nothing to prove")
    if not router.pairs:
        return failed("the router has no prefill/decode pair")
    bad = [f"{p.prefill} → {p.decode}: {p.reason}" for p in router.pairs if not p.ok]
    if not bad:
        return passed(f"{len(router.pairs)} of {len(router.pairs)} pairs move KV both ways")
    return failed(*bad) if len(bad) == len(router.pairs) else warned(*bad)


def decode_ttls(facts: PairFacts) -> dict[str, tuple[float, str]]:
    """How long each decode engine really keeps blocks, in seconds, and who says so."""
    found = {}
    for process in facts.processes:
        if process.role == "decode" and process.alive is not False:
            ttl = _ttl_of(process)
            if ttl is not None:
                found[process.name] = ttl
    if not found and facts.settings is not None:
        found["decode"] = (facts.settings.decoder_ttl, "as configured")
    return found


def _ttl_of(process: ProcessFacts) -> tuple[float, str] | None:
    if process.ttl_file is not None and process.lever("live_ttl") is not False:
        return process.ttl_file, "set while it runs"
    if not process.knows_connector:
        return None
    given = process.connector("decoder_kv_blocks_ttl")
    try:
        return (_DEFAULT_TTL_S, "vLLM's own") if given is None else (float(given), "as it runs")
    except ValueError:
        return None


def _offered(router: RouterFacts) -> float | None:
    return TTL_S if router.example else router.ttl


def _ttl(facts: PairFacts, _: str) -> Verdict:
    router = facts.router
    if router is None:
        return skipped(_NONE)
    offered = _offered(router)
    if offered is None:
        return skipped("the router does not say how long it offers a handle")
    kept = decode_ttls(facts)
    if not kept:
        return skipped("nobody says how long decode keeps blocks")
    said = [
        f"{name} keeps blocks {format_duration(ttl)} ({source}), "
        f"the router offers them {format_duration(offered)}"
        for name, (ttl, source) in kept.items()
    ]
    shortest = min(ttl for ttl, _ in kept.values())
    if offered <= safe_router_ttl(shortest):
        return passed(*said)
    fix = None
    if router.example:
        fix = Fix(
            f"it offers handles for {TTL_S:g} s whatever is configured: set `router.kind: pdctl`, "
            "or keep blocks long enough (`kv.decoder_ttl`)",
            ("pdctl up",),
        )
    why = unsafe_ttl(offered, shortest)
    if shortest < SHORTEST_DECODER_TTL_S:
        why = no_safe_ttl(shortest)
    return failed(*said, why, fix=fix)


def _reuse(facts: PairFacts, _: str) -> Verdict:
    router = facts.router
    if router is None or not router.ours:
        return skipped(_NOT_OURS)
    if router.share is None:
        return skipped("the router tells its switch only to its administrator")
    if router.share == 0:
        return warned("reuse is switched off")
    return passed("on" if router.share == 1 else f"on for {router.share:.0%} of conversations")


def _store(facts: PairFacts, _: str) -> Verdict:
    if facts.router is None:
        return skipped(_NONE)
    if facts.store is None:
        if facts.replicas:
            return failed(f"{len(facts.replicas) + 1} routers keep handles each for itself")
        return skipped("one router keeps its handles itself")
    if facts.store.error is not None:
        return failed(f"{facts.store.url}: {facts.store.error}")
    return passed(f"{facts.store.url} answers")


def _keys(facts: PairFacts, _: str) -> Verdict:
    router, settings = facts.router, facts.settings
    if router is None or not router.ours:
        return skipped(_NOT_OURS)
    if settings is None or router.open is None:
        return skipped("nobody tried")
    if router.open and settings.router_open:
        return warned(f"it listens on {settings.router_host}, and whoever reaches it may use it")
    return passed("it asks for a key" if not router.open else "only this machine reaches it")


CHECKS: tuple[Check, ...] = (
    Check(
        id="router.reach",
        title="the router answers",
        scope="router",
        severity="block",
        judge=_reach,
        meaning="Clients get no answer.",
        fix=Fix("look at its log, then start it again", ("pdctl status", "pdctl up")),
        needs=("host.reach",),
    ),
    Check(
        id="router.ttl",
        title="the router stops offering handles before decode gives their blocks up",
        scope="router",
        severity="block",
        judge=_ttl,
        meaning="Prefill declines a read that comes too late, and the request fails with HTTP 500 "
        "unless the router runs it again.",
        fix=Fix(
            "set `kv.decoder_ttl` and leave `router.ttl` out, so that one follows the other",
            ("pdctl up",),
        ),
        needs=("router.reach",),
    ),
    Check(
        id="router.kind",
        title="the router compares tokens before it reuses any",
        scope="router",
        severity="degrade",
        judge=_kind,
        meaning="A history that was edited, shortened or rendered anew gets the KV of other "
        "tokens, and the answer is wrong without an error.",
        fix=Fix("set `router.kind: pdctl`", ("pdctl up",)),
        needs=("router.reach",),
    ),
    Check(
        id="router.store",
        title="routers share their handles",
        scope="router",
        severity="degrade",
        judge=_store,
        meaning="Routers that do not share would use a handle twice; without their store all turns "
        "are computed again.",
        fix=Fix("start the store, or name another one (`router.store`)"),
        needs=("router.reach",),
    ),
    Check(
        id="router.keys",
        title="strangers cannot use the router",
        scope="router",
        severity="degrade",
        judge=_keys,
        meaning="Anyone who reaches the port may use the model, and other tenants' reuse.",
        fix=Fix("set `router.api_keys_file`, or listen on loopback (`router.host`)"),
        needs=("router.reach",),
    ),
    Check(
        id="router.reuse",
        title="reuse is switched on",
        scope="router",
        severity="degrade",
        judge=_reuse,
        meaning="Prefill computes every turn from the beginning.",
        fix=Fix("switch it on again", ("pdctl reuse on",)),
        needs=("router.reach",),
    ),
    Check(
        id="router.pair",
        title="the router has proven its prefill/decode pairs",
        scope="router",
        severity="degrade",
        judge=_pair,
        meaning="The router sends no handles over a pair that its probe found broken: every turn "
        "is computed again.",
        fix=Fix("mend what the reason names; the router probes again by itself"),
        needs=("engine.health", "router.reach"),
    ),
)
