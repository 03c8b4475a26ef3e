"""`pdctl analyze`: is reuse worth it, and for how long, from the user's own traffic."""

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.base.errors import BadAnswerError, UsageError
from pdctl.cli import options, ui

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.analyze.answer import Answer
    from pdctl.analyze.lines import Log
    from pdctl.analyze.read import Reading


def analyze(
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG…", help="Request logs; `-` is stdin, .gz and .zst are unpacked."
        ),
    ],
    json: options.Json = False,
    ttl: Annotated[
        str, typer.Option(help="Decode's TTL: `decoder_ttl`, in seconds or as `8m`.")
    ] = "480",
    strict: Annotated[bool, typer.Option("--strict", help="A bad line is an error.")] = False,
) -> None:
    """Say from request logs whether reuse is worth it, and for how long to keep KV.

    Reads JSON lines with `conversation_id`, `ts` and `prompt_tokens`, and more where it is logged,
    as the router's own request log does.

    Exit status 0: analysed, whatever the verdict. 1: with `--strict`, a line could not be read.
    """
    from pdctl.analyze.answer import answer_of
    from pdctl.analyze.scan import Wanted, scan

    wanted = Wanted(seconds(ttl, "--ttl"))
    with _opened(logs) as opened, _no_cycles():
        scanned = scan(opened, wanted)
        answer = answer_of(scanned)
    _tell_bad(scanned.readings, strict=strict)
    if json:
        ui.json(answer.as_dict())
    else:
        _show(answer)


def seconds(text: str, option: str) -> float:
    """A duration of the command line.

    Raises:
        UsageError: it is none.
    """
    from pdctl.base.durations import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(str(error), where=option) from None


@contextmanager
def _opened(paths: list[str]) -> "Iterator[list[Log]]":
    """The logs; what came through a pipe is kept as long as it is read."""
    import tempfile

    from pdctl.analyze.lines import STDIN, open_log

    if len(set(paths)) < len(paths):
        twice = next(each for each in paths if paths.count(each) > 1)
        raise UsageError("a log is named twice", where=twice)
    if STDIN not in paths:
        yield [open_log(path) for path in paths]
        return
    with tempfile.TemporaryFile() as spool:
        yield [open_log(path, spool=spool) for path in paths]


@contextmanager
def _no_cycles() -> "Iterator[None]":
    """Millions of small objects that no cycle holds: looking for cycles among them takes long."""
    import gc

    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def _tell_bad(readings: "dict[str, Reading]", *, strict: bool) -> None:
    for name, reading in readings.items():
        if not reading.bad:
            continue
        shown = [f"{name}:{each.number}: {each.reason}: {each.text}" for each in reading.first_bad]
        if len(shown) < reading.bad:
            shown.append(f"… and {reading.bad - len(shown):,} more")
        lines = "1 line" if reading.bad == 1 else f"{reading.bad:,} lines"
        if strict:
            raise BadAnswerError(
                f"{lines} of the request log cannot be read",
                where=name,
                expected="JSON objects with `conversation_id`, `ts` and `prompt_tokens`",
                detail=shown,
            )
        ui.say(f"{name}: {lines} of {reading.lines:,} cannot be read and are left out", "warn")
        for line in shown:
            ui.say(f"  {line}")


def _show(answer: "Answer") -> None:
    line = ui.writer()
    line(f"follow-up turns:            {answer.follow_up_turns}")
    line(f"repeated prompt share (>=): {_share(answer.repeated_share)}")
    line(f"turns after the TTL:        {_share(answer.late_share)}")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
