"""`pdctl down`: end exactly what a deployment started, and prove it."""

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.cli import options, ui

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.config.model import Config
    from pdctl.deploy.teardown import Removed
    from pdctl.deploy.world import World
    from pdctl.state.model import DeploymentState
    from pdctl.state.store import StateStore


def down(
    file: options.File = options.DEFAULT_FILE,
    name: options.Name = None,
    yes: options.Yes = False,
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
) -> None:
    """End the processes of a deployment and remove its sockets. Logs stay, but for `--purge`.

    Ends what `up` recorded, and what carries the deployment's mark, nothing else. Run twice, the
    second time has nothing to remove. At a terminal it asks first.
    """
    from pdctl.deploy import local, reach, teardown
    from pdctl.render.place import place_here, place_of
    from pdctl.state.store import StateStore

    deployment, config = _named(options.checked_name(name)) if name is not None else _in_file(file)
    store = StateStore(deployment)
    place = place_of(config) if config else place_here(deployment)
    marks = f"{place.state}/"
    listener = ui.listener(verbose=verbose)
    hosts = reach.recorded_hosts(store)
    world = reach.world_of(config, listener, hosts) if config else local.this_machine(listener)
    try:
        reach.connect_all(world)
        # os.path's answer is no, not an error, for a name that no folder can have.
        if not os.path.exists(store.directory) and not teardown.find_marked(world, marks):
            gone = teardown.purge(world, deployment, place) if purge else []
            _show_nothing(deployment, gone if purge else None, json=json)
            return
        with reach.hold(deployment, world, marks, "pdctl down", wait=lock_wait):
            state = _load(store, forget=forget_damaged_state)
            removed = None
            if state is not None or teardown.find_marked(world, marks):
                _ask(world, deployment, state, yes=yes, marks=marks)
                removed = teardown.tear_down(world, store, state, place=place)
            gone = teardown.purge(world, deployment, place) if purge else []
    finally:
        world.close()
    if removed is None:
        _show_nothing(deployment, gone if purge else None, json=json)
    elif json:
        purged: dict[str, object] = {"logs": None, "purged": gone} if purge else {}
        ui.json({"name": deployment, **removed.as_dict(), **purged})
    else:
        _show(deployment, removed, gone, purge=purge)


def _named(name: str) -> "tuple[str, Config | None]":
    """By its name alone: what was recorded says which machines it is on."""
    from pdctl.deploy.reach import config_of
    from pdctl.state.store import StateError, StateStore

    try:
        state = StateStore(name).load()
    except StateError:
        return name, None  # told later, with what can be done
    return name, config_of(state) if state else None


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


def _ask(
    world: "World", name: str, state: "DeploymentState | None", *, yes: bool, marks: str
) -> None:
    """Only where somebody can answer: a script that says `down` has said what it wants."""
    from pdctl.deploy.teardown import find_marked

    if not sys.stdin.isatty():
        return
    running = [
        f"{record.name} (pid {record.ref.pid})"
        for record in (state.processes.values() if state else ())
        if record.ref and world.hosts[record.host].alive(record.ref)
    ]
    if not running:
        running = [f"pid {each.ref.pid}" for _, each in find_marked(world, marks)]
    if running:
        ui.confirm(f"End {', '.join(running)} of `{name}`?", yes=yes)


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
