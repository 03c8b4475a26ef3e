"""`pdctl doctor`: every check, worst first, each with evidence and the fix."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.base.errors import NotFoundError, PdctlError, UsageError
from pdctl.base.exits import ExitCode
from pdctl.cli import options, ui

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.base.facts import PairFacts
    from pdctl.config.load import Loaded
    from pdctl.doctor.table import Check
    from pdctl.observe.examine import Case, Look
    from pdctl.targets.base import Host


def doctor(
    context: typer.Context,
    file: options.File = options.DEFAULT_FILE,
    json: options.Json = False,
    list_: Annotated[bool, typer.Option("--list", help="List the checks and run none.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="ID", help="Checks of this id, `host.*` too; repeatable."),
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", "-a", help="Also show what passed and what was skipped.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="A warning is a failure.")] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask no server: only files and this machine.")
    ] = False,
    proof: Annotated[
        bool, typer.Option("--proof/--no-proof", help="Run the two-turn proof.")
    ] = True,
    connect_limit: Annotated[
        float | None,
        typer.Option(min=0.1, help="Seconds within which a host answers or counts as dead."),
    ] = None,
    since: Annotated[
        str, typer.Option("--since", help="How far back logs count, such as 30m.")
    ] = "1h",
    save: Annotated[
        Path | None, typer.Option("--save", metavar="DIR", help="Save what was seen, redacted.")
    ] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Judge what `--save` has saved.")
    ] = None,
) -> None:
    """Find what is wrong, with the evidence and the fix.

    Exit status 0: healthy. 1: a check failed; with `--strict` also when one warns. 65, 66: the
    configuration is invalid, or not there.
    """
    from pdctl.doctor.checks import CHECKS
    from pdctl.doctor.table import healthy, report, run_checks

    wanted = _wanted(CHECKS, only or [])
    if list_:
        _list(wanted, json=json)
        return
    if from_ is not None and save is not None:
        raise UsageError("`--save` and `--from` do not go together")
    problem: PdctlError | None = None
    if from_ is not None:
        from pdctl.state.bundle import load_bundle

        facts = load_bundle(from_)
    else:
        look = _look(wanted, offline=offline, proof=proof, since=since)
        source = context.get_parameter_source("file")
        named = source is not None and source.name != "DEFAULT"
        facts, problem = _examine(
            file, look, wanted, save, named=named, connect=connect_limit, offline=offline
        )
    ids = {check.id for check in wanted}
    findings = [finding for finding in run_checks(facts, CHECKS) if finding.id in ids]
    if json:
        ui.json(report(findings))
    else:
        from pdctl.cli.doctorview import show

        show(findings, every=all_)
    if problem is not None and any(f.scope == "config" for f in findings):
        if isinstance(problem, NotFoundError):
            ui.error(problem)
        else:  # its problems are findings already
            ui.say(f"error: {problem.message}", "bad")
        raise typer.Exit(int(problem.exit_code))
    if not healthy(findings, strict=strict):
        raise typer.Exit(int(ExitCode.BAD_ANSWER))


def _wanted(checks: "Sequence[Check]", patterns: "Sequence[str]") -> "list[Check]":
    """The checks that are asked for.

    Raises:
        UsageError: a pattern is that of no check; the nearest are named.
    """
    import difflib
    import fnmatch

    if not patterns:
        return list(checks)
    ids = [check.id for check in checks]
    chosen: set[str] = set()
    for pattern in patterns:
        found = fnmatch.filter(ids, pattern)
        if not found:
            near = difflib.get_close_matches(pattern, ids, n=3, cutoff=0.5)
            near += [each for each in ids if pattern.strip("*.") in each and each not in near][:3]
            raise UsageError(
                f"`{pattern}` is no check",
                where="--only",
                expected=" or ".join(f"`{each}`" for each in near) if near else "an id, or a glob",
                hints=["`pdctl doctor --list` lists all"],
            )
        chosen.update(found)
    return [check for check in checks if check.id in chosen]


def _list(checks: "Sequence[Check]", *, json: bool) -> None:
    if json:
        keys = ("id", "scope", "severity", "title", "needs")
        ui.json([{key: getattr(check, key) for key in keys} for check in checks])
        return
    ui.table(
        ["id", "of each", "severity", "passes when"],
        [[check.id, check.scope, check.severity, check.title] for check in checks],
    )


def _look(wanted: "Sequence[Check]", *, offline: bool, proof: bool, since: str) -> "Look":
    from pdctl.base.durations import parse_duration
    from pdctl.observe.examine import Look

    try:
        window = parse_duration(since)
    except ValueError as error:
        raise UsageError(
            f"`{since}` is no duration", where="--since", expected="such as 30m or 2h"
        ) from error
    servers = any(check.scope not in ("config", "host", "aws") for check in wanted)
    return Look(
        offline=offline or not servers,
        aws=not offline and any(check.scope == "aws" for check in wanted),
        proof=proof and any(check.id.startswith("runtime.") for check in wanted),
        window_s=window,
    )


def _examine(
    file: Path,
    look: "Look",
    wanted: "Sequence[Check]",
    save: Path | None,
    *,
    named: bool,
    connect: float | None,
    offline: bool,
) -> "tuple[PairFacts, PdctlError | None]":
    """The facts, and why the configuration could not be used, when it could not."""
    from pdctl.deploy import local
    from pdctl.observe.examine import examine

    if save is not None:
        from pdctl.state.bundle import require_free

        require_free(save)
    world = local.this_machine(ui.listener())
    hosts: Mapping[str, Host] = {}
    try:
        loaded, problem = _load(file)
        hosts = _hosts(loaded, world.hosts, offline=offline)
        case = _case(file, loaded, problem, hosts)
        if isinstance(problem, NotFoundError) and not named and not file.exists():
            # Nobody asked for this file: without one, there is just this machine to look at.
            case = replace(case, config=replace(case.config, error=None, missing=True))
            problem = None
        if all(check.scope == "config" for check in wanted):
            case = replace(case, hosts={}, wants={})
        look = replace(look, connect_s=connect or _configured_limit(loaded) or look.connect_s)
        facts, logs = examine(case, look, world.listen)
    finally:
        for host in hosts.values():
            host.close()
        world.close()
    if save is not None:
        _save(save, file, loaded, facts, {log.name: log.data for log in logs})
    return facts, problem


def _hosts(
    loaded: "Loaded | None", here: "Mapping[str, Host]", *, offline: bool
) -> "Mapping[str, Host]":
    from pdctl.config.model import Ec2Target, SshTarget
    from pdctl.deploy import case

    if loaded is None:
        return here
    if offline and isinstance(loaded.config.target, SshTarget | Ec2Target):
        return {}
    return case.reachable(loaded.config, here)


def _configured_limit(loaded: "Loaded | None") -> float | None:
    """Seconds that connecting may take, of a target that says so."""
    access = getattr(loaded.config.target, "access", None) if loaded else None
    limit: float | None = getattr(access, "connect_timeout", None)
    return limit


def _load(file: Path) -> "tuple[Loaded | None, PdctlError | None]":
    from pdctl.base.problems import ConfigError
    from pdctl.render.check import load_checked

    try:
        return load_checked(file), None
    except (ConfigError, NotFoundError) as error:
        return None, error


def _case(
    file: Path,
    loaded: "Loaded | None",
    problem: PdctlError | None,
    hosts: "Mapping[str, Host]",
) -> "Case":
    from pdctl.deploy import case
    from pdctl.deploy.reach import near_through
    from pdctl.observe.settings import facts_of_error

    if loaded is None:
        assert problem is not None
        return case.case_without_file(facts_of_error(file, problem), hosts)
    return case.case_of(loaded, hosts, near_through(hosts))


def _save(
    folder: Path, file: Path, loaded: "Loaded | None", facts: "PairFacts", logs: "dict[str, bytes]"
) -> None:
    from pdctl.deploy.case import secret_values
    from pdctl.state.bundle import save_bundle

    secrets = secret_values(loaded.config) if loaded is not None else []
    try:
        text = file.read_text(errors="replace") if str(file) != "-" else None
    except OSError:
        text = None
    saved = save_bundle(folder, facts, config=text, logs=logs, secrets=secrets)
    ui.say(f"saved in {folder}, without secrets; look through it before you give it away:")
    for line in saved:
        ui.say(f"  {line}")
