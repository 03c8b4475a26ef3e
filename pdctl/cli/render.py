"""`pdctl render`: the exact commands, environment and units; nothing is started or changed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pdctl.base.errors import PermissionDeniedError, UsageError
from pdctl.cli import options, ui

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.config.model import Config
    from pdctl.render.formats import Text
    from pdctl.render.scrape import Scraped

Monitoring = Literal["dashboard", "prometheus", "alerts"]


def render(
    what: Annotated[
        Monitoring | None,
        typer.Argument(help="For Grafana and Prometheus instead of the processes.", metavar="WHAT"),
    ] = None,
    file: options.File = options.DEFAULT_FILE,
    role: Annotated[
        Literal["prefill", "decode", "router"] | None,
        typer.Option("--role", help="Only this role's processes."),
    ] = None,
    form: Annotated[
        Literal["shell", "systemd", "json"] | None,
        typer.Option("--format", help="Launch scripts (default), systemd units, or one JSON."),
    ] = None,
    json: options.Json = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write files into this folder instead.")
    ] = None,
) -> None:
    """Show what `up` runs: the commands, their environment, and the units.

    Engine ids, and ports configured as 0, are chosen at every start and stand as placeholders.
    Secrets are masked. With `dashboard`, `prometheus` or `alerts`: a Grafana dashboard, a scrape
    configuration, alert rules for this deployment.

    Examples: `pdctl render --role prefill`, `pdctl render --format systemd --out units`,
    `pdctl render alerts --out monitoring`.
    """
    from pdctl.render.check import load_checked

    config = load_checked(file).config
    if what is None:
        made = _processes(config, role, "json" if json else form or "shell")
    elif role is not None or form is not None:
        raise UsageError(
            f"`{what}` is of the whole deployment and has one form",
            where="--role, --format",
            expected=f"pdctl render {what} [--json] [--out FOLDER]",
        )
    else:
        made = [_monitoring(config, what, json=json)]
    if out is None:
        ui.data(_joined(made))
        return
    for text in made:
        ui.data(str(_write(out, text)))


def _processes(
    config: "Config",
    role: Literal["prefill", "decode", "router"] | None,
    form: Literal["shell", "systemd", "json"],
) -> "list[Text]":
    from pdctl.deploy.local import read_example
    from pdctl.render.deployment import render as rendered
    from pdctl.render.formats import texts
    from pdctl.render.place import place_of

    deployment = rendered(config, place_of(config), example=read_example(config))
    for notice in deployment.notices:
        ui.say(f"{ui.mark('warn')} {notice}", "warn")
    made = texts(deployment, config, form, role=role)
    if not made:
        raise UsageError(f"there is no {role} process in this deployment", where="--role")
    return made


def _monitoring(config: "Config", what: Monitoring, *, json: bool) -> "Text":
    from json import dumps

    import yaml

    from pdctl.render.alerts import alert_rules
    from pdctl.render.dashboard import dashboard
    from pdctl.render.formats import Text
    from pdctl.render.scrape import scrape_config

    name = config.name
    if config.router.kind == "vllm-example":
        ui.say(f"{ui.mark('warn')} upstream's example proxy has no metrics", "warn")
    if what == "dashboard":
        return Text(f"{name}-dashboard.json", dumps(dashboard(name), indent=2) + "\n")
    if what == "alerts":
        document = alert_rules(name, reuses=config.kv.bidirectional)
    else:
        document = scrape_config(name, _scraped(config), [f"{name}-alerts.yml"])
    if json:
        content = dumps(document, indent=2) + "\n"
    else:
        content = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
    return Text(f"{name}-{what}.yml", content)


def _scraped(config: "Config") -> "Iterator[Scraped]":
    """The running processes where there are any; else those that would be started."""
    from pdctl.config.model import ExternalTarget
    from pdctl.render.deployment import render as rendered
    from pdctl.render.place import place_of
    from pdctl.render.scrape import Scraped
    from pdctl.state.store import StateStore

    state = StateStore(config.name).load()
    processes = list(state.processes.values()) if state else []
    if isinstance(config.target, ExternalTarget):
        for index, url in enumerate(config.target.prefill):
            yield Scraped(f"prefill-{index}", "prefill", url)
        for index, url in enumerate(config.target.decode):
            yield Scraped(f"decode-{index}", "decode", url)
    for process in processes or rendered(config, place_of(config)).processes:
        if process.role == "router" and config.router.kind == "vllm-example":
            continue
        if not process.port or process.address.startswith("<"):
            raise UsageError(
                f"where `{process.name}` answers is not known before it is started",
                where=config.name,
                hints=["start the deployment first, or name hosts and ports in the configuration"],
            )
        yield Scraped(process.name, process.role, process.url)


def _joined(made: "list[Text]") -> str:
    if len(made) == 1:
        return made[0].content
    return "\n".join(f"# ==> {text.name} <==\n{text.content}" for text in made)


def _write(folder: Path, text: "Text") -> Path:
    path = folder / text.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{text.name}.part")
        part.unlink(missing_ok=True)
        part.touch(mode=text.mode)
        part.write_text(text.content)
        part.chmod(text.mode)
        part.replace(path)
    except (PermissionError, FileExistsError, NotADirectoryError) as error:
        raise PermissionDeniedError(
            f"cannot write: {error.strerror}", where=str(path), expected="a folder to write into"
        ) from error
    return path
