"""The steps of an acceptance, from what a deployment is."""

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pdctl.accept.exact import Compared, compare_turns
from pdctl.accept.matrix import prove_pair
from pdctl.accept.model import Found
from pdctl.accept.run import Past, Step
from pdctl.base.errors import TemporaryError
from pdctl.base.events import Listener
from pdctl.base.facts import PairFacts
from pdctl.bench import files
from pdctl.bench.run import Bench, Settings
from pdctl.bench.summary import summarise
from pdctl.bench.workload import Shape
from pdctl.config.model import Config
from pdctl.doctor.checks import CHECKS
from pdctl.doctor.table import healthy, report, run_checks
from pdctl.engine import choices
from pdctl.observe.endpoints import Endpoints
from pdctl.observe.proof import VerifyReport
from pdctl.observe.turns import TurnLimits

_T = TypeVar("_T")

CONVERSATIONS = 4
"""Compared for exactness."""
BENCH = "bench"
"""Folder of the short bench within the bundle."""
_LIMITS = TurnLimits(first_byte=300.0, total=900.0)
_RESTART_S = 120.0
_BENCH_S = 60.0


@dataclass(frozen=True)
class Means:
    """How the steps reach what they try.

    Attributes:
        servers: where engines and router answer, for as long as the context lasts.
        look: everything that `doctor` looks at, without the proof.
        hosts: the same, of the hosts alone.
        restart: ends and starts one process by name.
        no_restart: why pdctl may not; empty where it may.
        cells: by name of an engine that has one.
        environment: what a run of `bench` says of itself.
        admin_key: for the router's switch, where it wants one.
    """

    config: Config
    folder: Path
    servers: Callable[[], AbstractContextManager[Endpoints]]
    look: Callable[[], PairFacts]
    hosts: Callable[[], PairFacts]
    restart: Callable[[str], VerifyReport]
    no_restart: str
    cells: Mapping[str, str]
    environment: Callable[[Settings], dict[str, Any]]
    admin_key: str | None
    listen: Listener


def steps_of(means: Means, endpoints: Endpoints, *, skip: Sequence[str] = ()) -> list[Step]:
    """All of them, in order; `skip` has ids, or the part of them before a dot."""
    wanted = [*_before(means), *_pairs(means, endpoints), *_after(means), *_restarts(means)]
    wanted.append(Step("efa", "RDMA reads over EFA", lambda _, past: efa(means, past), always=True))
    return [
        step if not {step.id, step.id.partition(".")[0]} & set(skip) else _skipped(step)
        for step in wanted
    ]


def _skipped(step: Step) -> Step:
    return Step(step.id, step.title, step.run, skip="`--skip` leaves it out")


def _before(means: Means) -> Iterator[Step]:
    yield Step("doctor", "hosts, engines and router", lambda _, __: _doctor(means), always=True)


def _doctor(means: Means) -> Found:
    facts = means.look()
    findings = run_checks(facts, CHECKS)
    bad = [finding.id for finding in findings if finding.status == "fail"]
    data = {"report": report(findings), "efa": read_bytes(facts), "versions": _versions(facts)}
    if not healthy(findings):
        return Found("fail", f"{len(bad)} checks fail: {', '.join(sorted(set(bad)))}", data)
    warnings = sum(finding.status == "warn" for finding in findings)
    return Found("pass", f"no check fails, {warnings} warn", data)


def _versions(facts: PairFacts) -> dict[str, object]:
    return {
        "vllm": {engine.name: engine.version for engine in facts.engines},
        "hosts": {
            host.name: {
                "nixl": host.nixl.nixl,
                "ucx": host.nixl.ucx,
                "torch": host.nixl.torch,
                "cuda": host.nixl.cuda,
                "python": host.nixl.python,
            }
            for host in facts.hosts
            if host.nixl is not None
        },
    }


# --- pairs -----------------------------------------------------------------------------------


def _pairs(means: Means, endpoints: Endpoints) -> Iterator[Step]:
    for prefill in endpoints.role("prefill"):
        for decode in endpoints.role("decode"):
            one, other = prefill.name, decode.name
            if means.cells.get(one) == means.cells.get(other):
                yield Step(
                    f"pair.{one}.{other}",
                    f"two turns over {one} and {other}",
                    lambda left, _, one=one, other=other: _pair(means, one, other, left),  # type: ignore[misc]
                    needs=30.0,
                )


def _pair(means: Means, prefill: str, decode: str, left: float) -> Found:
    async def prove(endpoints: Endpoints) -> VerifyReport:
        found = {engine.name: engine for engine in endpoints.engines}
        return await prove_pair(
            means.config,
            endpoints,
            found[prefill],
            found[decode],
            limits=_LIMITS,
            listen=means.listen,
        )

    with means.servers() as endpoints:
        return _proof(_within(prove(endpoints), left))


def _proof(proof: VerifyReport) -> Found:
    if not proof.ok:
        return Found("fail", proof.reason, proof.as_dict())
    second = proof.turns[1]
    said = f"turn 2 reused {second.reused_tokens} of {second.prompt_tokens} tokens"
    return Found("pass", said, proof.as_dict())


# --- exactness -------------------------------------------------------------------------------


