"""`pdctl audit`: who changed what and when, as this machine and the hosts have written it down."""

from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.cli import options, ui

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.deploy.audit import Trail


def audit(
    file: options.File = options.DEFAULT_FILE,
    name: options.Name = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only changes from then on: 2h, or 2026-11-29T15:30."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Show every change that was made to a deployment: when, who, from where, what.

    Merged from this machine's own log and that of each host. A host that does not answer is told.
    """
    trail = _read(name, file)
    if since is not None:
        trail = _from(trail, since)
    if json:
        changes = [change.as_dict() for change in trail.changes]
        ui.json({"changes": changes, "problems": list(trail.problems)})
        return
    ui.table(
        ["when", "who", "from", "change", "kept by"],
        [[c.at, c.user, c.machine or None, c.change, ", ".join(c.kept)] for c in trail.changes],
    )
    for problem in trail.problems:
        ui.say(f"{ui.mark('warn')} {problem}", "warn")


def _read(name: str | None, file: "Path") -> "Trail":
    from pdctl.config.model import Ec2Target, SshTarget
    from pdctl.deploy import audit, local, reach
    from pdctl.render.check import load_checked
    from pdctl.state.store import StateStore

    if name is not None:
        state = StateStore(options.checked_name(name)).load()
        config = reach.config_of(state) if state else None
    else:
        config = load_checked(file).config
        name = config.name
    far = config is not None and isinstance(config.target, SshTarget | Ec2Target)
    world = reach.world_of(config) if config and far else local.this_machine()
    try:
        reach.try_to_connect(world)
        return audit.read(world, name)
    finally:
        world.close()


def _from(trail: "Trail", since: str) -> "Trail":
    from dataclasses import replace
    from datetime import datetime

    from pdctl.cli.logs import moment

    begin = moment(since)
    kept = [c for c in trail.changes if datetime.fromisoformat(c.at).timestamp() >= begin]
    return replace(trail, changes=tuple(kept))
