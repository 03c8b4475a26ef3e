"""Checks of what the pair does."""

import time
from collections.abc import Mapping

from pdctl.base.durations import format_duration
from pdctl.base.facts import PairFacts, ServingFacts
from pdctl.base.misses import is_meant
from pdctl.base.runfacts import LogFacts, LogFinding
from pdctl.doctor.table import Check, Fix, Verdict, failed, passed, skipped, warned

LATE = ("kv.read.declined", "kv.read.after_release")
LOST_PEER = (
    "nixl.peer.disconnected",
    "nixl.transfer.failed",
    "kv.load.failed",
    "kv.load.recovered",
    "nixl.peer.invalidated",
)
NEVER = ("router.cache.never_hits",)
TOLD = frozenset((*LATE, *LOST_PEER, *NEVER))
"""Signatures that a row here tells, so that they are not told twice."""

_TOGETHER_S = 10.0
"""Engines that are started together are not further apart than this."""
_FEW = 3
"""Turns that might have been reused, from which on it is said that none was."""
_MANY_LEASES = 5


def _no_logs(facts: PairFacts) -> Verdict:
    return skipped(facts.no_logs or "no log was read")


def _when(facts: PairFacts, finding: LogFinding) -> str:
    if finding.last is None:
        return "at an unknown time"
    ago = max(0.0, facts.taken_at - finding.last)
    clock = time.strftime("%H:%M:%S", time.localtime(finding.last))
    return f"last at {clock}, {format_duration(round(ago))} ago"


def _told(facts: PairFacts, finding: LogFinding) -> str:
    where = ", ".join(finding.sources)
    return f"{finding.count} × {finding.title}, in {where}, {_when(facts, finding)}"


# --- reads that fail -------------------------------------------------------------------------


def _late(facts: PairFacts, _: str) -> Verdict:
    logs = facts.logs
    if logs is None:
        return _late_by_counters(facts)
    found = logs.of(*LATE)
    if not found:
        return passed("no read came too late")
    return failed(*(_told(facts, each) for each in found), *_lines(found))


def _late_by_counters(facts: PairFacts) -> Verdict:
    """Without logs, decode's own count is left; it says neither when nor for whom."""
    counts = {
        e.name: e.metrics.nixl_after_expiry
        for e in facts.role("decode")
        if e.metrics and e.metrics.nixl_after_expiry is not None
    }
    if not counts:
        return _no_logs(facts)
    late = {name: count for name, count in counts.items() if count}
    if not late:
        return passed("decode counts no read after it gave blocks up")
    return warned(
        *(f"{name}: {count} reads after expiry since its start" for name, count in late.items())
    )


def _lines(found: tuple[LogFinding, ...]) -> list[str]:
    return [found[0].line] if found[0].line else []


def _start_of(facts: PairFacts, engine: ServingFacts) -> float | None:
    """When the process that answers was started; the engine's own word first."""
    if engine.metrics is not None and engine.metrics.process_start:
        return engine.metrics.process_start
    process = facts.process(engine.name)
    return process.started_at if process else None


def _restarted(facts: PairFacts, _: str) -> Verdict:
    logs = facts.logs
    if logs is None:
        return _no_logs(facts)
    found = tuple(f for f in logs.of(*LOST_PEER) if any("prefill" in s for s in f.sources))
    if not found:
        return _forgotten(facts, logs)
    starts = {e.name: _start_of(facts, e) for e in facts.engines}
    prefill = max((starts[e.name] or 0.0 for e in facts.role("prefill")), default=0.0)
    last = max((f.last for f in found if f.last is not None), default=None)
    for engine in facts.role("decode"):
        began = starts[engine.name]
        if began is None or last is None or began < prefill + _TOGETHER_S or last < began - 1:
            continue
        clock = time.strftime("%H:%M:%S", time.localtime(began))
        return failed(
            f"{engine.name} was started again at {clock}, after prefill; handles from before are "
            "dead",
            *(_told(facts, each) for each in found),
            *_lines(found),
        )
    return passed("reads failed, but not because decode was started again")


def _forgotten(facts: PairFacts, logs: LogFacts) -> Verdict:
    """What pdctl's router makes of a restart: it forgets the handles, and no read fails."""
    seen = logs.of("router.engine.restarted")
    if seen:
        return warned(
            *(_told(facts, each) for each in seen),
            "the router forgot its handles; those conversations compute their next turn anew",
            severity="note",
        )
    return passed("no read met an engine that was gone")


