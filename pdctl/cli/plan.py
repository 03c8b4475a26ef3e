"""`pdctl plan`: what `up` would do, and why."""

from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.cli import options, ui

if TYPE_CHECKING:
    from pdctl.config.model import Config
    from pdctl.deploy.survey import Wanted
    from pdctl.plan.model import Plan, Step


def plan(
    file: options.File = options.DEFAULT_FILE,
    json: options.Json = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="On EC2: show every call to AWS, and why.")
    ] = False,
) -> None:
    """Show what `up` would do, step by step, with the reason for each. Changes nothing.

    On EC2 also what is made, what it costs, and whether EC2 would let it be. For hosts that
    cannot be reached, the steps are those of a first `up`.
    """
    from pdctl.cli import cloud
    from pdctl.config.model import Ec2Target, ExternalTarget
    from pdctl.deploy import local
    from pdctl.plan.build import build
    from pdctl.plan.facts import Facts
    from pdctl.render.check import load_checked
    from pdctl.render.model import SHOWN

    config = load_checked(file).config
    wanted = local.wanted_of(config, file, local.read_secrets(config))
    first = build(config, wanted.rendered(SHOWN), Facts(known=False), None)
    looked = cloud.looked_at(config) if isinstance(config.target, Ec2Target) else None
    asked = not isinstance(config.target, ExternalTarget) and (looked is None or looked.made)
    found = _survey(config, wanted) if asked else None
    if looked is not None:
        cloud.show_plan(found or first, looked, config, json=json, verbose=verbose)
    elif found is None:
        _show_first(first, config.target.kind, json=json)
    else:
        show_plan(found, json=json)


def _survey(config: "Config", wanted: "Wanted") -> "Plan | None":
    """What is to be done, with the hosts asked; None, and told why, when they cannot be."""
    from pdctl.base.errors import PermissionDeniedError, UnreachableError
    from pdctl.config.model import LocalTarget
    from pdctl.deploy import reach
    from pdctl.deploy.survey import survey
    from pdctl.state.store import StateStore

    store = StateStore(config.name)
    world = reach.world_of(config, recorded=reach.recorded_hosts(store))
    try:
        world = reach.without_lost(world)
        return survey(world, wanted, store).plan
    except (UnreachableError, PermissionDeniedError) as error:
        if isinstance(config.target, LocalTarget):
            raise
        ui.error(error)
        return None
    finally:
        world.close()


def _show_first(plan: "Plan", kind: str, *, json: bool) -> None:
    """The steps of a first `up`, where the hosts say nothing."""
    if not json:
        ui.say(f"hosts of `target.kind: {kind}` were not asked", "warn")
        ui.say("these are the steps of a first `up`", "warn")
    show_plan(plan, json=json)


def show_plan(plan: "Plan", *, json: bool) -> None:
    """Print a plan: one line a step, `+` where something changes."""
    if json:
        ui.json(plan.as_dict())
        return
    for step in plan.steps:
        ui.data(_line(step))
    for conflict in (*plan.unfit, *plan.conflicts):
        ui.say(f"{ui.mark('bad')} {conflict}", "bad")
    for reason in plan.consent:
        ui.say(f"{ui.mark('warn')} {reason}; `up` asks first", "warn")
    for notice in plan.notices:
        ui.say(notice, "dim")
    changes = sum(step.changes for step in plan.steps)
    if not any(step.action for step in plan.steps):
        ui.say("nothing to do", "ok")
    else:
        ui.say(f"{changes} of {len(plan.steps)} steps change something")


def _line(step: "Step") -> str:
    if step.action is None:
        return f"  {step.what}: nothing to do, because {step.why}"
    return f"{'+' if step.changes else '>'} {step.what}: {step.why}"
