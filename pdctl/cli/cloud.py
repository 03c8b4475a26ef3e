"""What `plan`, `up`, `down` and `status` say and do about hosts on EC2."""

import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pdctl.cli import ui

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdctl.base.awscall import AwsCall
    from pdctl.base.errors import PdctlError
    from pdctl.config.model import Config
    from pdctl.deploy.ec2 import Looked
    from pdctl.deploy.release import Released
    from pdctl.plan.model import Plan


def looked_at(config: "Config") -> "Looked":
    """EC2 asked, and judged."""
    from pdctl.deploy import ec2

    return ec2.look(config, now=time.time())


def show_plan(
    steps: "Plan", looked: "Looked", config: "Config", *, json: bool, verbose: bool
) -> None:
    """The machines, then what happens on them."""
    from pdctl.cli.plan import show_plan as show_steps
    from pdctl.plan.ec2 import in_plan

    whole = in_plan(steps, looked.plan)
    if json:
        ui.json({**as_dict(whole, looked, config), **(_calls(looked) if verbose else {})})
        return
    show(looked, config, verbose=verbose)
    ui.say("and on the hosts:")
    show_steps(whole, json=False)


def as_dict(plan: "Plan", looked: "Looked", config: "Config") -> "Mapping[str, object]":
    """The shape of `plan --json` on EC2: the contract's, and what more there is to say."""
    from pdctl.plan.ec2 import created, reused, warnings

    value = dict(plan.as_dict())
    cost = looked.plan.cost
    hourly = cost.hourly_usd
    value["resources"] = {
        **_section(value, "resources"),
        "created": list(created(looked.plan, config.router.port)),
        "reused": list(reused(looked.plan)),
        "zones": [each.zone for each in looked.plan.zones],
        "quota": _quota(looked),
    }
    value["cost"] = {
        **_section(value, "cost"),
        "daily_usd": None if hourly is None else round(hourly * 24, 2),
        "lines": [{"what": line.what, "hourly_usd": line.hourly_usd} for line in cost.lines],
    }
    value["refusals"] = [
        {"rule": r.rule, "text": r.text, "source": r.source, "next": r.next_step}
        for r in looked.refusals
    ]
    value["permissions_missing"] = sorted(looked.refused or ())
    value["unknown"] = [*_not_asked(looked), *looked.unknown]
    value["accepted"] = _accepted(config)
    value["needed"] = list(looked.needed)
    value["warnings"] = list(warnings(looked.plan))
    return value


def _section(value: "Mapping[str, object]", key: str) -> "dict[str, object]":
    found = value[key]
    return dict(found) if isinstance(found, dict) else {}


def _accepted(config: "Config") -> str | None:
    from pdctl.accept import kept

    accepted, _ = kept.find(config)
    return str(accepted.file) if accepted else None


def _calls(looked: "Looked") -> dict[str, object]:
    return {
        "calls": {
            "plan": [call.as_dict() for call in looked.asked],
            "up": [call.as_dict() for call in looked.calls],
        }
    }


def _quota(looked: "Looked") -> "dict[str, object] | None":
    if looked.plan.quota is None:
        return None
    code, limit, needed = looked.plan.quota
    return {"code": code, "vcpus": limit, "needed": needed}


def _not_asked(looked: "Looked") -> list[str]:
    return [] if looked.facts.error is None else [f"EC2 was not asked: {looked.facts.error}"]


def show(
    looked: "Looked",
    config: "Config",
    *,
    verbose: bool,
    line_out: Callable[[str], None] = ui.data,
) -> None:
    """The machines, what they cost, and what EC2 would say to it.

    Args:
        line_out: gets the lines that are `plan`'s answer; `up` has another one.
    """
    from pdctl.deploy.provision import conflict
    from pdctl.plan.ec2 import created, reused

    _show_tried(config)
    if looked.cloud and (error := conflict(looked.cloud, looked.plan.target.region)):
        ui.say(f"{ui.mark('bad')} {error.message}: {error.hints[0]}", "bad")
    for host in looked.cloud.hosts.values() if looked.cloud else ():
        made = "made by pdctl" if host.made else "adopted"
        line_out(f"  {host.name}: {host.id} ({host.instance_type}), {made}, {host.private_ip}")
    for line in created(looked.plan, config.router.port):
        line_out(f"+ make {line}")
    for line in reused(looked.plan):
        line_out(f"  use {line}")
    _show_cost(looked, line_out)
    _show_trouble(looked)
    if verbose:
        line_out("calls to AWS that this plan made:")
        for call in looked.asked:
            line_out(f"  {call}")
        line_out("calls that `up` would make, in the first zone (ids in <> are not known yet):")
        for call in looked.calls:
            line_out(f"  {call}")


