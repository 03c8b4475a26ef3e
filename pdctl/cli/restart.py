"""`pdctl restart`: processes that change nothing, ended and started again in good order."""

from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.base.errors import UsageError
from pdctl.cli import options, ui

if TYPE_CHECKING:
    from collections.abc import Collection

    from pdctl.deploy.survey import Survey


def restart(
    which: Annotated[
        str,
        typer.Argument(metavar="ROLE[/N]", help="Such as decode/1, or decode for all of them."),
    ],
    file: options.File = options.DEFAULT_FILE,
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
    json: options.Json = False,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="End with the two-turn proof.")
    ] = True,
    lock_wait: options.LockWait = 0.0,
    verbose: options.Verbose = False,
) -> None:
    """Restart processes one after the other, drained first and proven before the next.

    What is down is started as well. What the file changed is for `pdctl up`, which restarts what
    it has to.
    """
    from pdctl.cli.plan import show_plan
    from pdctl.cli.up import agree, tell
    from pdctl.cli.which import named
    from pdctl.deploy import local, proof, reach, runner
    from pdctl.deploy.survey import survey
    from pdctl.render.check import load_checked
    from pdctl.state.store import StateStore

    config = load_checked(file).config
    local.require_reachable(config, "restart")
    secrets = local.read_secrets(config)
    wanted = local.wanted_of(config, file, secrets, verify=verify)
    store = StateStore(config.name)
    names = [record.name for record in named(which, store.load())]
    world = reach.world_of(config, ui.listener(verbose=verbose))
    try:
        reach.connect_all(world)
        if dry_run:
            found = survey(world, wanted, store, restart=names)
            _require_no_change(found, names)
            show_plan(found.plan, json=json)
            return
        with reach.hold(config.name, world, wanted.marks, "pdctl restart", wait=lock_wait):
            found = survey(world, wanted, store, restart=names)
            _require_no_change(found, names)
            agree(found.plan, yes=yes)
            prove = proof.two_turns(config, secrets, world)
            outcome = runner.up(world, wanted, store, found, prove=prove)
    finally:
        world.close()
    tell(config, file, outcome, json=json)


def _require_no_change(found: "Survey", names: "Collection[str]") -> None:
    """A restart is no way to change something by the way."""
    from pdctl.plan.model import Stop

    state = found.state
    others = [
        step.action.name
        for step in found.plan.steps
        if isinstance(step.action, Stop) and step.action.name not in names
    ]
    changed = [
        step
        for step in found.plan.steps
        if isinstance(step.action, Stop) and "configuration" in step.why
    ]
    if state is not None and (others or changed):
        raise UsageError(
            "the file has changed since these were started",
            detail=[f"{step.what}: {step.why}" for step in changed],
            hints=["`pdctl up` applies it, and restarts what it touches"],
        )