def _transfers(facts: PairFacts, _: str) -> Verdict:
    logs = facts.logs
    if logs is not None:
        # What a late read brings with it is told by the late read.
        found = tuple(f for f in logs.of(*LOST_PEER) if f.follows not in LATE)
        if not found:
            return passed("no transfer failed")
        return failed(*(_told(facts, each) for each in found), *_lines(found))
    counts = {
        e.name: (e.metrics.nixl_failed, e.metrics.nixl_transfers or 0)
        for e in facts.engines
        if e.metrics and e.metrics.nixl_failed is not None
    }
    if not counts:
        return _no_logs(facts)
    bad = {name: (lost, done) for name, (lost, done) in counts.items() if lost}
    if not bad:
        return passed("no engine counts a failed transfer")
    return warned(
        *(f"{n}: {lost} failed, {done} done since its start" for n, (lost, done) in bad.items())
    )


def _leases(facts: PairFacts, _: str) -> Verdict:
    """Prefill's blocks that decode never fetched; a few are those of clients that left."""
    fetched = sum(e.metrics.nixl_transfers or 0 for e in facts.role("decode") if e.metrics)
    counts = {
        e.name: e.metrics.nixl_expired
        for e in facts.role("prefill")
        if e.metrics and e.metrics.nixl_expired is not None
    }
    if not counts:
        return skipped("prefill does not count them")
    lost = sum(counts.values())
    said = f"prefill gave up the blocks of {lost} requests; decode fetched those of {fetched}"
    if lost > _MANY_LEASES and lost > fetched / 2:
        return warned(said)
    return passed(said)


# --- reuse -----------------------------------------------------------------------------------


def _misses(facts: PairFacts, _: str) -> Verdict:
    if facts.logs is not None and (found := facts.logs.of(*NEVER)):
        return failed(_told(facts, found[0]), _rate(facts.logs))
    metrics = facts.router.metrics if facts.router else None
    if metrics is not None and metrics.reasons:
        return _misses_by_reason(metrics.reasons)
    if facts.logs is not None and facts.logs.hit + facts.logs.miss:
        return passed(_rate(facts.logs))
    return skipped("no turns were counted")


def _misses_by_reason(reasons: Mapping[str, float]) -> Verdict:
    hits = sum(count for key, count in reasons.items() if key.split(" ")[0] in ("HIT", "PARTIAL"))
    lost = {
        key.partition(" ")[2]: count
        for key, count in reasons.items()
        if key.startswith("MISS ") and not is_meant(key.partition(" ")[2])
    }
    turns = sum(reasons.values())
    said = f"the router counts {hits:.0f} turns that reused, of {turns:.0f}"
    if not hits and sum(lost.values()) >= _FEW:
        why = ", ".join(f"{reason} ({count:.0f})" for reason, count in lost.items())
        return failed(said, f"why not: {why}")
    return passed(said)


def _rate(logs: LogFacts) -> str:
    turns = logs.hit + logs.miss
    kinds = ", ".join(f"{count} {kind}" for kind, count in logs.misses.items())
    return f"{logs.hit} HIT of {turns} turns in the logs" + (f" ({kinds})" if kinds else "")


def _bytes(facts: PairFacts, _: str) -> Verdict:
    if facts.two_turn is not None and facts.two_turn.bytes_pulled:
        return passed(f"prefill pulled {facts.two_turn.bytes_pulled} bytes in the proof")
    metrics = facts.router.metrics if facts.router else None
    pulled = [
        e.metrics.nixl_bytes
        for e in facts.role("prefill")
        if e.metrics and e.metrics.nixl_bytes is not None
    ]
    if metrics is None or not metrics.reused_tokens:
        return skipped("no turn was reused yet")
    if not pulled:
        return skipped("prefill does not count what it pulls")
    if not sum(pulled):
        return failed(
            f"the router counts {metrics.reused_tokens} reused tokens, prefill not one byte pulled"
        )
    return passed(f"prefill pulled {sum(pulled)} bytes from decode since its start")


def _output(facts: PairFacts, _: str) -> Verdict:
    proof = facts.two_turn
    if proof is None:
        return skipped(_no_proof(facts))
    if proof.output_equal is None:
        return skipped("the model's type gives no exact answer to compare with")
    if not proof.output_equal:
        return failed(proof.reason or "the answer with reuse differs from the cold one")
    return passed("the answer with reuse is that of a cold run, token for token")