def _after(means: Means) -> Iterator[Step]:
    yield Step(
        "exact",
        "answers with reuse against cold ones",
        lambda left, _: _exact(means, left),
        needs=30.0,
    )
    config = means.config
    speculative = (config.model.speculative or {}).get("method")
    fp8 = (config.model.kv_cache_dtype or "").startswith("fp8")
    scheduling = {config.prefill.async_scheduling, config.decode.async_scheduling}
    yield _feature(
        "async_scheduling",
        "exactness with async scheduling",
        "" if True in scheduling else "the configuration does not set `async_scheduling: true`",
    )
    yield _feature(
        "speculative",
        "exactness with speculative decoding (MTP)",
        "" if speculative else "the configuration has no `model.speculative`",
    )
    yield _feature(
        "fp8_kv",
        "exactness with an FP8 KV cache",
        "" if fp8 else "the configuration has no `model.kv_cache_dtype: fp8`",
    )
    yield Step(
        "bench", "reuse off against on, short", lambda left, _: _bench(means, left), needs=_BENCH_S
    )


def _feature(id_: str, title: str, skip: str) -> Step:
    def judge(_: float, past: Past) -> Found:
        exact = past.get("exact", Found("skip", "exactness was not tried"))
        if exact.status == "skip":
            return Found("skip", f"not told: {exact.said}")
        return Found(exact.status, f"these engines run with it: {exact.said}")

    return Step(id_, title, judge, needs=0.0, skip=skip)


def _exact(means: Means, left: float) -> Found:
    with means.servers() as endpoints:
        floor = means.config.router.audit_floor
        asked = compare_turns(endpoints, count=CONVERSATIONS, floor=floor, limits=_LIMITS)
        compared = _within(asked, left)
    return judged(compared, exact=means.config.model.dtype == "float32")


def judged(compared: Sequence[Compared], *, exact: bool) -> Found:
    """What several comparisons say together.

    Args:
        exact: cold runs of this type are equal, so all tokens have to be.
    """
    data = {"exact": exact, "compared": [each.as_dict() for each in compared]}
    problems = [problem for each in compared if (problem := each.problem(exact=exact))]
    if problems:
        return Found("fail", f"{len(problems)} of {len(compared)}: {problems[0]}", data)
    unstable = sum(each.comparison.result == "unstable" for each in compared)
    if not exact and unstable == len(compared):
        return Found("fail", "cold runs do not agree among themselves", data)
    tokens = sum(each.reused for each in compared)
    how = "token for token" if exact else "within the band of cold runs"
    return Found("pass", f"{len(compared)} of {len(compared)} equal {how}, {tokens} reused", data)


# --- bench -----------------------------------------------------------------------------------


def _bench(means: Means, left: float) -> Found:
    slow = choices.on_cpu(means.config)
    shape = (
        Shape(conversations=2, turns=3, lengths=(1000,), question=64, answer=64)
        if slow
        else Shape(conversations=4, turns=5, lengths=(2000, 8000))
    )
    settings = Settings(shape=shape, repeats=1 if slow else 2)
    folder = files.create(means.folder / BENCH, means.environment(settings))
    with means.servers() as endpoints:
        run = Bench(endpoints, settings, folder, admin_key=means.admin_key, listen=means.listen)
        _within(run.run(), left)
    summary = summarise(files.read(folder.path))
    folder.write_summary(summary.as_dict())
    ratios = [f"{r.length:,}: {r.value.value:.1f}" for r in summary.ratios if r.length]
    said = f"the first token with reuse, times as fast, by length: {'; '.join(ratios)}"
    return Found("pass" if ratios else "fail", said, summary.as_dict())


# --- restarts --------------------------------------------------------------------------------


def _restarts(means: Means) -> Iterator[Step]:
    for role in ("prefill", "decode"):
        name = f"{role}-0"
        yield Step(
            f"restart.{role}",
            f"{name} is restarted, and reuse is proven again",
            lambda _, __, name=name: _restart(means, name),  # type: ignore[misc]
            needs=_RESTART_S,
            skip=means.no_restart,
        )


def _restart(means: Means, name: str) -> Found:
    return _proof(means.restart(name))


# --- EFA -------------------------------------------------------------------------------------


def read_bytes(facts: PairFacts) -> dict[str, int]:
    """Bytes that each host's EFA devices have read by RDMA since they were loaded."""
    counted = {}
    for host in facts.hosts:
        values = [each.read_bytes for each in host.efa.devices] if host.efa else []
        if known := [value for value in values if value is not None]:
            counted[host.name] = sum(known)
    return counted


def efa(means: Means, past: Past) -> Found:
    """Whether the hosts' own counters saw what the engines say they pulled."""
    before = past["doctor"].data.get("efa", {})
    after = read_bytes(means.hosts())
    grown = {name: after[name] - before[name] for name in after if name in before}
    data = {"before": before, "after": after, "grown": grown}
    if not grown:
        return Found("skip", "no host has an EFA device that counts its reads", data)
    total = sum(grown.values())
    if "LIBFABRIC" not in choices.backends(means.config):
        return Found("skip", f"KV does not go over LIBFABRIC here; {total} bytes were read", data)
    if total <= 0:
        return Found("fail", "no EFA device read a byte while turns were reused", data)
    return Found("pass", f"{total} bytes were read by RDMA", data)


# --- time ------------------------------------------------------------------------------------


def _within(work: Coroutine[Any, Any, _T], left: float) -> _T:
    """Run it, for as long as the budget lasts."""

    async def limited() -> _T:
        async with asyncio.timeout(left if math.isfinite(left) else None):
            return await work

    try:
        return asyncio.run(limited())
    except TimeoutError as error:
        raise TemporaryError(f"it did not end within the budget, {left:.0f} s were left") from error
