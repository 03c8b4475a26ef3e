"""`pdctl set-ttl`: for how long decode keeps blocks, changed while everything runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.base.errors import BadAnswerError, PermissionDeniedError, UnreachableError, UsageError
from pdctl.cli import options, ui

if TYPE_CHECKING:
    from pdctl.config.model import Config
    from pdctl.deploy.survey import Wanted
    from pdctl.deploy.ttl import Changed
    from pdctl.deploy.world import World
    from pdctl.observe.outlook import Outlook
    from pdctl.state.model import DeploymentState, Intervals


def set_ttl(
    seconds: Annotated[
        str, typer.Argument(metavar="SECONDS", help="Such as 300, 5m or 1h30m.", show_default=False)
    ],
    restart: Annotated[
        bool,
        typer.Option("--restart", help="Write the file and restart what must be, as `up` does."),
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", help="Also write the value into the configuration file.")
    ] = False,
    file: options.File = options.DEFAULT_FILE,
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
    json: options.Json = False,
    lock_wait: options.LockWait = 0.0,
) -> None:
    """Change decode's TTL and the routers', in the order in which no handle outlives its blocks.

    It holds from the next turn that finishes; handles from before keep their deadline, and nothing
    restarts. First it says what the value means for decode's memory. It lasts until `pdctl up` or
    a restart returns to the configuration; `--write` makes it the configuration's.

    Exit status 0: it is in force, as decode's next handle says. 1: a server does not take it, or
    decode would have too little room left (`--yes` sets it all the same).
    """
    from pdctl.deploy import local, reach, ttl
    from pdctl.engine import choices
    from pdctl.render.check import load_checked
    from pdctl.state.store import StateStore

    config = load_checked(file).config
    local.require_reachable(config, "set-ttl")
    wanted = intervals_of(config, seconds)
    store = StateStore(config.name)
    secrets = local.read_secrets(config)
    plan = local.wanted_of(config, file, secrets, verify=True)
    world = reach.world_of(config, ui.listener(verbose=False))
    try:
        state = _running(config, store.load())
        outlook = ttl.look(world, plan, state, wanted)
        if not json:
            _show_outlook(state, wanted, outlook)
        if dry_run:
            _answer(config, state, wanted, outlook, None, json=json, file=None)
            return
        _refuse_hunger(outlook, yes=yes)
        if write:  # what cannot be written is told before anything changes
            _edited(file, config, wanted)
        if restart:
            _write(file, config, wanted)
        else:
            with reach.hold(config.name, world, plan.marks, "pdctl set-ttl", wait=lock_wait):
                state = _running(config, store.load())
                _require_live(world, plan, state)
                changed = ttl.set_ttl(
                    world, store, state, wanted, plan.keys, choices.served_name(config)
                )
                if write:
                    _write(file, config, wanted)
                    ttl.note_written(store, wanted)
            shown = file if write else None
            _answer(config, state, wanted, outlook, changed, json=json, file=shown)
    finally:
        world.close()
    if restart:
        from pdctl.cli.up import up

        up(file=file, yes=yes, json=json, lock_wait=lock_wait)


def intervals_of(config: "Config", text: str) -> "Intervals":
    """Both TTLs for what the user wrote: the routers' is safe, and no longer than the file says.

    Raises:
        UsageError: it is no duration, or too short for any router TTL to be safe.
    """
    from pdctl.base.durations import parse_duration
    from pdctl.engine.ttl import SHORTEST_DECODER_TTL_S, no_safe_ttl, safe_router_ttl
    from pdctl.state.model import Intervals

    try:
        decoder = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"`{text}` is no TTL: {error}") from error
    if decoder < SHORTEST_DECODER_TTL_S:
        raise UsageError(no_safe_ttl(decoder), where="SECONDS")
    safe = safe_router_ttl(decoder)
    return Intervals(decoder, safe if config.router.ttl is None else min(config.router.ttl, safe))


def _running(config: "Config", state: "DeploymentState | None") -> "DeploymentState":
    if config.router.kind != "pdctl":
        raise UsageError(
            "the example proxy offers handles for 450 s, whatever decode keeps",
            where="key `router.kind`",
            expected="`pdctl`, whose TTL can be changed",
        )
    if state is None or not any(record.role == "decode" for record in state.processes.values()):
        raise UnreachableError(
            f"nothing of `{config.name}` runs, so there is nothing to change",
            hints=["set `kv.decoder_ttl` in the file; `pdctl up` starts with it"],
        )
    return state


def _require_live(world: "World", plan: "Wanted", state: "DeploymentState") -> None:
    from pdctl.deploy import ttl

    if reasons := ttl.why_not_live(world, state, plan.marks):
        raise BadAnswerError(
            "decode's TTL cannot be changed while it runs; nothing was changed",
            detail=[f"{name}: {why}" for name, why in reasons.items()],
            hints=[
                "`--restart` writes the value into the file and restarts decode with it, which "
                "ends its conversations' handles and what runs there",
                "`engine.plugin: auto` puts pdctl's plugin into engines that start",
            ],
        )


def _refuse_hunger(outlook: "Outlook", *, yes: bool) -> None:
    if outlook.starves and not yes:
        raise BadAnswerError(
            f"decode would have too little room left: up to {outlook.share:.0%} of its KV cache "
            "would be retained",
            expected="at most 80 %, so that new requests need not wait",
            hints=["a shorter TTL", "`--yes` sets it all the same; the router then gives back "
                   "what is worth least"],
        )  # fmt: skip


def _edited(file: Path, config: "Config", wanted: "Intervals") -> bytes:
    """The file with the value in it, if it can be written and stays without problems.

    Raises:
        UsageError, PermissionDeniedError: it cannot be written.
        BadAnswerError: the value cannot be set in it.
        ConfigError: it would have problems.
    """
    import os

    from pdctl.config.edit import with_value
    from pdctl.config.load import loads
    from pdctl.engine.validate import problems

    if str(file) == "-":
        raise UsageError("standard input cannot be written to", where="--file -", expected="a file")
    target = file.resolve()
    if not (target.is_file() and os.access(target.parent, os.W_OK)):
        raise PermissionDeniedError(
            "the value cannot be written: the file cannot be replaced",
            where=str(file),
            expected="a file in a folder that can be written in",
        )
    text = file.read_bytes().decode("utf-8")
    lines = text.count("\n")
    windows = lines > 0 and text.count("\r\n") == lines
    if windows:
        text = text.replace("\r\n", "\n")
    text = with_value(text, ("kv", "decoder_ttl"), wanted.decoder_ttl)
    if config.router.ttl is not None:
        text = with_value(text, ("router", "ttl"), wanted.router_ttl)
    data = (text.replace("\n", "\r\n") if windows else text).encode()
    loads(data, file=str(file), base=file.absolute().parent, checks=[problems])
    return data


def _write(file: Path, config: "Config", wanted: "Intervals") -> None:
    """Put the value into the file, which is replaced whole or not at all."""
    import os
    import tempfile

    data = _edited(file, config, wanted)
    target = file.resolve()
    scratch = None
    try:
        handle, scratch = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
        with open(handle, "wb") as out:
            out.write(data)
        os.chmod(scratch, target.stat().st_mode & 0o777)
        os.replace(scratch, target)
    except OSError as error:
        raise PermissionDeniedError(
            f"the value could not be written into the file: {error.strerror}",
            where=str(file),
            expected="a file that can be replaced; it is as it was",
            hints=[f"set `kv.decoder_ttl: {wanted.decoder_ttl:.12g}` there by hand"],
        ) from error
    finally:
        if scratch is not None and os.path.exists(scratch):
            os.unlink(scratch)


def _answer(
    config: "Config",
    state: "DeploymentState",
    wanted: "Intervals",
    outlook: "Outlook",
    changed: "Changed | None",
    *,
    json: bool,
    file: Path | None,
) -> None:
    from pdctl.base.durations import format_duration

    if json:
        ui.json(_as_dict(config, state, wanted, outlook, changed, file))
        return
    if changed is None:
        ui.say("nothing was changed (`--dry-run`)", "dim")
        return
    ui.say(
        f"decode keeps blocks {format_duration(wanted.decoder_ttl)}, the routers offer them "
        f"{format_duration(wanted.router_ttl)}, from the next turn that finishes",
        "ok",
    )
    if file is not None:
        ui.say(f"{file} says so too, and `pdctl up` restarts nothing for it", "dim")


def _as_dict(
    config: "Config",
    state: "DeploymentState",
    wanted: "Intervals",
    outlook: "Outlook",
    changed: "Changed | None",
    file: Path | None,
) -> dict[str, object]:
    kept = changed.kept_for if changed else {}
    return {
        "name": config.name,
        "changed": changed is not None,
        "decoder_ttl": {"before": state.ttl.decoder_ttl, "after": wanted.decoder_ttl},
        "router_ttl": {"before": state.ttl.router_ttl, "after": wanted.router_ttl},
        "outlook": outlook.as_dict(),
        "decode": [
            {
                "name": name,
                "kept_for": None if each is None else [round(each.least, 3), round(each.most, 3)],
            }
            for name, each in kept.items()
        ],
        "routers": [router.as_dict() for router in changed.routers] if changed else [],
        "written": None if file is None else str(file),
    }


def _show_outlook(state: "DeploymentState", wanted: "Intervals", outlook: "Outlook") -> None:
    from pdctl.base.durations import format_duration

    ui.say(
        f"decode: {format_duration(state.ttl.decoder_ttl)} → "
        f"{format_duration(wanted.decoder_ttl)}; routers: "
        f"{format_duration(state.ttl.router_ttl)} → {format_duration(wanted.router_ttl)}"
    )
    if outlook.expected_tokens is not None and outlook.capacity_tokens:
        ui.say(
            f"retained: {outlook.retained_tokens:,} tokens now, at most about "
            f"{outlook.expected_tokens:,} of decode's {outlook.capacity_tokens:,} then "
            f"({outlook.share:.0%})",
            "warn" if outlook.starves else "plain",
        )
    else:
        ui.say("retained: nobody says how much is, or how much there is room for", "dim")
    if outlook.late_then is not None:
        ui.say(
            f"turns that come too late: {outlook.late_now:.0%} now, {outlook.late_then:.0%} then "
            f"(of {outlook.gaps:,} in the request log)"
        )
    else:
        ui.say("turns that come too late: no request log says (`router.request_log`)", "dim")
