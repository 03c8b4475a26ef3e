"""Ending exactly what a deployment started, and proving that nothing of it is left."""

import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from pdctl.base import paths
from pdctl.base.command import command
from pdctl.base.errors import BadAnswerError
from pdctl.base.events import Note, StepDone, StepSkipped, StepStarted
from pdctl.base.process import ProcessRef, RunningProcess
from pdctl.deploy import audit
from pdctl.deploy.prepare.router import marker_of
from pdctl.deploy.world import World
from pdctl.render.model import Place
from pdctl.state.model import DeploymentState, ProcessRecord
from pdctl.state.store import StateStore
from pdctl.targets.base import Host

_NO_STATE_LIMIT_S = 10.0
_LOOK_LIMIT_S = 20.0
_KEPT = frozenset({"logs"})
_OURS = ("control", "plugin", "example", "keys", "tmp")
_SHARED = (*("engines", "models", "plugins", "supervisor", "scripts", "compiled", "wheels"),)
"""What deployments of a host share, in `base_dir`."""


@dataclass(frozen=True)
class Ended:
    """One process that `down` dealt with; `gone` when it had ended before."""

    name: str
    pid: int
    gone: bool


@dataclass(frozen=True)
class Removed:
    """What `down` did.

    Attributes:
        ended: processes, in the order they were ended.
        leftovers: pids of unrecorded processes that were ended.
        folders: what was removed with all that was in it.
        logs: where the logs still are.
    """

    ended: tuple[Ended, ...]
    leftovers: tuple[int, ...]
    folders: tuple[str, ...]
    logs: str

    def as_dict(self) -> dict[str, object]:
        """The shape of `down --json`."""
        return {
            "ended": [{"name": e.name, "pid": e.pid, "gone": e.gone} for e in self.ended],
            "leftovers": list(self.leftovers),
            "removed": list(self.folders),
            "logs": self.logs,
        }


def tear_down(
    world: World, store: StateStore, state: DeploymentState | None, *, place: Place
) -> Removed:
    """End routers, then engines, then what carries the mark; remove sockets and the state.

    Args:
        place: where the deployment's things are on the hosts.

    Logs and the audit log stay. Interrupted or failed, it can be run again: the state goes last.

    Raises:
        BadAnswerError: something would not end; says what, and keeps the state.
    """
    marks = f"{place.state}/"
    if state is not None and state.phase != "stopping":
        state = replace(state, phase="stopping")
        store.save(state)
    records = list(state.processes.values()) if state else []
    timeout = state.stop_timeout if state else _NO_STATE_LIMIT_S
    routers = [record for record in records if record.role == "router"]
    engines = [record for record in records if record.role != "router"]
    # Routers first, so that no request meets an engine that ends.
    ended = [*_end(world, store.name, routers, timeout), *_end(world, store.name, engines, timeout)]
    found = find_marked(world, marks)
    leftovers = end_leftovers(world, store.name, found, timeout=timeout)
    _prove(world, records, marks)
    folders = _remove_folders(world, place, state)
    store.remove()
    audit.note_on(world, world.hosts, store.name, "down: nothing is left")
    logs = str(place.state / "logs")
    return Removed(tuple(ended), tuple(leftovers), tuple(folders), logs)


def purge(world: World, name: str, place: Place) -> list[str]:
    """Remove what `down` leaves: logs, and on other machines what no other deployment can use.

    Call it when nothing of the deployment runs any more. Audit logs stay, and what is not pdctl's.
    On this machine engines and models are every deployment's, and stay too.

    Returns:
        What was removed, `host: path`.
    """
    removed: list[str] = []
    if world.trail is not None:  # the engines' key, which `up` makes here
        shutil.rmtree(paths.deployment_dir(name) / "keys", ignore_errors=True)
    for host_name, host in world.hosts.items():
        gone: list[PurePosixPath] = []
        if world.trail is None:
            gone = [place.state / folder for folder in (*_KEPT, *_OURS)]
        else:
            gone = [place.state]
            others = _other_deployments(host, place)
            gone += [] if others else _shared(host, place)
            if others:
                world.listen(Note(f"{host_name}: {', '.join(others)} may need engines and models"))
        there = [path for path in gone if host.exists(path)]
        for path in there:
            host.remove_tree(path)
        removed += [f"{host_name}: {path}" for path in there]
        if there:
            said = f"purge {', '.join(map(str, there))}"
            audit.note_on(world, [host_name], name, said)
    return removed


def _shared(host: Host, place: Place) -> list[PurePosixPath]:
    folders = [place.cache / folder for folder in _SHARED]
    python = PurePosixPath(place.pdctl_python)
    # One that the user made is the user's.
    return [*folders, python.parent.parent] if host.exists(marker_of(python)) else folders


def _other_deployments(host: Host, place: Place) -> list[str]:
    listed = host.run(command("ls", "-A", "--", str(place.state.parent)), timeout=_LOOK_LIMIT_S)
    return [each for each in listed.stdout.splitlines() if each != place.state.name]


