"""`pdctl drain`: nothing new goes to an engine, and what it has ends."""

from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.cli import options, ui

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pdctl.deploy.drains import Told
    from pdctl.state.model import DeploymentState

Engine = Annotated[
    str, typer.Argument(metavar="ROLE/N", help="An engine, such as decode/1.", show_default=False)
]
_BY_HAND = "drained by hand"


def drain(
    engine: Engine,
    file: options.File = options.DEFAULT_FILE,
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
    json: options.Json = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until what runs there has ended.")
    ] = True,
    lock_wait: options.LockWait = 0.0,
) -> None:
    """Send nothing new to an engine, on all routers, and wait until what it has is done.

    It keeps running, and stays drained until `pdctl undrain`, also when it or a router is
    restarted. Handles of a decode server's blocks are given back.
    """
    change(
        engine, file, why=_BY_HAND, yes=yes, dry_run=dry_run, json=json, wait=wait,
        lock_wait=lock_wait,
    )  # fmt: skip


def change(
    engine: str,
    file: "Path",
    *,
    why: str,
    yes: bool,
    dry_run: bool,
    json: bool,
    wait: bool,
    lock_wait: float,
) -> None:
    """Drain engines for a reason, or undrain them for none."""
    from pdctl.cli.which import named
    from pdctl.deploy import drains, local, reach
    from pdctl.engine.choices import ENGINE_ROLES
    from pdctl.render.check import load_checked
    from pdctl.render.place import place_of
    from pdctl.state.store import StateStore

    command = "drain" if why else "undrain"
    config = load_checked(file).config
    local.require_reachable(config, command)
    key = local.keys_of(local.read_secrets(config)).admin
    drains.require_switch(config, key)
    store = StateStore(config.name)
    world = reach.world_of(config, ui.listener(verbose=False))
    try:
        if dry_run:
            state = store.load()
            names = [record.name for record in named(engine, state, ENGINE_ROLES)]
            told = drains.look(world, state, names, key) if state else []
            _answer(config.name, names, told, json=json, word=f"`pdctl {command}` would change")
            return
        marks = f"{place_of(config).state}/"
        with reach.hold(config.name, world, marks, f"pdctl {command}", wait=lock_wait):
            state = store.load()
            names = [record.name for record in named(engine, state, ENGINE_ROLES)]
            assert state is not None
            if why:
                _ask(state, names, yes=yes)
            limit = drains.limit_of(config) if wait else None
            told = drains.set_drained(world, store, state, names, why, key, wait=limit)
    finally:
        world.close()
    _answer(config.name, names, told, json=json, word="drained" if why else "serves again")


def _ask(state: "DeploymentState", names: "Sequence[str]", *, yes: bool) -> None:
    """Where no other of its role is left, this stops service."""
    role = state.processes[names[0]].role
    left = [r for r in state.of_role(role) if r.name not in names and not state.drained.get(r.name)]
    if not left:
        what = "nothing can be served then" if role == "decode" else "nothing is reused then"
        ui.say(f"no other {role} server is left: {what}", "warn")
        ui.confirm(f"Drain {', '.join(names)}?", yes=yes)


def _answer(
    name: str, names: "Sequence[str]", told: "Sequence[Told]", *, json: bool, word: str
) -> None:
    if json:
        ui.json(
            {"name": name, "engines": list(names), "routers": [each.as_dict() for each in told]}
        )
        return
    ui.table(
        ["router", "engine", "drained", "requests", "handles"],
        [
            [each.router, each.engine, each.drained or None, each.turns, each.handles]
            for each in told
        ],
    )
    ui.say(f"{', '.join(names)}: {word}", "ok")
