"""`pdctl reuse`: switch reuse off, on, or to a share of conversations, while the routers run."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.base.errors import UnreachableError, UsageError
from pdctl.cli import options, ui

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.base.process import ProcessSpec
    from pdctl.config.model import Config
    from pdctl.observe.reuse import RouterReuse


def reuse(
    setting: Annotated[
        str | None,
        typer.Argument(
            metavar="[off|on|PCT]", help="PCT is a percentage of conversations; nothing: show."
        ),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Only for this tenant of the API keys.")
    ] = None,
    file: options.File = options.DEFAULT_FILE,
    url: Annotated[
        list[str] | None,
        typer.Option("--url", help="A router that no file names; may be repeated."),
    ] = None,
    api_keys: Annotated[
        Path | None,
        typer.Option("--api-keys", help="The routers' file of API keys, if no file names it."),
    ] = None,
    dry_run: options.DryRun = False,
    json: options.Json = False,
) -> None:
    """Show or switch for whom the routers reuse KV; it lasts until they end.

    `off` also keeps nothing new on decode and gives back at once what is kept there. A router that
    starts takes `router.reuse_share` of its configuration again.

    Exit status 0: all routers say so. Else that of the worst: 1 a router refuses it, 69 it does
    not answer, 77 it wants another key. Every router is told, whatever another one says.
    """
    import asyncio

    from pdctl.observe.reuse import Change, ask_all

    change = None if setting is None else Change(share_of(setting), tenant)
    if change is None and tenant is not None:
        raise UsageError("`--tenant` goes with a setting", expected="off, on or a percentage")
    with ExitStack() as ways:
        name, routers, key = _routers(file, url or [], api_keys, ways)
        found = asyncio.run(ask_all(routers, key, None if dry_run else change))
    if json:
        ui.json({"name": name, "routers": [router.as_dict() for router in found]})
    else:
        _show(found)
    if dry_run and change is not None:
        whose = f" for `{tenant}`" if tenant else ""
        ui.say(f"reuse would be {_word(change.share)}{whose}; nothing was changed (`--dry-run`)")
    if failed := [int(router.error.exit_code) for router in found if router.error]:
        raise typer.Exit(max(failed))


def share_of(setting: str) -> float:
    """`off`, `on` or a percentage as a share, 0 to 1.

    Raises:
        UsageError: it is none of them.
    """
    words = {"off": 0.0, "on": 1.0}
    if setting in words:
        return words[setting]
    try:
        percent = float(setting.removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not 0 <= percent <= 100:
        raise UsageError(
            f"`{setting}` is no setting", expected="off, on, or a percentage such as 25"
        )
    return percent / 100


def _routers(
    file: Path, urls: list[str], api_keys: Path | None, ways: ExitStack
) -> tuple[str | None, list[tuple[str, str]], str | None]:
    """The name of the deployment, name and URL of each of its routers, and the key to show."""
    from pdctl.deploy.reach import ways_to
    from pdctl.render.check import load_checked
    from pdctl.state.store import StateStore

    if urls:
        return None, [(url, url.rstrip("/")) for url in urls], _admin_key(api_keys)
    config = load_checked(file).config
    if config.router.kind != "pdctl":
        raise UsageError("the example proxy has no switch", where="key `router.kind`")
    state = StateStore(config.name).load()
    records = state.processes.values() if state else _as_rendered(config)
    near = ways.enter_context(ways_to(config))
    found = sorted((r.index, r.name, near(r)) for r in records if r.role == "router" and r.port)
    if not found:
        raise UnreachableError(
            f"no router of `{config.name}` was started",
            where=str(file),
            hints=["`pdctl up` starts it", "`--url` names one that something else runs"],
        )
    key = _admin_key(api_keys or config.router.api_keys_file)
    return config.name, [(name, url) for _, name, url in found], key


def _as_rendered(config: "Config") -> "Sequence[ProcessSpec]":
    """Where the routers are meant to be, of engines and routers that pdctl does not start."""
    from pdctl.config.model import ExternalTarget
    from pdctl.render.deployment import render
    from pdctl.render.place import place_of

    if not isinstance(config.target, ExternalTarget):
        return ()
    return render(config, place_of(config)).processes


def _admin_key(file: Path | None) -> str | None:
    from pdctl.base.errors import NotFoundError
    from pdctl.base.explain import ADMIN_TENANT
    from pdctl.observe.endpoints import tenant_key

    if file is None:
        return None
    try:
        return tenant_key(file.read_text(), ADMIN_TENANT)
    except (OSError, UnicodeDecodeError) as error:
        raise NotFoundError(f"cannot read the file of keys: {error}", where=str(file)) from error


def _show(found: "Sequence[RouterReuse]") -> None:
    ui.table(["router", "url", "reuse", "tenants", "given back"], [_row(each) for each in found])
    for router in found:
        if router.error is not None:
            ui.say(f"{ui.mark('bad')} {router.name}: {router.error.message}", "bad")
            for line in (*router.error.detail, *(f"hint: {hint}" for hint in router.error.hints)):
                ui.say(f"  {line}")
    said = {(router.share, tuple(sorted(router.tenants.items()))) for router in found}
    if len(said) > 1:
        ui.say("the routers do not say the same; set it again to make them", "warn")


def _row(router: "RouterReuse") -> list[object]:
    tenants = ", ".join(f"{name} {_word(share)}" for name, share in router.tenants.items())
    word = None if router.share is None else _word(router.share)
    return [router.name, router.url, word, tenants or None, router.released]


def _word(share: float) -> str:
    return {0.0: "off", 1.0: "on"}.get(share, f"{share * 100:g}%")
