"""`pdctl accept`: everything tried once on your own hosts, within a budget, kept in a bundle."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.base.errors import UsageError
from pdctl.base.exits import ExitCode
from pdctl.cli import options, ui
from pdctl.cli.reached import reached, require_router
from pdctl.cli.terminated import as_ctrl_c

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.accept.budget import Budget
    from pdctl.accept.model import Report, Result
    from pdctl.accept.run import Step
    from pdctl.accept.steps import Means
    from pdctl.base.facts import PairFacts
    from pdctl.config.load import Loaded
    from pdctl.config.model import Config

_STEPS = ("doctor", "pair", "exact", "bench", "restart", "efa")


def accept(
    file: options.File = options.DEFAULT_FILE,
    minutes: Annotated[float, typer.Option(min=1, help="The run ends within this.")] = 60.0,
    usd: Annotated[
        float | None, typer.Option(min=0.01, help="It also ends before the hosts cost this.")
    ] = None,
    hourly_usd: Annotated[
        float | None,
        typer.Option(min=0.0, help="What an hour of all hosts costs; known of those pdctl made."),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option("--skip", metavar="STEP", help=f"Of {', '.join(_STEPS)}; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The bundle, a .tar.gz; default is made.")
    ] = None,
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Try everything once on your own hosts, and keep what was seen in a bundle.

    Checks, every pair, exactness, reuse off against on, restarts, EFA's counters. The deployment
    must be up. A restart stops one engine for as long as it takes to start, so it asks first.

    Exit status 0: nothing failed, and nothing was left out for want of budget. 1: something was.
    """
    import tempfile

    from pdctl.accept.budget import Budget
    from pdctl.accept.steps import steps_of
    from pdctl.render.check import load_checked

    loaded = load_checked(file)
    left_out = _left_out(skip or [])
    price = _price(loaded.config, hourly_usd)
    budget = Budget(_seconds(minutes, usd, price), price)
    with tempfile.TemporaryDirectory(prefix="pdctl-accept-") as scratch:
        means = _means(loaded, file, Path(scratch), verbose=verbose)
        with reached(loaded.config) as endpoints:
            steps = steps_of(means, endpoints, skip=left_out)
            if dry_run:
                _show_steps(steps, json=json)
                return
            require_router(endpoints)
        if any(step.id.startswith("restart.") and not step.skip for step in steps):
            ui.say("prefill-0 and decode-0 will be restarted", "warn")
            ui.confirm(f"Go on with `{loaded.config.name}`?", yes=yes)
        with as_ctrl_c():
            report, bundle = _run(loaded, file, means, steps, budget, out)
    if json:
        ui.json({**report.as_dict(), "bundle": str(bundle)})
    else:
        _show(report)
    ui.say(f"kept in {bundle}, without secrets; look through it before you give it away")
    if not report.ok:
        raise typer.Exit(int(ExitCode.BAD_ANSWER))
    _remember(bundle)


def _remember(bundle: Path) -> None:
    """`plan` and `up` on EC2 look there for what was tried."""
    from pdctl.accept import kept
    from pdctl.base.errors import PdctlError

    try:
        ui.say(f"a copy is in {kept.keep(bundle)}")
    except PdctlError as error:
        ui.say(f"no copy could be kept for `plan` and `up`: {error.message}", "warn")


# --- what is asked for -----------------------------------------------------------------------


def _left_out(skip: "Sequence[str]") -> "Sequence[str]":
    for word in skip:
        if word.partition(".")[0] not in _STEPS:
            raise UsageError(f"`{word}` is no step", where="--skip", expected=" or ".join(_STEPS))
    return skip


def _price(config: "Config", given: float | None) -> float | None:
    """What an hour costs: as said, else what pdctl knows of the instances that it made."""
    from pdctl.state.cloud import CloudStore

    if given is not None or config.target.kind != "ec2":
        return given
    cloud = CloudStore(config.name).load()
    return cloud.hourly_usd if cloud else None


def _seconds(minutes: float, usd: float | None, hourly_usd: float | None) -> float:
    from pdctl.accept.budget import allowed

    try:
        return allowed(minutes, usd, hourly_usd)
    except ValueError as error:
        raise UsageError(
            str(error), where="--usd", expected="`--hourly-usd` beside it", hints=[_prices()]
        ) from error


def _prices() -> str:
    from pdctl.base.prices import AS_OF, HOSTS, REGION

    host = HOSTS["p5en.48xlarge"]
    return f"a p5en.48xlarge was at ${host.hourly_usd} on demand in {REGION} ({AS_OF})"