def _show_tried(config: "Config") -> None:
    """What is known of these versions on EC2: a bundle of `accept` that passed, or nothing."""
    from pdctl.accept import kept
    from pdctl.deploy.ec2 import NOT_RUN
    from pdctl.engine import choices

    accepted, bad = kept.find(config)
    for line in bad:
        ui.say(f"{ui.mark('warn')} {line}", "warn")
    if accepted is None:
        ui.say(NOT_RUN, "warn")
        return
    versions = f"vLLM {choices.vllm_version(config)}, NIXL {choices.nixl_version(config)}"
    ui.say(f"{versions} passed `pdctl accept` on EC2: {accepted.began_at}, {accepted.file}", "ok")


def _show_trouble(looked: "Looked") -> None:
    from pdctl.plan.ec2 import warnings

    for line in (*_not_asked(looked), *(f"not known: {each}" for each in looked.unknown)):
        if line.removeprefix("not known: ") not in looked.needed:
            ui.say(f"{ui.mark('skip')} {line}", "warn")
    for line in looked.needed:
        ui.say(f"{ui.mark('bad')} not known, and no host can be made without: {line}", "bad")
    for line in warnings(looked.plan):
        ui.say(f"{ui.mark('warn')} {line}", "warn")
    for line in (*(looked.refused or {}).values(), *map(str, looked.refusals)):
        ui.say(f"{ui.mark('bad')} {line}", "bad")
    if looked.refused == {} and looked.plan.missing:
        ui.say(f"{ui.mark('ok')} EC2 says that you may do this (DryRun)", "ok")


def _show_cost(looked: "Looked", line_out: Callable[[str], None]) -> None:
    cost, capacity = looked.plan.cost, looked.plan.target.capacity
    for line in cost.lines:
        price = "price not known" if line.hourly_usd is None else f"${line.hourly_usd:.3f} an hour"
        line_out(f"  cost: {line.what}: {price}")
    if cost.lines:
        hourly = cost.hourly_usd
        source = "live prices" if cost.as_of == "live" else f"prices of {cost.as_of}"
        end = (
            f", at most {capacity.max_hours:g} hours"
            if capacity.max_hours is not None
            else ", until `pdctl down`"
        )
        total = (
            "cost: not known"
            if hourly is None
            else f"cost: ${hourly:.2f} an hour, ${hourly * 24:.2f} a day ({source}){end}"
        )
        ui.say(total, "plain")
        if capacity.kind in ("odcr", "capacity-block"):
            ui.say("a reservation costs whether its instances run or not; a block is paid before")
    if looked.plan.quota is not None:
        code, limit, needed = looked.plan.quota
        allowed = "not known" if limit is None else f"{limit:g}"
        ui.say(f"quota {code}: {needed} vCPUs are needed, {allowed} are allowed")


# --- up ------------------------------------------------------------------------------------------


def teller(verbose: bool) -> "Callable[[AwsCall], None] | None":
    """Tells every call to AWS, when that is wanted."""
    return (lambda call: ui.say(f"… {call}", "dim")) if verbose else None


def make_hosts(config: "Config", *, yes: bool, verbose: bool, lock_wait: float) -> bool:
    """Make the hosts that are missing and log in to them; whether all of them are new.

    A failure keeps or ends them then, as `capacity.on_failure` says.
    """
    from pdctl.deploy import ec2, reach
    from pdctl.deploy.ec2things import Clock
    from pdctl.state.lock import hold
    from pdctl.state.store import StateStore

    listen, clock = ui.listener(verbose=verbose), Clock()
    with hold(config.name, "pdctl up", wait=lock_wait):
        looked = looked_at(config)
        cloud = looked.cloud
        missing = [host.name for launch in looked.plan.missing for host in launch.hosts]
        if missing or not looked.made:
            show(looked, config, verbose=verbose, line_out=ui.say)
            ec2.require_possible(looked)
        if missing:
            _ask(config.name, looked, len(missing), yes=yes)
        # By their tags too: without a record here they may be another operator's, and serve.
        before = bool(looked.plan.there) or (cloud is not None and bool(cloud.made))
        launched: list[bool] = []
        with ended_on_failure(config, lambda: bool(launched) and not before):
            cloud = ec2.make(
                config,
                looked,
                clock=clock,
                listen=listen,
                told=teller(verbose),
                on_launch=lambda: launched.append(True),
            )
            # Also after an `up` that ended before its hosts had answered.
            if launched or (cloud.made and StateStore(config.name).load() is None):
                world = reach.world_of(config, listen)
                try:
                    ec2.arrive(world, cloud, looked, clock=clock)
                finally:
                    world.close()
    ui.say(ec2.costs(cloud, now=time.time()), "warn")
    return bool(launched) and not before


def _ask(name: str, looked: "Looked", count: int, *, yes: bool) -> None:
    hourly = looked.plan.cost.hourly_usd
    price = "a price that pdctl does not know" if hourly is None else f"${hourly:.2f} an hour"
    hours = looked.plan.target.capacity.max_hours
    end = "until `pdctl down`" if hours is None else f"for at most {hours:g} hours"
    ui.confirm(f"Start {count} instances for `{name}`, at {price} {end}?", yes=yes)


