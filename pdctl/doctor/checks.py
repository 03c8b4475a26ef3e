"""The checks. Order is dependence: a check stands after those it needs."""

from pdctl.base.facts import PairFacts, ServingFacts
from pdctl.doctor.table import Check, Fix, Verdict, failed, passed, skipped, warned
from pdctl.engine.example import LIMITS


def _engine(facts: PairFacts, name: str) -> ServingFacts:
    return next(engine for engine in facts.engines if engine.name == name)


def _host_reach(facts: PairFacts, target: str) -> Verdict:
    host = next(host for host in facts.hosts if host.name == target)
    return failed(host.error) if host.error else passed("it answers")


def _engine_health(facts: PairFacts, target: str) -> Verdict:
    engine = _engine(facts, target)
    if engine.error is not None:
        return failed(f"{engine.url}: {engine.error}")
    return passed(f"{engine.url} answers")


def _engine_version(facts: PairFacts, _: str) -> Verdict:
    return _equal(facts, "vLLM", {e.name: e.version for e in facts.engines})


def _engine_model(facts: PairFacts, _: str) -> Verdict:
    return _equal(facts, "model", {e.name: e.model_root for e in facts.engines})


def _equal(facts: PairFacts, what: str, values: dict[str, str | None]) -> Verdict:
    if not values:
        return skipped("no engine is known")
    unknown = [name for name, value in values.items() if value is None]
    if unknown:
        return skipped(f"{', '.join(unknown)} did not say")
    if len(set(values.values())) == 1:
        return passed(f"{what} {next(iter(values.values()))} on all {len(values)} engines")
    return failed(*(f"{name}: {what} {value}" for name, value in values.items()))


def _block_size(facts: PairFacts, _: str) -> Verdict:
    sizes = {e.name: e.metrics.block_size if e.metrics else None for e in facts.engines}
    return _equal(facts, "block size", {n: None if s is None else str(s) for n, s in sizes.items()})


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


def _two_turn(facts: PairFacts, _: str) -> Verdict:
    proof = facts.two_turn
    if proof is None:
        return skipped("the two-turn proof was not run; `pdctl verify` runs it")
    if proof.ok:
        return passed(
            f"turn 2 reused {proof.reused_tokens} of {proof.prompt_tokens} prompt tokens",
            f"prefill pulled {proof.bytes_pulled} bytes from decode",
        )
    hint = Fix("; ".join(proof.hints)) if proof.hints else None
    return failed(proof.reason, fix=hint)


CHECKS: tuple[Check, ...] = (
    Check(
        id="host.reach",
        title="the host can be reached",
        scope="host",
        severity="block",
        judge=_host_reach,
        meaning="Nothing on this host can be looked at or changed.",
        fix=Fix("check the address, the network and the login"),
    ),
    Check(
        id="engine.health",
        title="the engine answers",
        scope="engine",
        severity="block",
        judge=_engine_health,
        meaning="Requests that need this engine fail, or run somewhere else without reuse.",
        fix=Fix("look at its log, then start it again", ("pdctl status", "pdctl up")),
        needs=("host.reach",),
    ),
    Check(
        id="engine.version.equal",
        title="all engines run the same vLLM",
        scope="pair",
        severity="block",
        judge=_engine_version,
        meaning="Engines of different versions refuse each other's handshake: no KV moves.",
        fix=Fix("install the same vLLM on all hosts (`engine.vllm`)", ("pdctl up",)),
        needs=("engine.health",),
    ),
    Check(
        id="engine.model.equal",
        title="all engines were started with the same model string",
        scope="pair",
        severity="block",
        judge=_engine_model,
        meaning="The model's name or path is part of the handshake: two paths to the same "
        "weights do not match.",
        fix=Fix("use the same model id or the same path on all hosts (`model.id`)"),
        needs=("engine.health",),
    ),
    Check(
        id="engine.block_size.equal",
        title="all engines have the same KV block size",
        scope="pair",
        severity="block",
        judge=_block_size,
        meaning="Block size is not part of the handshake: a difference fails single requests, or "
        "reads the wrong blocks.",
        fix=Fix("set `model.block_size`, which goes to both sides"),
        needs=("engine.health",),
    ),
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
    Check(
        id="runtime.two_turn",
        title="turn 2 reuses turn 1",
        scope="pair",
        severity="degrade",
        judge=_two_turn,
        meaning="The pair may serve, but it does not do what it was set up for.",
        fix=Fix("see what the proof found", ("pdctl verify",)),
        needs=("engine.health", "router.reach"),
    ),
)
"""Every check, in the order it is judged."""
