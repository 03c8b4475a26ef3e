"""`pdctl analyze`: is reuse worth it, and for how long, from the user's own traffic."""

import textwrap
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.base.errors import BadAnswerError, NotFoundError, UsageError
from pdctl.cli import options, ui
from pdctl.cli.kvmodel import named_model, token_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.analyze.answer import Answer, Plots, TtlRow
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
    ttl: Annotated[str, typer.Option(help="Decode's TTL now, in seconds or as `8m`.")] = "480",
    capacity: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens that all decode servers together have room for."),
    ] = None,
    engine_log: Annotated[
        list[Path] | None,
        typer.Option(help="Log of a decode server, which says its room; once for each."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model, or its config.json: shows memory in GiB.")
    ] = None,
    kv_dtype: Annotated[str, typer.Option(help="As `model.kv_cache_dtype`.")] = "auto",
    tensor_parallel: Annotated[int, typer.Option(min=1, help="GPUs of a decode server.")] = 1,
    block: Annotated[int, typer.Option(min=1, help="Tokens in a block of decode's cache.")] = 16,
    threshold: Annotated[int, typer.Option(min=1, help="As `kv.recompute_threshold`.")] = 64,
    out: Annotated[
        Path | None, typer.Option(help="Also write a report, one HTML file that needs no network.")
    ] = None,
    replay: Annotated[
        int, typer.Option(min=1, help="Turns to replay at most; of more, a sample is taken.")
    ] = 50_000,
    strict: Annotated[bool, typer.Option("--strict", help="A bad line is an error.")] = False,
) -> None:
    """Say from request logs whether reuse is worth it, and for how long to keep KV.

    Reads JSON lines with `conversation_id`, `ts` and `prompt_tokens`, and more where it is logged,
    as the router's own request log does. Several files, in any order.

    Exit status 0: analysed, whatever the verdict. 1: with `--strict`, a line could not be read.
    """
    from pdctl.analyze.answer import Asked, conclude
    from pdctl.analyze.scan import Wanted, scan

    asked = Asked(
        ttl=seconds(ttl, "--ttl"),
        block=block,
        capacity=_capacity(capacity, engine_log),
        token_bytes=token_bytes(model, kv_dtype, tensor_parallel) if model else None,
        threshold=threshold,
        curve=named_model(model).curve if model else None,
    )
    if out is not None:
        _require_no_log(out, logs)
    with _opened(logs) as opened, no_cycles():
        scanned = scan(opened, Wanted(asked.ttl, sample=replay))
        _tell_bad(scanned.readings, strict=strict)
        answer, plots = conclude(scanned, asked)
    if out is not None:
        _write(out, answer, plots)
    if json:
        ui.json(answer.as_dict())
    else:
        show(answer)


def _capacity(tokens: int | None, logs: list[Path] | None) -> int | None:
    """Room on all decode servers, as given or as they say.

    Raises:
        UsageError: both are given.
        NotFoundError: a log cannot be read, or says nothing.
    """
    from pdctl.engine.kv_arithmetic import reported_capacity

    if not logs:
        return tokens
    if tokens is not None:
        raise UsageError("`--capacity` and `--engine-log` say the same thing; give one")
    total = 0
    for path in logs:
        try:
            with path.open(errors="replace") as file:
                said = [found for line in file if (found := reported_capacity(line)) is not None]
        except OSError as error:
            raise NotFoundError(
                f"cannot read the log: {error.strerror}", where=str(path)
            ) from error
        if not said:
            raise NotFoundError(
                "the log does not say what the engine has room for",
                where=str(path),
                expected="a line with `KV cache size: N tokens`",
            )
        total += said[-1]
    return total


def _require_no_log(out: Path, logs: list[str]) -> None:
    """Refuse to write the report over what is read.

    Raises:
        UsageError: it is the same file.
    """
    import os

    for log in logs:
        if out.exists() and os.path.exists(log) and os.path.samefile(out, log):
            raise UsageError(
                "the report would replace the log",
                where=f"--out {out}",
                expected="a file of another name",
            )


def _write(path: Path, answer: "Answer", plots: "Plots") -> None:
    from pdctl.analyze.report import page

    text = page(answer, plots)
    try:
        path.write_text(text)
    except OSError as error:
        raise NotFoundError(
            f"cannot write the report: {error.strerror}", where=str(path)
        ) from error
    ui.say(f"report: {path}", "ok")


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
    import os
    import tempfile

    from pdctl.analyze.lines import STDIN, open_log

    files = [each if each == STDIN else os.path.realpath(each) for each in paths]
    for at, each in enumerate(files):
        if each in files[:at]:
            raise UsageError("a log is named twice", where=paths[at])
    if STDIN not in paths:
        yield [open_log(path) for path in paths]
        return
    with tempfile.TemporaryFile() as spool:
        yield [open_log(path, spool=spool) for path in paths]


