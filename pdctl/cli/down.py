"""`pdctl down`: end exactly what a deployment started, and prove it."""

import os
import posixpath
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.base.errors import PermissionDeniedError, UnreachableError, UsageError
from pdctl.cli import options, ui

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pdctl.cli.cloud import Place
    from pdctl.config.model import Config
    from pdctl.deploy.teardown import Removed
    from pdctl.deploy.world import World
    from pdctl.render.model import Place as HostPlace
    from pdctl.state.model import DeploymentState, ProcessRecord
    from pdctl.state.store import StateStore


def down(
    file: options.File = options.DEFAULT_FILE,
    name: options.Name = None,
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
    json: options.Json = False,
    lock_wait: options.LockWait = 0.0,
    purge: Annotated[
        bool,
        typer.Option(
            "--purge",
            help="Also remove logs, and on other hosts engines and models that nobody else uses.",
        ),
    ] = False,
    forget_damaged_state: Annotated[
        bool,
        typer.Option(
            "--forget-damaged-state",
            help="Keep a state file that cannot be read under another name, and go on without.",
        ),
    ] = False,
    verbose: options.Verbose = False,
    region: Annotated[
        str | None,
        typer.Option("--region", help="EC2, with --name and without a record: where to look."),
    ] = None,
) -> None:
    """End the processes of a deployment and remove its sockets. Logs stay, but for `--purge`.

    Ends what `up` recorded, and what carries the deployment's mark, nothing else. On EC2 it ends
    the instances that pdctl made, deletes what it made for them, and proves that nothing is left.
    Run twice, the second time has nothing to remove. At a terminal it asks first.
    """
    from pdctl.cli import cloud

    if forget_damaged_state and dry_run:
        raise UsageError("`--forget-damaged-state` moves a file, which `--dry-run` does not")
    if forget_damaged_state and name is not None:
        _forget_record(options.checked_name(name))
    deployment, config = _named(options.checked_name(name)) if name is not None else _in_file(file)
    if forget_damaged_state:
        _forget_record(deployment)
    work = _Work(deployment, config, yes, lock_wait, forget_damaged_state, verbose, purge)
    place = cloud.place_of(deployment, config, region)
    if dry_run:
        _show_what_would_end(work, place, json=json)
        return
    if place is not None:
        _down_on_ec2(work, place, json=json)
        return
    removed, gone = work.end_processes()
    if removed is None:
        _show_nothing(deployment, gone if purge else None, json=json)
    elif json:
        ui.json({"name": deployment, **removed.as_dict(), **work.purged(gone)})
    else:
        _show(deployment, removed, gone, purge=purge)


def _down_on_ec2(work: "_Work", place: "Place", *, json: bool) -> None:
    """What runs on hosts that pdctl made ends with them, at the latest."""
    from pdctl.cli import cloud

    removed: Removed | None = None
    gone: list[str] = []
    if cloud.may_have_processes(work.name, work.config):
        try:
            removed, gone = work.end_processes()
        except (UnreachableError, PermissionDeniedError) as error:
            cloud.require_none_adopted(work.name, error)
            ui.say(f"{error.message}; the instances are ended with all that runs on them", "warn")
    released = cloud.end_deployment(
        work.name, place, yes=work.yes, lock_wait=work.lock_wait, verbose=work.verbose
    )
    if json:
        ended = removed.as_dict() if removed else {"ended": [], "leftovers": [], "removed": []}
        ui.json({"name": work.name, **ended, **work.purged(gone), **released.as_dict()})
        return
    if removed is not None:
        _show(work.name, removed, gone, purge=work.purge)
    cloud.show_released(released)


@dataclass(frozen=True)
class _Running:
    """A process that belongs to the deployment."""

    name: str
    host: str
    pid: int


@dataclass(frozen=True)
class _Work:
    """What is asked for."""

    name: str
    config: "Config | None"
    yes: bool
    lock_wait: float
    forget: bool
    verbose: bool
    purge: bool

    def purged(self, gone: "list[str]") -> dict[str, object]:
        """What `--purge` adds to the JSON."""
        return {"logs": None, "purged": gone} if self.purge else {}

    def end_processes(self) -> "tuple[Removed | None, list[str]]":
        """What was ended, None when there was nothing; and what was purged."""
        from pdctl.deploy import reach, teardown

        with self._reached() as (world, store, place):
            marks = f"{place.state}/"
            # os.path's answer is no, not an error, for a name that no folder can have.
            if not os.path.exists(store.directory) and not teardown.find_marked(world, marks):
                return None, self._purge(world, place)
            with reach.hold(self.name, world, marks, "pdctl down", wait=self.lock_wait):
                state = _load(store, forget=self.forget)
                removed = None
                if state is not None or teardown.find_marked(world, marks):
                    _ask(world, self.name, state, yes=self.yes, marks=marks)
                    removed = teardown.tear_down(world, store, state, place=place)
                return removed, self._purge(world, place)

    def would_end(self) -> "list[_Running]":
        """All that runs now and would be ended."""
        from pdctl.deploy.teardown import find_marked

        with self._reached() as (world, store, place):
            found = {
                (host, each.ref.pid): posixpath.basename(each.ref.mark)
                for host, each in find_marked(world, f"{place.state}/")
            }
            for record in _alive(world, store.load()):
                assert record.ref is not None
                found.setdefault((record.host, record.ref.pid), record.name)
        return [_Running(name, host, pid) for (host, pid), name in sorted(found.items())]

    @contextmanager
    def _reached(self) -> "Iterator[tuple[World, StateStore, HostPlace]]":
        """The hosts of the deployment, as far as file and record name them."""
        from pdctl.deploy import local, reach
        from pdctl.render.place import place_here, place_of
        from pdctl.state.store import StateStore

        config, store = self.config, StateStore(self.name)
        listener = ui.listener(verbose=self.verbose)
        hosts = reach.recorded_hosts(store)
        world = reach.world_of(config, listener, hosts) if config else local.this_machine(listener)
        try:
            reach.connect_all(world)
            yield world, store, place_of(config) if config else place_here(self.name)
        finally:
            world.close()

    def _purge(self, world: "World", place: "HostPlace") -> "list[str]":
        from pdctl.deploy import teardown

        return list(teardown.purge(world, self.name, place)) if self.purge else []


