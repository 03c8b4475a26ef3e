"""Checks of what the logs say: each cause that was found is a target of its own."""

import time

from pdctl.base.facts import PairFacts
from pdctl.doctor.rows.runtime import TOLD
from pdctl.doctor.table import Check, Fix, Verdict, failed, passed, skipped, warned
from pdctl.observe.signatures import BY_ID

_SOURCES = 6
_DOWN = "router.engine.down"
_MEANT = frozenset({"router.conversation.unnamed"})
"""What clients may do, and the proof does; a router that minds is told of by `router.kind`."""


def _signature(facts: PairFacts, target: str) -> Verdict:
    logs = facts.logs
    if logs is None:
        return skipped(facts.no_logs or "no log was read")
    found = next((each for each in logs.findings if each.id == target), None)
    if found is None:
        return passed(f"nothing bad in {', '.join(logs.bytes_read) or 'no logs'}")
    if target in _MEANT:
        return passed(f"{found.count} × {found.title}, as in the proof's own cold run")
    if target in TOLD:
        return skipped("told by the checks of `runtime.`")
    where = ", ".join(f"{name} ({count})" for name, count in list(found.sources.items())[:_SOURCES])
    last = f", last at {_clock(found.last)}" if found.last is not None else ""
    evidence = [f"{found.count} × {found.title}, in {where}{last}"]
    evidence += [f"why: {why} ({count})" for why, count in found.why.items()]
    evidence += [found.line] if found.line else []
    known = BY_ID.get(target)
    fix = known.fix if known else None
    if target == _DOWN and _all_answer(facts):
        return warned(*evidence, "all engines answer now", fix=fix, severity="note")
    tell = failed if found.severity == "block" else warned
    return tell(*evidence, fix=fix, severity=found.severity)


def _all_answer(facts: PairFacts) -> bool:
    asked = [each for each in facts.engines if each.name not in facts.not_asked]
    return bool(asked) and all(engine.error is None for engine in asked)


def _clock(ts: float) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.localtime(ts))


def _read(facts: PairFacts, _: str) -> Verdict:
    logs = facts.logs
    if logs is None:
        return skipped(facts.no_logs or "no log was read")
    if logs.problems:
        return warned(*(f"{name}: {why}" for name, why in logs.problems.items()))
    size = sum(logs.bytes_read.values())
    cut = f", of {', '.join(logs.truncated)} the end only" if logs.truncated else ""
    return passed(f"{size} bytes of {len(logs.bytes_read)} logs{cut}")


CHECKS: tuple[Check, ...] = (
    Check(
        id="logs.read",
        title="the logs can be read",
        scope="pair",
        severity="note",
        judge=_read,
        meaning="What the processes say cannot be judged.",
        fix=Fix("look at the files themselves", ("pdctl logs",)),
    ),
    Check(
        id="logs.signature",
        title="nothing that is known to be bad stands in the logs",
        scope="logs",
        severity="block",
        judge=_signature,
        meaning="A line of a log tells of a fault; the target is the signature, which `pdctl "
        "explain` explains.",
        fix=Fix("see the lines", ("pdctl logs",)),
    ),
)
