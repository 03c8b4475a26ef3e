"""`pdctl init`."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from pdctl.base.errors import PdctlError, PermissionDeniedError, UsageError
from pdctl.cli import options, ui

Template = Literal["local-cpu", "ssh", "p5en"]

_NEXT: dict[Template, str] = {
    "local-cpu": "next: pdctl up",
    "ssh": "next: change the lines marked EDIT, then pdctl render",
    "p5en": "next: change the lines marked EDIT, then pdctl plan",
}


def init(
    template: Annotated[
        Template, typer.Option("--template", help="What to start from.")
    ] = "local-cpu",
    file: options.File = options.DEFAULT_FILE,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Write a commented configuration to start from; `--file -` prints it."""
    from pdctl.base.paths import templates_dir

    content = (templates_dir() / "init" / f"{template}.yaml").read_bytes()
    if str(file) == "-":
        ui.data(content.decode())
        return
    try:
        _write(file, content, force=force)
    except OSError as error:
        raise _refused(file, error) from error
    ui.say(f"wrote {file} ({template})", "ok")
    ui.say(_NEXT[template] + ("" if file == options.DEFAULT_FILE else f" --file {file}"))


def _write(file: Path, content: bytes, *, force: bool) -> None:
    """Write the file whole or not at all; without `force` only where nothing is."""
    if not force:
        with file.open("xb") as new:
            try:
                new.write(content)
                new.flush()
            except OSError:
                file.unlink(missing_ok=True)
                raise
        return
    real = Path(os.path.realpath(file))  # a link stays a link
    draft = real.with_name(f".{real.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.replace(real)
    finally:
        draft.unlink(missing_ok=True)


def _refused(file: Path, error: OSError) -> PdctlError:
    match error:
        case FileExistsError():
            return UsageError(
                f"`{file}` exists; nothing was written",
                hints=["`--force` replaces it", "`--file FILE` writes another one"],
            )
        case IsADirectoryError():
            return UsageError(f"`{file}` is a directory", hints=[f"`--file {file / 'pd.yaml'}`"])
        case FileNotFoundError():
            return UsageError(
                f"there is no directory `{file.parent}`", hints=[f"`mkdir -p {file.parent}`"]
            )
        case PermissionError():
            return PermissionDeniedError(f"`{file}` may not be written by this user")
    return UsageError(f"`{file}` cannot be written: {error.strerror}")
