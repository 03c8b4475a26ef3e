"""`pdctl render`: the exact commands, environment and units; nothing is started or changed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pdctl.base.errors import PermissionDeniedError, UsageError
from pdctl.cli import options, ui

if TYPE_CHECKING:
    from pdctl.render.formats import Text


def render(
    file: options.File = options.DEFAULT_FILE,
    role: Annotated[
        Literal["prefill", "decode", "router"] | None,
        typer.Option("--role", help="Only this role's processes."),
    ] = None,
    form: Annotated[
        Literal["shell", "systemd", "json"],
        typer.Option("--format", help="Launch scripts, systemd units, or one JSON."),
    ] = "shell",
    json: options.Json = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write files into this folder instead.")
    ] = None,
) -> None:
    """Show what `up` runs: the commands, their environment, and the units.

    Engine ids, and ports configured as 0, are chosen at every start and stand as placeholders.
    Secrets are masked.

    Examples: `pdctl render --role prefill`, `pdctl render --format systemd --out units`.
    """
    from pdctl.deploy.local import read_example
    from pdctl.render.check import load_checked
    from pdctl.render.deployment import render as rendered
    from pdctl.render.formats import texts
    from pdctl.render.place import place_of

    config = load_checked(file).config
    deployment = rendered(config, place_of(config), example=read_example(config))
    for notice in deployment.notices:
        ui.say(f"{ui.mark('warn')} {notice}", "warn")
    made = texts(deployment, config, "json" if json else form, role=role)
    if not made:
        raise UsageError(f"there is no {role} process in this deployment", where="--role")
    if out is None:
        ui.data(_joined(made))
        return
    for text in made:
        ui.data(str(_write(out, text)))


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