@contextmanager
def ended_on_failure(config: "Config", all_new: Callable[[], bool]) -> "Iterator[None]":
    """End the hosts when `up` fails, where the file says so, and only if this `up` made them all:
    one that fails for another reason must not end a deployment that serves.
    """
    from pdctl.base.errors import PdctlError
    from pdctl.config.model import Ec2Target

    try:
        yield
    except KeyboardInterrupt:
        _tell_kept(config.name)
        raise
    except PdctlError:
        target = config.target
        if not isinstance(target, Ec2Target) or not all_new():
            raise
        if target.capacity.on_failure == "keep":
            ui.say("kept, as `capacity.on_failure: keep` says; it costs until `pdctl down`", "warn")
            raise
        ui.say("ending what this `up` made, as `capacity.on_failure: end` says", "warn")
        try:
            _end(config.name, (target.region, target.profile), verbose=False)
        except PdctlError as error:
            ui.say("it could not be ended, AND COSTS ON; run `pdctl down`:", "bad")
            ui.error(error)
        except KeyboardInterrupt:
            ui.say("interrupted before all was ended: IT MAY COST ON; run `pdctl down`", "bad")
            raise
        raise


def _tell_kept(name: str) -> None:
    """After Ctrl-C, once all hosts were made; what was made before is told by whoever made it."""
    from pdctl.deploy import ec2
    from pdctl.state.cloud import CloudStore

    cloud = CloudStore(name).load()
    if cloud is not None and cloud.phase == "ready" and cloud.made:
        names = ", ".join(f"{each.name} {each.id}" for each in cloud.made)
        ui.say(f"kept: {names}; {ec2.costs(cloud, now=time.time())}", "warn")


# --- down and status -----------------------------------------------------------------------------


Place = tuple[str, str | None]
"""Region and profile."""


def place_of(name: str, config: "Config | None", region: str | None) -> Place | None:
    """Where on EC2 a deployment is; None when it is not there."""
    from pdctl.config.model import Ec2Target
    from pdctl.state.cloud import CloudStore

    cloud = CloudStore(name).load()
    if cloud is not None:
        return cloud.region, cloud.profile
    if config is not None and isinstance(config.target, Ec2Target):
        return config.target.region, config.target.profile
    return (region, None) if region is not None else None


def may_have_processes(name: str, config: "Config | None") -> bool:
    """Whether there are hosts to log in to, as far as the record says."""
    from pdctl.state.cloud import CloudStore

    cloud = CloudStore(name).load()
    if config is None or cloud is None or not cloud.hosts:
        return False
    return cloud.phase != "ending" or len(cloud.made) < len(cloud.hosts)


def require_none_adopted(name: str, error: "PdctlError") -> None:
    """Processes on hosts that stay would stay too.

    Raises:
        PdctlError: the one given, when a host was adopted.
    """
    from pdctl.state.cloud import CloudStore

    cloud = CloudStore(name).load()
    if cloud is not None and len(cloud.made) < len(cloud.hosts):
        raise error


def made_for(name: str, place: Place) -> list[str]:
    """What is on EC2 by the deployment's tags, as kind and id."""
    from pdctl.deploy.ec2things import made_things
    from pdctl.targets.ec2 import Ec2

    region, profile = place
    return [f"{each.kind} {each.id}" for each in made_things(Ec2(region, profile), name)]


def end_deployment(
    name: str, place: Place, *, yes: bool, lock_wait: float, verbose: bool
) -> "Released":
    """End what pdctl made on EC2 for a deployment, and forget it."""
    import sys

    from pdctl.state.cloud import CloudStore
    from pdctl.state.lock import hold
    from pdctl.state.store import StateStore

    with hold(name, "pdctl down", wait=lock_wait):
        cloud = CloudStore(name).load()
        if cloud is not None and cloud.made and sys.stdin.isatty():
            ids = ", ".join(f"{each.name} ({each.id})" for each in cloud.made)
            ui.confirm(f"End {ids} of `{name}`?", yes=yes)
        released = _end(name, place, verbose=verbose)
        StateStore(name).remove()
    return released


def _end(name: str, place: Place, *, verbose: bool) -> "Released":
    from pdctl.deploy import ec2
    from pdctl.deploy.ec2things import Clock

    region, profile = place
    return ec2.end(
        name,
        region,
        profile,
        clock=Clock(),
        listen=ui.listener(verbose=verbose),
        told=teller(verbose),
    )


def show_released(released: "Released") -> None:
    """What is gone from EC2, and what costs on."""
    if released.things:
        count = f"{len(released.things)} thing{'s' * (len(released.things) != 1)}"
        ui.say(f"EC2: {count} ended or deleted, nothing is left", "ok")
    else:
        ui.say("EC2: pdctl made nothing that is still there", "ok")
    for line in released.still_bills:
        ui.say(f"{ui.mark('warn')} {line}", "warn")
