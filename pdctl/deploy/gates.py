"""Waiting for processes to answer: with a limit, and never in silence."""

from collections.abc import Callable, Sequence

from pdctl.base.errors import TemporaryError, UnreachableError
from pdctl.base.events import StepWaiting
from pdctl.base.words import listed
from pdctl.deploy import causes, logs
from pdctl.deploy.world import World
from pdctl.state.model import ProcessRecord

_POLL_S = 0.2
_FIRST_WORD_S = 3.0
_WORD_EVERY_S = 15.0
_READ_LINES = 2000
_SHOWN_LINES = 20
_LINE_LENGTH = 120


def wait_healthy(
    world: World,
    step: str,
    records: Sequence[ProcessRecord],
    *,
    limit: float,
    on_healthy: Callable[[ProcessRecord], None],
) -> None:
    """Return when all answer; `on_healthy` is called for each as it does.

    A process that ends is noticed at the next look, not at the limit.

    Raises:
        UnreachableError: one ended; carries the last lines of its log.
        TemporaryError: the limit passed; the processes are left running.
    """
    began = world.monotonic()
    told = _FIRST_WORD_S - _WORD_EVERY_S
    seen: dict[str, str] = {}
    waiting = list(records)
    restarts = {record.name: _restarts(world, record) for record in records}
    while waiting:
        for record in list(waiting):
            answer = world.probe(world.near(record) + record.health_path)
            # Looked at after the probe: an answer may have come from a stranger on the port.
            _still_there(world, record, restarts[record.name])
            if answer is None:
                waiting.remove(record)
                on_healthy(record)
            seen[record.name] = answer or ""
        elapsed = world.monotonic() - began
        if not waiting:
            return
        if elapsed >= limit:
            raise _too_late(world, waiting, seen, limit)
        if elapsed - told >= _WORD_EVERY_S:
            told = elapsed
            world.listen(StepWaiting(step, _what_for(world, waiting, seen), elapsed, limit))
        world.sleep(_POLL_S)


def _restarts(world: World, record: ProcessRecord) -> int:
    kept = world.hosts[record.host].kept(record.ref) if record.ref else None
    return kept.restarts if kept else 0


def _still_there(world: World, record: ProcessRecord, restarts: int) -> None:
    """One that is started again has ended too: it will not do better without a change."""
    host = world.hosts[record.host]
    kept = host.kept(record.ref) if record.ref else None
    if kept is not None and kept.restarts == restarts:
        return
    lines = logs.last_lines(host, record, _READ_LINES)
    pid = f" (pid {record.ref.pid})" if record.ref else ""
    raise UnreachableError(
        f"{record.name}{pid} ended while it was starting",
        where=f"{host.name}: {record.log}",
        detail=causes.evidence(lines, _SHOWN_LINES),
        hints=["run `pdctl up` again once the cause is gone; it starts only what is missing"],
    )


def _too_late(
    world: World, waiting: Sequence[ProcessRecord], seen: dict[str, str], limit: float
) -> TemporaryError:
    record = waiting[0]
    lines = logs.last_lines(world.hosts[record.host], record, _READ_LINES)
    return TemporaryError(
        f"{_names(waiting)} did not answer within {limit:g} s",
        where=f"{record.url}{record.health_path}: {seen.get(record.name) or 'no answer'}",
        detail=[f"from {record.log}:", *causes.evidence(lines, _SHOWN_LINES)],
        hints=[
            "it still runs: `pdctl up` waits again, and `target.start_timeout` is the limit",
            "`pdctl down` ends it",
        ],
    )


def _what_for(world: World, waiting: Sequence[ProcessRecord], seen: dict[str, str]) -> str:
    record = waiting[0]
    lines = logs.last_lines(world.hosts[record.host], record, 1)
    said = f"its last log line: {lines[0][:_LINE_LENGTH]}" if lines else "its log is still empty"
    return (
        f"{_names(waiting)} to answer {record.health_path} "
        f"({record.name}: {seen.get(record.name)}; {said})"
    )


def _names(records: Sequence[ProcessRecord]) -> str:
    return listed([record.name for record in records])
