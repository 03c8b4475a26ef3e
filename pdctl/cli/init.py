"""`pdctl init`."""

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from pdctl.base.errors import PdctlError, PermissionDeniedError, UsageError
from pdctl.cli import options, ui

Template = Literal["local-cpu", "ssh", "p5en"]

_HOURS = 8.0
"""What the template says."""
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
    max_hours: Annotated[
        float | None,
        typer.Option("--max-hours", min=0.25, help="p5en: hosts end by themselves after this."),
    ] = None,
) -> None:
    """Write a commented configuration to start from; `--file -` prints it.

    For hosts that cost by the hour it asks, at a terminal, when they are to end by themselves.
    """
    from pdctl.base.paths import templates_dir

    if max_hours is not None and template != "p5en":
        raise UsageError(
            f"the template `{template}` makes no hosts that could end by themselves",
            where="--max-hours",
            expected="`--template p5en` beside it",
        )
    content = (templates_dir() / "init" / f"{template}.yaml").read_bytes()
    if template == "p5en":
        content = _with_end(content, max_hours)
    if str(file) == "-":
        ui.data(content.decode())
        return
    try:
        _write(file, content, force=force)
    except OSError as error:
        raise _refused(file, error) from error
    ui.say(f"wrote {file} ({template})", "ok")
    ui.say(_NEXT[template] + ("" if file == options.DEFAULT_FILE else f" --file {file}"))


def _with_end(content: bytes, hours: float | None) -> bytes:
    """The switch that ends the hosts when nobody does: asked for, so that it is nobody's accident.

    Raises:
        UsageError: the answer is no number of hours.
    """
    if hours is None and sys.stdin.isatty():
        ui.say(f"End the hosts by themselves after how many hours? [{_HOURS:g}] ")
        answer = sys.stdin.readline().strip()
        try:
            hours = float(answer) if answer else _HOURS
        except ValueError:
            hours = 0.0
        if not hours >= 0.25:
            raise UsageError(f"`{answer}` is no number of hours", expected="0.25 or more")
    line = f"max_hours: {_HOURS:g}".encode()
    assert content.count(line) == 1
    return content.replace(line, f"max_hours: {_HOURS if hours is None else hours:g}".encode())


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