@contextmanager
def no_cycles() -> "Iterator[None]":
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


def show(answer: "Answer") -> None:
    """Print the answer; the first three lines are those of the seed's script."""
    line = ui.writer()
    line(f"follow-up turns:            {answer.follow_up_turns}")
    line(f"repeated prompt share (>=): {_share(answer.repeated_share)}")
    line(f"turns after the TTL:        {_share(answer.late_share)}")
    if answer.exact_share is not None:
        line(f"repeated with the answers:  {_share(answer.exact_share)}")
    if answer.observed is not None:
        line(f"reused, as the log says:    {_share(answer.observed['reused_share'])}")
    if answer.follow_up_turns:
        line("")
        _show_gaps(answer, line)
        _show_curve(answer)
        _show_notes(answer, line)
    line("")
    for text in textwrap.wrap(answer.verdict.text, 80):
        line(text, "bold")


def _show_gaps(answer: "Answer", line: ui.Writer) -> None:
    since = "the end of one turn" if answer.gaps["from"] == "end" else "start to start"
    percentiles = answer.gaps["percentiles_s"]
    assert isinstance(percentiles, dict)
    told = ", ".join(f"{name} {_duration(value)}" for name, value in percentiles.items())
    line(f"gaps ({since}): {told}")
    line("")


def _show_curve(answer: "Answer") -> None:
    columns = ["TTL", "turns in time", "reused tokens", "pinned, mean", "pinned, peak", "fits"]
    ui.table(columns, [_curve_row(row, answer) for row in answer.ttl_curve])


def _curve_row(row: "TtlRow", answer: "Answer") -> list[object]:
    marks = {answer.ttl_s: " now", float(answer.knee_s or -1): " knee"}
    mark = " <-" if row.ttl_s == answer.recommended_ttl_s else ""
    gib = "" if row.pinned_gib_peak is None else f" {row.pinned_gib_peak:,.1f} GiB"
    return [
        f"{_duration(row.ttl_s)}{marks.get(row.ttl_s, '')}{mark}",
        _share(row.hit_share),
        _share(row.reused_share),
        _tokens(row.pinned_tokens_mean),
        _tokens(row.pinned_tokens_peak) + gib,
        None if row.fits is None else ("yes" if row.fits else "no"),
    ]


def _show_notes(answer: "Answer", line: ui.Writer) -> None:
    notes = [_simulated_note(answer), *_speed_notes(answer), _measured_note(answer)]
    if answer.capacity_tokens is None:
        notes.append("decode's room is not known: add `--capacity` or `--engine-log`")
    if answer.sample["one_of"] != 1:
        notes.append(
            f"tokens and memory are from {answer.sample['turns']:,} turns, one conversation in "
            f"{answer.sample['one_of']}, scaled up"
        )
    line("")
    for note in filter(None, notes):
        for text in textwrap.wrap(note, 78, initial_indent="- ", subsequent_indent="  "):
            line(text)


def _simulated_note(answer: "Answer") -> str:
    done = answer.simulated
    if done is None or answer.capacity_tokens is None:
        return ""
    return (
        f"replayed with a TTL of {_duration(done.ttl_s)} and room for "
        f"{_tokens(answer.capacity_tokens)} tokens: {_share(done.hit_share)} of follow-up turns "
        f"reuse, {_share(done.late_share)} come too late, the blocks of "
        f"{_share(done.evicted_share)} had to make room"
    )


def _speed_notes(answer: "Answer") -> list[str]:
    published = answer.ttft["published"]
    assert isinstance(published, list)
    return [
        f"with the published speed of {each['curve']} a follow-up turn's first token, "
        f"{each['cold_ms']:,.0f} ms cold, comes {_from_to(each['low_ms'], each['high_ms'])} ms "
        "sooner"
        for each in published
    ]


def _from_to(low: float, high: float) -> str:
    told = f"{low:,.0f}", f"{high:,.0f}"
    return f"some {told[0]}" if told[0] == told[1] else f"{told[0]} to {told[1]}"


def _measured_note(answer: "Answer") -> str:
    fitted = answer.ttft["measured"]
    if not isinstance(fitted, dict):
        return ""
    threshold = fitted["threshold"]
    told = "pulling is never faster" if threshold is None else f"threshold: {threshold:,} tokens"
    return (
        f"this log's speeds: {fitted['compute_ms_per_1k']:,.1f} ms to compute 1000 tokens, "
        f"{fitted['pull_fixed_ms']:,.1f} + {fitted['pull_ms_per_1k']:,.1f} ms to pull them; {told}"
    )


def _share(value: object) -> str:
    return f"{value:.1%}" if isinstance(value, float | int) else "-"


def _duration(value: float | None) -> str:
    from pdctl.base.durations import format_duration

    return "-" if value is None else format_duration(value)


def _tokens(value: float) -> str:
    """`1.2M`, `340k`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.0f}"
