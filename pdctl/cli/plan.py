"""`pdctl plan`: what `up` would do, and why."""

from typing import TYPE_CHECKING

from pdctl.cli import options, ui

if TYPE_CHECKING:
    from pdctl.plan.model import Plan, Step


def plan(file: options.File = options.DEFAULT_FILE, json: options.Json = False) -> None:
    """Show what `up` would do, step by step, with the reason for each. Changes nothing.

    For hosts that cannot be reached, the steps are those of a first `up`.
    """
    from pdctl.base.errors import PermissionDeniedError, UnreachableError
    from pdctl.config.model import LocalTarget, SshTarget
    from pdctl.deploy import local, reach
    from pdctl.deploy.survey import survey
    from pdctl.plan.build import build
    from pdctl.plan.facts import Facts
    from pdctl.render.check import load_checked
    from pdctl.render.model import SHOWN, Secrets
    from pdctl.state.store import StateStore

    config = load_checked(file).config
    wanted = local.wanted_of(config, file, Secrets())
    first = build(config, wanted.rendered(SHOWN), Facts(known=False), None)
    if not isinstance(config.target, LocalTarget | SshTarget):
        _show_first(first, config.target.kind, json=json)
        return
    store = StateStore(config.name)
    world = reach.world_of(config, recorded=reach.recorded_hosts(store))
    try:
        world = reach.without_lost(world)
        found = survey(world, wanted, store)
    except (UnreachableError, PermissionDeniedError) as error:
        if isinstance(config.target, LocalTarget):
            raise
        ui.error(error)
        _show_first(first, config.target.kind, json=json)
        return
    finally:
        world.close()
    show_plan(found.plan, json=json)


def _show_first(plan: "Plan", kind: str, *, json: bool) -> None:
    """The steps of a first `up`, where the hosts say nothing."""
    if not json:
        instances = "; the instances themselves are not among them" if kind == "ec2" else ""
        ui.say(f"hosts of `target.kind: {kind}` were not asked", "warn")
        ui.say(f"these are the steps of a first `up`{instances}", "warn")
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