def _means(loaded: "Loaded", file: Path, scratch: Path, *, verbose: bool) -> "Means":
    import functools
    import time

    from pdctl.accept import deployed
    from pdctl.accept.steps import Means
    from pdctl.bench.about import about
    from pdctl.config.model import ExternalTarget
    from pdctl.deploy.local import keys_of, read_secrets
    from pdctl.render.deployment import render
    from pdctl.render.place import place_of
    from pdctl.state.store import StateStore

    config = loaded.config
    listen = ui.listener(verbose=verbose)
    ours = not isinstance(config.target, ExternalTarget)
    started = ours and StateStore(config.name).load() is not None
    specs = render(config, place_of(config)).processes
    return Means(
        config=config,
        folder=scratch,
        servers=functools.partial(reached, config),
        look=functools.partial(_look, loaded, offline=False),
        hosts=functools.partial(_look, loaded, offline=True),
        restart=lambda name: deployed.restart(config, file, name, listen),
        no_restart="" if started else "pdctl did not start these engines",
        cells={spec.name: spec.cell for spec in specs if spec.cell},
        environment=lambda settings: about(
            config, StateStore(config.name).load(), settings, now=time.time(), trace=""
        ),
        admin_key=keys_of(read_secrets(config)).admin,
        listen=listen,
    )


def _look(loaded: "Loaded", *, offline: bool) -> "PairFacts":
    from pdctl.deploy import case, local
    from pdctl.deploy.reach import near_through
    from pdctl.observe.examine import Look, examine

    world = local.this_machine()
    hosts = case.reachable(loaded.config, world.hosts)
    try:
        asked = case.case_of(loaded, hosts, near_through(hosts))
        return examine(asked, Look(offline=offline, aws=False, proof=False), world.listen)[0]
    finally:
        for host in hosts.values():
            host.close()
        world.close()


# --- running ---------------------------------------------------------------------------------


def _run(
    loaded: "Loaded",
    file: Path,
    means: "Means",
    steps: "Sequence[Step]",
    budget: "Budget",
    out: Path | None,
) -> "tuple[Report, Path]":
    """Run the steps and write the bundle, also of a run that was interrupted."""
    import time

    from pdctl.accept.bundle import write_bundle
    from pdctl.accept.measured import cells
    from pdctl.accept.model import Report
    from pdctl.accept.run import run_steps
    from pdctl.bench.run import Settings
    from pdctl.deploy.case import secret_values

    config = loaded.config
    began = time.gmtime()
    stamp = time.strftime("%Y%m%d-%H%M%S", began)
    path = out or Path(f"accept-{config.name}-{stamp}.tar.gz")
    results: list[Result] = []

    def kept(*, interrupted: bool = False) -> Report:
        told = means.environment(Settings())
        environment = {key: value for key, value in told.items() if key != "settings"}
        report = Report(
            name=config.name,
            began_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", began),
            results=results,
            environment=environment,
            cells=cells(config, results),
            budget=budget.as_dict(),
            interrupted=interrupted,
        )
        text = file.read_text(errors="replace") if str(file) != "-" else ""
        secrets = secret_values(config)
        write_bundle(path, report, config=text, folder=means.folder, secrets=secrets)
        return report

    try:
        for result in run_steps(steps, budget, means.listen):
            results.append(result)
    except KeyboardInterrupt:
        kept(interrupted=True)
        ui.say(f"what was seen until here is kept in {path}", "warn")
        raise
    return kept(), path


# --- telling ---------------------------------------------------------------------------------


def _show_steps(steps: "Sequence[Step]", *, json: bool) -> None:
    if json:
        ui.json([{"id": s.id, "title": s.title, "skip": s.skip} for s in steps])
        return
    ui.table(["step", "tries", "left out because"], [[s.id, s.title, s.skip] for s in steps])


def _show(report: "Report") -> None:
    words = {"pass": "ok", "fail": "bad", "skip": "skip"}
    ui.table(
        ["step", "", "seconds", "found"],
        [
            [each.id, ui.mark(words[each.found.status]), f"{each.seconds:.0f}", each.found.said]
            for each in report.results
        ],
    )
    for cell in report.cells:
        agrees = "as the table says" if cell["agrees"] else "NOT as the table says"
        ui.data(
            f"vLLM {cell['row']}, {cell['column']}: {cell['value']}, {agrees} "
            f"({cell['evidence_now']} until now; measured here on the {cell['device']})"
        )
    counts = report.summary()
    ui.data(f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} were left out")
