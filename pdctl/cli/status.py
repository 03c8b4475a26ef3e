"""`pdctl status`: what runs, where, and whether it answers."""

from typing import TYPE_CHECKING

import typer

from pdctl.base.exits import ExitCode
from pdctl.cli import options, ui

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.observe.status import RoleStatus, Status

_IDLE_S = 1800.0
"""So long without a request is long for hosts that cost by the hour."""


def status(
    file: options.File = options.DEFAULT_FILE,
    name: options.Name = None,
    json: options.Json = False,
) -> None:
    """Show the processes of a deployment, their health, versions and TTLs.

    Exit status 0: everything answers. 1: something does not, or nothing was started.
    """
    found = _read(file, name)
    if json:
        ui.json(found.as_dict())
    else:
        _show(found)
    if not found.healthy:
        raise typer.Exit(int(ExitCode.BAD_ANSWER))


def _read(file: "Path", name: str | None) -> "Status":
    import asyncio

    from pdctl.deploy import local, reach
    from pdctl.observe.status import Status, read_status
    from pdctl.render.check import load_checked
    from pdctl.state.store import StateStore

    config = None if name is not None else load_checked(file).config
    deployment = config.name if config else options.checked_name(name or "")
    state = StateStore(deployment).load()
    if state is None:
        return Status(deployment, config.target.kind if config else "local", (), None, None)
    if state.target != "local":
        config = config or reach.config_of(state)
    world = reach.world_of(config) if config and state.target != "local" else local.this_machine()
    try:
        reach.try_to_connect(world)
        return asyncio.run(read_status(world.hosts, state, world.near))
    finally:
        world.close()


def _show(found: "Status") -> None:
    from pdctl.state.lock import read_holder

    if not found.roles:
        ui.say(f"nothing of `{found.name}` was started; `pdctl up` starts it")
    else:
        ui.table(
            ["process", "host", "pid", "port", "health", "version", "age"],
            [_row(role) for role in found.roles],
        )
    _show_cost(found)
    _show_ttl(found)
    if found.router_limits:
        ui.say("the router is upstream's example proxy, for comparison only:", "warn")
    for limit in found.router_limits:
        ui.say(f"  {ui.mark('warn')} {limit}", "warn")
    for role in found.roles:
        _show_role(role)
    if holder := read_holder(found.name):
        ui.say(f"{holder} works on it", "warn")
    elif found.phase in ("starting", "stopping"):
        again = "up" if found.phase == "starting" else "down"
        ui.say(f"the last `pdctl {again}` did not end; run it again", "warn")
    if found.reused_tokens is not None:
        ui.say(f"proven for these processes: {found.reused_tokens} tokens reused in turn 2")


def _show_role(role: "RoleStatus") -> None:
    """What is to be said of one process beside its row."""
    if not role.healthy:
        ui.say(f"{ui.mark('bad')} {role.name}: {role.problem}", "bad")
    if role.drained:
        ui.say(f"{ui.mark('warn')} {role.name} gets nothing new: {role.drained}", "warn")
    if role.restarts:
        times = "once" if role.restarts == 1 else f"{role.restarts} times"
        ui.say(f"{role.name} was started again {times} since `up` started it", "warn")


def _show_cost(found: "Status") -> None:
    """What runs on EC2 costs whether it serves or not."""
    import time

    from pdctl.state.cloud import CloudStore

    cloud = CloudStore(found.name).load()
    if cloud is None or not cloud.hosts:
        return
    from pdctl.deploy.ec2 import costs

    ui.say(costs(cloud, now=time.time()), "warn" if cloud.made else "plain")
    if not cloud.made:
        return
    ends = f"`pdctl down --name {found.name}` ends the cost"
    if not any(role.healthy for role in found.roles):
        ui.say(f"nothing on them answers: {ends}", "bad")
    idle = [role.idle_s for role in found.roles if role.idle_s is not None]
    if idle and min(idle) >= _IDLE_S:
        ui.say(f"nobody has asked anything for {min(idle) / 3600:.1f} h: {ends}", "bad")


def _show_ttl(found: "Status") -> None:
    from pdctl.base.durations import format_duration

    if found.decoder_ttl is not None and found.router_ttl is not None:
        ui.say(
            f"decode keeps blocks {format_duration(found.decoder_ttl)}, "
            f"the router offers them {format_duration(found.router_ttl)}"
        )
    if found.configured is not None:
        ui.say(
            "these were set while it ran; the configuration says "
            f"{format_duration(found.configured.decoder_ttl)} and "
            f"{format_duration(found.configured.router_ttl)}, which `pdctl up` returns to",
            "warn",
        )


def _row(role: "RoleStatus") -> list[object]:
    from pdctl.base.durations import format_duration

    age = None if role.age_s is None else format_duration(role.age_s)
    health = f"{ui.mark('ok')} ok" if role.healthy else f"{ui.mark('bad')} no"
    return [role.name, role.host, role.pid, role.port, health, role.version, age]