def _named(name: str) -> "tuple[str, Config | None]":
    """By its name alone: what was recorded says which machines it is on."""
    from pdctl.deploy.reach import config_of
    from pdctl.state.store import StateError, StateStore

    try:
        state = StateStore(name).load()
    except StateError:
        return name, None  # told later, with what can be done
    try:
        return name, config_of(state) if state else None
    except UsageError as error:
        from pdctl.cli import cloud

        # What costs must be ended without its file too, where that leaves nothing running.
        if cloud.place_of(name, None, None) is None:
            raise
        cloud.require_none_adopted(name, error)
        ui.say(f"{error.message}; the hosts are found by their record", "warn")
        return name, None


def _in_file(file: "Path") -> "tuple[str, Config]":
    from pdctl.base.problems import ConfigError
    from pdctl.deploy.local import require_reachable
    from pdctl.render.check import load_checked

    try:
        config = load_checked(file).config
    except ConfigError as error:
        hint = "`pdctl down --name NAME` needs no file"
        raise ConfigError(error.file, error.problems, hints=[*error.hints, hint]) from error
    require_reachable(config, "down")
    return config.name, config


def _load(store: "StateStore", *, forget: bool) -> "DeploymentState | None":
    from pdctl.state.store import StateError

    try:
        return store.load()
    except StateError:
        if not forget:
            raise
        ui.say(f"kept the state file as {store.move_aside()}", "warn")
        return None


def _forget_record(name: str) -> None:
    """The hosts on EC2 are found by their tags without it."""
    from pdctl.state.cloud import CloudStore
    from pdctl.state.store import StateError, move_aside

    store = CloudStore(name)
    try:
        store.load()
    except StateError:
        ui.say(f"kept the record of its hosts as {move_aside(store.path)}", "warn")


def _ask(
    world: "World", name: str, state: "DeploymentState | None", *, yes: bool, marks: str
) -> None:
    """Only where somebody can answer: a script that says `down` has said what it wants."""
    from pdctl.deploy.teardown import find_marked

    if not sys.stdin.isatty():
        return
    running = [
        f"{record.name} (pid {record.ref.pid})" for record in _alive(world, state) if record.ref
    ]
    if not running:
        running = [f"pid {each.ref.pid}" for _, each in find_marked(world, marks)]
    if running:
        ui.confirm(f"End {', '.join(running)} of `{name}`?", yes=yes)


def _alive(world: "World", state: "DeploymentState | None") -> "list[ProcessRecord]":
    """The recorded processes that run."""
    return [
        record
        for record in (state.processes.values() if state else ())
        if record.ref and world.hosts[record.host].alive(record.ref)
    ]


def _show_what_would_end(work: _Work, place: "Place | None", *, json: bool) -> None:
    from pdctl.cli import cloud

    running: list[_Running] = []
    if place is None or cloud.may_have_processes(work.name, work.config):
        try:
            running = work.would_end()
        except (UnreachableError, PermissionDeniedError) as error:
            if place is None:
                raise
            cloud.require_none_adopted(work.name, error)
            ui.say(f"{error.message}; what runs there would end with its instance", "warn")
    things = cloud.made_for(work.name, place) if place else []
    if json:
        told = [{"name": each.name, "host": each.host, "pid": each.pid} for each in running]
        ui.json({"name": work.name, "would_end": told, "would_release": things})
        return
    for each in running:
        ui.data(f"- end {each.name} (pid {each.pid} on {each.host})")
    for thing in things:
        ui.data(f"- end or delete {thing}")
    if not running and not things:
        ui.say(f"nothing to remove: nothing of `{work.name}` runs", "ok")
    ui.say("nothing was changed (`--dry-run`)", "dim")


def _show_nothing(name: str, gone: list[str] | None, *, json: bool) -> None:
    if json:
        empty: dict[str, object] = {"ended": [], "leftovers": [], "removed": [], "logs": None}
        ui.json({"name": name, **empty, **({} if gone is None else {"purged": gone})})
    _show_purged(gone or [])
    ui.say(f"nothing to remove: nothing of `{name}` runs", "ok")


def _show_purged(gone: list[str]) -> None:
    for path in gone:
        ui.say(f"removed {path}")


def _show(name: str, removed: "Removed", gone: list[str], *, purge: bool) -> None:
    count = sum(not each.gone for each in removed.ended) + len(removed.leftovers)
    processes = "1 process" if count == 1 else f"{count} processes"
    ui.say(f"`{name}` is down: {processes} ended, nothing is left", "ok")
    _show_purged(gone)
    if not purge:
        ui.say(f"logs are in {removed.logs}")