def _transport(facts: PairFacts, _: str) -> Verdict:
    logs, settings = facts.logs, facts.settings
    if logs is None:
        return _no_logs(facts)
    seen = {name: found for name, found in logs.backends.items() if found}
    if not seen:
        return skipped("no log says which transport was loaded")
    said = [f"{name}: {', '.join(found)}{_rails(logs, name)}" for name, found in seen.items()]
    wanted = set(settings.backends) if settings and settings.target != "external" else set()
    lacking = [name for name, found in seen.items() if wanted - set(found)]
    if lacking:
        return failed(*said, f"configured is {', '.join(sorted(wanted))}")
    return passed(*said)


def _rails(logs: LogFacts, name: str) -> str:
    rails = logs.rails.get(name, ())
    return f" over {len(rails)} interfaces ({', '.join(rails[:2])} …)" if rails else ""


def _two_turn(facts: PairFacts, _: str) -> Verdict:
    proof = facts.two_turn
    if proof is None:
        return skipped(_no_proof(facts))
    if proof.ok:
        return passed(
            f"turn 2 reused {proof.reused_tokens} of {proof.prompt_tokens} prompt tokens",
            f"prefill pulled {proof.bytes_pulled} bytes from decode",
        )
    hint = Fix("; ".join(proof.hints)) if proof.hints else None
    return failed(proof.reason, fix=hint)


def _no_proof(facts: PairFacts) -> str:
    if facts.no_proof:
        return f"the two-turn proof was not run: {facts.no_proof}"
    return "the two-turn proof was not run; `pdctl verify` runs it"


CHECKS: tuple[Check, ...] = (
    Check(
        id="runtime.late_reads",
        title="no turn reads blocks that decode has given up",
        scope="pair",
        severity="degrade",
        judge=_late,
        meaning="Turns that come after the TTL, or within 5 s of it, with their handle attached: "
        "prefill declines the read and the request fails, or runs twice.",
        fix=Fix(
            "let the router stop earlier: leave `router.ttl` out, or raise `kv.decoder_ttl`",
            ("pdctl logs --role prefill", "pdctl up"),
        ),
    ),
    Check(
        id="runtime.restarted",
        title="no turn reads from a decode that was there before",
        scope="pair",
        severity="degrade",
        judge=_restarted,
        meaning="Blocks are lost with the process that held them. Whoever still offers handles of "
        "it makes requests fail.",
        fix=Fix(
            "nothing is to be done if it was once, with pdctl's router; any other router must "
            "forget its handles when decode restarts",
            ("pdctl logs --role prefill", "pdctl status"),
        ),
    ),
    Check(
        id="runtime.transfers",
        title="no transfer fails",
        scope="pair",
        severity="degrade",
        judge=_transfers,
        meaning="KV could not be read from the other engine; the request failed, or was computed "
        "again.",
        fix=Fix("the logs say what the transport said", ("pdctl logs",)),
        needs=("runtime.restarted",),
    ),
    Check(
        id="runtime.transport",
        title="KV goes over the transport that is configured",
        scope="pair",
        severity="degrade",
        judge=_transport,
        meaning="NIXL loaded another transport, which may be slower by orders of magnitude.",
        fix=Fix("see why it does not load", ("pdctl logs --grep NIXL",)),
    ),
    Check(
        id="runtime.leases",
        title="decode fetches what prefill computes",
        scope="pair",
        severity="degrade",
        judge=_leases,
        meaning="Prefill computes for requests that decode never takes up: its memory is held for "
        "nothing, and something between the two is broken.",
        fix=Fix("see what the router and decode say of those requests", ("pdctl logs",)),
        needs=("engine.health",),
    ),
    Check(
        id="runtime.output",
        title="answers with reuse are those without",
        scope="pair",
        severity="block",
        judge=_output,
        meaning="Wrong answers without an error.",
        fix=Fix("turn reuse off and report it", ("pdctl reuse off", "pdctl verify")),
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
    Check(
        id="runtime.bytes",
        title="prefill's counters show what the router counts as reused",
        scope="pair",
        severity="degrade",
        judge=_bytes,
        meaning="Tokens are counted as reused and no KV came from decode.",
        fix=Fix("run the proof, which compares both", ("pdctl verify",)),
        needs=("engine.health", "router.reach"),
    ),
    Check(
        id="runtime.misses",
        title="turns that go on are reused",
        scope="pair",
        severity="degrade",
        judge=_misses,
        meaning="Every turn is computed from the beginning, as without reuse.",
        fix=Fix("the router's lines say why each turn was not", ("pdctl logs --role router",)),
    ),
)
