"""Checks of each engine, and of what engines must have in common."""

from pdctl.base.facts import PairFacts, ServingFacts
from pdctl.doctor.table import Check, Fix, Verdict, failed, passed, skipped


def _engine(facts: PairFacts, name: str) -> ServingFacts:
    return next(engine for engine in facts.engines if engine.name == name)


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


CHECKS: tuple[Check, ...] = (
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
)
