"""`pdctl up`: from a configuration to a pair that provably reuses KV."""

from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.cli import options, ui

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.config.model import Config
    from pdctl.deploy.runner import Outcome
    from pdctl.plan.model import Plan


def up(
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
    """Install, start, wait until healthy, and prove that turn 2 reuses turn 1's KV.

    On EC2 it makes the hosts first; that costs money, so it asks.

    Run it again after an interruption or a failure: it goes on where it stopped. What runs as
    configured is left alone.
    """
    from pdctl.cli import cloud
    from pdctl.cli.plan import plan, show_plan
    from pdctl.deploy import local, proof, reach, runner
    from pdctl.deploy.survey import survey
    from pdctl.render.check import load_checked
    from pdctl.state.store import StateStore

    config = load_checked(file).config
    local.require_reachable(config, "up")
    if not dry_run:
        local.make_key(config)
    secrets = local.read_secrets(config)
    wanted = local.wanted_of(config, file, secrets, verify=verify)
    store = StateStore(config.name)
    all_new = False
    if config.target.kind == "ec2":
        if dry_run:
            plan(file, json=json, verbose=verbose)
            return
        all_new = cloud.make_hosts(config, yes=yes, verbose=verbose, lock_wait=lock_wait)
    with cloud.ended_on_failure(config, lambda: all_new):
        hosts = reach.recorded_hosts(store)
        world = reach.world_of(config, ui.listener(verbose=verbose), hosts)
        try:
            world = reach.without_lost(world)
            if dry_run:
                show_plan(survey(world, wanted, store).plan, json=json)
                return
            with reach.hold(config.name, world, wanted.marks, "pdctl up", wait=lock_wait):
                reach.give_up_lost(world, store)
                found = survey(world, wanted, store)
                agree(found.plan, yes=yes)
                prove = proof.two_turns(config, secrets, world)
                outcome = runner.up(world, wanted, store, found, prove=prove)
        finally:
            world.close()
    tell(config, file, outcome, json=json)


def agree(plan: "Plan", *, yes: bool) -> None:
    """Say what is at stake, and have it agreed to."""
    for notice in plan.notices:
        ui.say(notice, "dim")
    for reason in plan.consent:
        ui.say(reason, "warn")
    if plan.consent:
        ui.confirm(f"Go on with `{plan.name}`?", yes=yes)


def tell(config: "Config", file: object, outcome: "Outcome", *, json: bool) -> None:
    """What runs now."""
    if json:
        ui.json(_as_dict(config, outcome))
    else:
        _show(config, file, outcome)


def _as_dict(config: "Config", outcome: "Outcome") -> dict[str, object]:
    from pdctl.observe.proof import VerifyReport

    report = outcome.proven.report if outcome.proven else None
    return {
        "name": config.name,
        "changed": outcome.changed,
        "url": _url(outcome),
        "processes": [
            {
                "name": record.name,
                "pid": record.ref.pid if record.ref else None,
                "port": record.port,
                "engine_id": record.engine_id,
                "log": record.log,
            }
            for record in outcome.state.processes.values()
        ],
        "verify": report.as_dict() if isinstance(report, VerifyReport) else None,
    }


def _show(config: "Config", file: object, outcome: "Outcome") -> None:
    from pdctl.cli.verify import show_report
    from pdctl.observe.proof import VerifyReport

    if outcome.proven and isinstance(outcome.proven.report, VerifyReport):
        show_report(outcome.proven.report)
        ui.data("")
    if not outcome.changed and outcome.proven is None:
        ui.say(f"nothing to do, because everything of `{config.name}` runs as configured", "ok")
    else:
        ui.say(f"`{config.name}` is up at {_url(outcome)}", "ok")
    ui.data("Useful commands:")
    for line in _useful(config, str(file), outcome):
        ui.data(f"  {line}")


def _useful(config: "Config", file: str, outcome: "Outcome") -> list[str]:
    import json
    import shlex

    from pdctl.engine import choices

    body = {
        "model": choices.served_name(config),
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 32,
    }
    keys = config.router.api_keys_file
    key = f' -H "authorization: Bearer {_first_key(shlex.quote(str(keys)))}"' if keys else ""
    with_file = "" if file == str(options.DEFAULT_FILE) else f" -f {shlex.quote(file)}"
    return [
        *_way_in(config, outcome),
        f"curl {_url(outcome)}/v1/chat/completions -H 'content-type: application/json'{key} "
        f"-d {shlex.quote(json.dumps(body))}",
        f"pdctl status{with_file}",
        f"pdctl verify{with_file}",
        _logs(config, with_file),
        f"pdctl down{with_file}",
    ]


def _logs(config: "Config", with_file: str) -> str:
    """How to read them, on whichever machine they are."""
    import shlex

    from pdctl.base import paths

    if config.target.kind == "local":
        return f"tail -f {shlex.quote(str(paths.log_dir(config.name)))}/*.log"
    return f"pdctl tail-logs{with_file}"


def _way_in(config: "Config", outcome: "Outcome") -> "Iterator[str]":
    """A router that listens on its host's loopback only is reached through that host."""
    import shlex

    for record in outcome.state.processes.values():
        loopback = record.address.startswith("127.") or record.address == "::1"
        if record.role == "router" and loopback and config.target.kind != "local":
            there = f"{record.port}:{record.address}:{record.port}"
            yield f"ssh -N -L {there} {shlex.quote(record.host)}"


def _first_key(file: str) -> str:
    """Shell that reads a file of keys as the router does, so that no key is shown."""
    return rf"$(sed -n 's/#.*//;s/^[^:]*://;s/[[:space:]]//g;/./{{p;q}}' {file})"


def _url(outcome: "Outcome") -> str:
    routers = [r for r in outcome.state.processes.values() if r.role == "router"]
    return routers[0].url if routers else ""