def find_marked(world: World, marks: str) -> list[tuple[str, RunningProcess]]:
    """All processes that carry the deployment's mark, with the name of their host."""
    return [(name, each) for name, host in world.hosts.items() for each in host.find(marks)]


def end_leftovers(
    world: World, name: str, found: Iterable[tuple[str, RunningProcess]], *, timeout: float
) -> list[int]:
    """End processes that no state speaks of; gives their pids."""
    ended: list[int] = []
    for host_name, process in found:
        host = world.hosts[host_name]
        if not host.alive(process.ref):
            continue  # it belonged to one that was ended before it
        change = f"end leftover pid={process.ref.pid} mark={process.ref.mark}"
        audit.note_on(world, [host_name], name, change)
        host.stop(process.ref, timeout=timeout)
        world.listen(Note(f"ended pid {process.ref.pid}, which an interrupted run left"))
        ended.append(process.ref.pid)
    return ended


def end_process(world: World, name: str, record: ProcessRecord, timeout: float) -> Ended | None:
    """End one recorded process and all that belongs to it; None when it was never started.

    Raises:
        BadAnswerError: something of it will not end.
    """
    ref = record.ref
    if ref is None:
        return None
    host = world.hosts[record.host]
    gone = not host.alive(ref)
    change = f"stop {record.name} pid={ref.pid}{' (gone before)' if gone else ''}"
    audit.note_on(world, [record.host], name, change)
    if not host.stop(ref, timeout=timeout):
        raise _will_not_end([f"{record.name}: pid {ref.pid} or a child of it"], host.name)
    return Ended(record.name, ref.pid, gone)


def _end(world: World, name: str, records: Sequence[ProcessRecord], timeout: float) -> list[Ended]:
    """Side by side: engines take a while to end, and none waits for another."""
    if not records:
        return []
    with ThreadPoolExecutor(max_workers=len(records)) as pool:
        results = [pool.submit(_end_and_tell, world, name, each, timeout) for each in records]
    return [ended for result in results if (ended := result.result()) is not None]


def _end_and_tell(world: World, name: str, record: ProcessRecord, timeout: float) -> Ended | None:
    """`down` has no plan whose steps are told, so each process is one here."""
    if record.ref is None:
        return None
    step, what = f"stop-{record.name}", f"end {record.name} (pid {record.ref.pid})"
    world.listen(StepStarted(step, what))
    began = world.monotonic()
    ended = end_process(world, name, record, timeout)
    if ended is not None and ended.gone:
        world.listen(StepSkipped(step, what, "it was gone already"))
    else:
        world.listen(StepDone(step, what, world.monotonic() - began))
    return ended


def _prove(world: World, records: Sequence[ProcessRecord], marks: str) -> None:
    left = [f"{r.name}: pid {r.ref.pid}" for r in records if r.ref and _lives(world, r, r.ref)]
    left += [
        f"pid {each.ref.pid} on {host}: {' '.join(each.argv)[:120]}"
        for host, each in find_marked(world, marks)
    ]
    if left:
        raise _will_not_end(left, ", ".join(world.hosts))
    for record in records:
        _tell_port(world, record)


def _lives(world: World, record: ProcessRecord, ref: ProcessRef) -> bool:
    return world.hosts[record.host].alive(ref)


def _tell_port(world: World, record: ProcessRecord) -> None:
    """Nothing of ours runs any more, so who listens now is a stranger; worth a word."""
    for port in (record.port, record.side_channel_port):
        holder = world.hosts[record.host].port_holder(record.address, port) if port else None
        if holder:
            world.listen(Note(f"port {port} of {record.name} is in use by {holder}, not by pdctl"))


def _will_not_end(left: list[str], where: str) -> BadAnswerError:
    return BadAnswerError(
        "something of the deployment still runs",
        where=where,
        detail=left,
        hints=["run `pdctl down` again; the state was kept"],
    )


def _remove_folders(world: World, place: Place, state: DeploymentState | None) -> list[str]:
    """Sockets, control files and the like; never logs, never what lies outside or is shared."""
    hosts = {id(host): host for host in world.hosts.values()}.values()
    removed = []
    for path in _removable(place, state.directories if state else ()):
        for host in hosts:
            if host.exists(path):
                host.remove_tree(path)
                removed.append(str(path))
    return removed


def _removable(place: Place, directories: Iterable[str]) -> list[PurePosixPath]:
    """A state file can be edited, so a folder in it is not removed just because it says so."""
    inside = place.state
    # Keys are written as files, so no state speaks of their folder.
    found = {place.temp: None, inside / "keys": None}
    for path in map(PurePosixPath, directories):
        if inside in path.parents and ".." not in path.parts:
            top = inside / path.relative_to(inside).parts[0]
            if top.name not in _KEPT:
                found[top] = None
    return list(found)
