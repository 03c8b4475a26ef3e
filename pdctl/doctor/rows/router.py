"""Checks of the router."""

from pdctl.base.facts import PairFacts
from pdctl.doctor.table import Check, Fix, Verdict, failed, passed, skipped, warned
from pdctl.engine.example import LIMITS


def _router_reach(facts: PairFacts, _: str) -> Verdict:
    router = facts.router
    if router is None:
        return skipped("the deployment has no router")
    if router.error is not None:
        return failed(f"{router.url}: {router.error}")
    return passed(f"{router.url} answers")


def _router_kind(facts: PairFacts, _: str) -> Verdict:
    router = facts.router
    if router is None:
        return skipped("the deployment has no router")
    if router.ours:
        return passed("it is pdctl's own")
    if router.example:
        return warned(*(f"upstream's example proxy: {limit}" for limit in LIMITS))
    return skipped("the router is neither pdctl's nor upstream's example, and does not say")


def _router_pair(facts: PairFacts, _: str) -> Verdict:
    router = facts.router
    if router is None or not router.ours:
        return skipped("the router is not pdctl's and does not say")
    if not router.pairs:
        return failed("the router has no prefill/decode pair")
    bad = [f"{p.prefill} → {p.decode}: {p.reason}" for p in router.pairs if not p.ok]
    if not bad:
        return passed(f"{len(router.pairs)} of {len(router.pairs)} pairs move KV both ways")
    return failed(*bad) if len(bad) == len(router.pairs) else warned(*bad)


CHECKS: tuple[Check, ...] = (
    Check(
        id="router.reach",
        title="the router answers",
        scope="router",
        severity="block",
        judge=_router_reach,
        meaning="Clients get no answer.",
        fix=Fix("look at its log, then start it again", ("pdctl status", "pdctl up")),
    ),
    Check(
        id="router.kind",
        title="the router compares tokens before it reuses any",
        scope="router",
        severity="degrade",
        judge=_router_kind,
        meaning="A history that was edited, shortened or rendered anew gets the KV of other "
        "tokens, and the answer is wrong without an error.",
        fix=Fix("set `router.kind: pdctl`", ("pdctl up",)),
        needs=("router.reach",),
    ),
    Check(
        id="router.pair",
        title="the router has proven its prefill/decode pairs",
        scope="router",
        severity="degrade",
        judge=_router_pair,
        meaning="The router sends no handles over a pair that its probe found broken: every turn "
        "is computed again.",
        fix=Fix("mend what the reason names; the router probes again by itself"),
        needs=("engine.health", "router.reach"),
    ),
)
