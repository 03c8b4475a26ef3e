"""`pdctl bench`: reuse off against on, measured on the user's own pair."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pdctl.base.errors import BadAnswerError, NotFoundError, PdctlError, UsageError
from pdctl.cli import options, ui
from pdctl.cli.reached import reached, require_router
from pdctl.cli.terminated import as_ctrl_c

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.bench.files import Folder
    from pdctl.bench.run import Settings
    from pdctl.bench.stats import Estimate
    from pdctl.bench.summary import Line, Summary
    from pdctl.config.model import Config

_CPU_CONVERSATIONS = 4
"""Of hundreds of tokens a turn, which take a CPU seconds each."""
Caching = Literal["as-is", "on", "off", "both"]


def bench(
    file: options.File = options.DEFAULT_FILE,
    legs: Annotated[str, typer.Option(help="`off`, `on` or both: reuse in the router.")] = "off,on",
    prefix_caching: Annotated[
        Caching,
        typer.Option(
            help="Prefill's own prefix cache: `on` is production, `off` the best case of reuse; "
            "what differs from what runs restarts prefill, and again at the end."
        ),
    ] = "as-is",
    lengths: Annotated[
        str, typer.Option(help="Tokens that conversations begin with.")
    ] = "2k,4k,8k,12k,16k,20k,24k",
    conversations: Annotated[
        int | None, typer.Option(min=1, help="In each cell.  [default: 10; 4 on CPUs]")
    ] = None,
    turns: Annotated[int, typer.Option(min=2, help="Of each conversation.")] = 10,
    question: Annotated[int, typer.Option(min=1, help="Tokens that each turn adds.")] = 150,
    answer: Annotated[int, typer.Option(min=2, help="Tokens that each turn generates.")] = 300,
    clients: Annotated[int, typer.Option(min=1, help="Requests at the same time.")] = 2,
    gap: Annotated[float, typer.Option(min=0, help="Seconds between answer and next turn.")] = 0.0,
    rate: Annotated[
        float | None,
        typer.Option(min=0.001, help="Conversations that begin in a second; no fixed clients."),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Of everything.  [default: 3; 1 on CPUs]")
    ] = None,
    warmup: Annotated[
        int, typer.Option(min=0, help="Conversations in each leg that are not counted.")
    ] = 1,
    chat: Annotated[bool, typer.Option("--chat", help="Send words as chats, not ids.")] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Request log to replay with its gaps, instead.")
    ] = None,
    speed: Annotated[float, typer.Option(min=0.001, help="Of the trace: 2 is twice.")] = 1.0,
    max_requests: Annotated[
        int | None, typer.Option(min=1, help="Of the trace, from its beginning.")
    ] = None,
    seed: Annotated[str | None, typer.Option(help="Of all content; default is a new one.")] = None,
    max_time: Annotated[
        str | None, typer.Option(help="No cell begins that would end later: `10m`.")
    ] = None,
    settle: Annotated[
        str, typer.Option(help="How long decode may take to hold nothing any more.")
    ] = "10m",
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default is made.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Folder of a run that was cut short; measures the rest.")
    ] = None,
    yes: options.Yes = False,
    json: options.Json = False,
) -> None:
    """Measure how much sooner the first token comes with reuse, on your own pair.

    The legs are measured beside each other through the router: reuse is switched there, and
    between two cells decode must hold nothing any more. Begins with the two-turn proof, and
    measures nothing if it fails. Reuse is set back to what it was at the end. Ctrl-C keeps what
    was measured. Before it restarts prefill it asks.

    Exit status 0: measured. 1: reuse is not proven, or a leg was not what it is called. 75: the
    engines serve somebody else.
    """
    from pdctl.bench.run import Settings
    from pdctl.bench.workload import Shape
    from pdctl.engine import choices
    from pdctl.render.check import load_checked

    config = load_checked(file).config
    _require_switch(config)
    if trace is not None and (chat or rate is not None):
        raise UsageError("`--trace` goes with neither `--chat` nor `--rate`")
    began = _monotonic()
    slow = choices.on_cpu(config)
    settings = Settings(
        shape=Shape(
            conversations=conversations or (_CPU_CONVERSATIONS if slow else 10),
            turns=turns,
            lengths=_lengths(lengths),
            question=question,
            answer=answer,
            clients=clients,
            gap_s=gap,
            rate=rate,
            chat=chat,
        ),
        legs=_legs(legs),
        repeats=repeats or (1 if slow else 3),
        warmup=warmup,
        seed=seed or _new_seed(),
        trace=None if trace is None else _trace(trace),
        speed=speed,
        max_requests=max_requests,
        settle_s=_seconds(settle, "--settle"),
    )
    deadline = None if max_time is None else began + _seconds(max_time, "--max-time")
    caching = _caching(prefix_caching, config)
    if caching == (None,):
        with reached(config) as endpoints:
            require_router(endpoints)
    else:
        ui.say("prefill is restarted where its prefix cache is otherwise, and at the end", "warn")
        ui.confirm(f"Go on with `{config.name}`?", yes=yes)
    folder, settings = _folder(config, settings, out, resume, str(trace or ""))
    ui.say(f"this run is kept in {folder.path}", "dim")
    try:
        with as_ctrl_c():
            _measure(config, file, settings, folder, caching, deadline)
    except KeyboardInterrupt:
        ui.say(f"`pdctl bench --resume {folder.path}` measures the rest", "warn")
        raise
    finally:
        summary = _summarised(folder)
        if not json:
            show(summary)
    if json:
        ui.json({"folder": str(folder.path), **summary.as_dict()})
    ui.say(f"`pdctl report {folder.path}` draws it", "ok")


# --- what is asked for -----------------------------------------------------------------------


def _require_switch(config: "Config") -> None:
    if config.router.kind != "pdctl":
        raise UsageError(
            "the example proxy cannot switch reuse, so there are no two legs",
            where="key `router.kind`",
            expected="`pdctl`",
        )


def _legs(text: str) -> "tuple[Literal['off', 'on'], ...]":
    words = [word.strip() for word in text.split(",")]
    if not words or not set(words) <= {"off", "on"} or len(set(words)) != len(words):
        raise UsageError(
            f"`{text}` are no legs", where="--legs", expected="`off`, `on` or `off,on`"
        )
    return tuple("off" if word == "off" else "on" for word in words)


def _lengths(text: str) -> tuple[int, ...]:
    from pdctl.bench.workload import parse_lengths

    try:
        return parse_lengths(text)
    except ValueError as error:
        raise UsageError(
            f"`{text}` are no lengths", where="--lengths", expected="tokens, such as 2k,4k,12000"
        ) from error


def _caching(wanted: Caching, config: "Config") -> "tuple[bool | None, ...]":
    from pdctl.bench.deployed import require_restarts

    if wanted == "as-is":
        return (None,)
    require_restarts(config)
    return {"on": (True,), "off": (False,), "both": (True, False)}[wanted]


def _seconds(text: str, option: str) -> float:
    from pdctl.base.durations import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(str(error), where=option) from error


def _new_seed() -> str:
    import secrets

    return secrets.token_hex(4)


def _monotonic() -> float:
    import time

    return time.monotonic()


def _trace(path: Path) -> "list[Mapping[str, Any]]":
    import json

    try:
        with path.open() as lines:
            return [json.loads(line) for line in lines if line.strip()]
    except OSError as error:
        raise NotFoundError(f"cannot read the trace: {error.strerror}", where=str(path)) from error
    except ValueError as error:
        raise BadAnswerError(
            f"the trace has a line that is no JSON: {error}", where=str(path)
        ) from error


def _folder(
    config: "Config", settings: "Settings", out: Path | None, resume: Path | None, trace: str
) -> "tuple[Folder, Settings]":
    import time

    from pdctl.bench import files
    from pdctl.bench.about import about
    from pdctl.state.store import StateStore

    if resume is not None:
        if out is not None:
            raise UsageError("`--resume` names the folder already; leave `--out` out")
        folder = files.reopen(resume)
        return folder, _resumed(config, folder, settings, trace)
    now = time.time()
    name = f"bench-{config.name}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}"
    state = StateStore(config.name).load()
    told = about(config, state, settings, now=now, trace=trace)
    return files.create(out or Path(name), told), settings


def _resumed(config: "Config", folder: "Folder", settings: "Settings", trace: str) -> "Settings":
    """The settings of the run that goes on; only limits may be new."""
    from dataclasses import replace

    from pdctl.bench.workload import Shape

    if folder.about["name"] != config.name:
        raise UsageError(
            f"this run measured `{folder.about['name']}`, not `{config.name}`",
            where=str(folder.path),
        )
    said = folder.about["settings"]
    if said["trace"] != trace:
        raise UsageError(
            f"this run replays `{said['trace'] or 'no trace'}`",
            where=str(folder.path),
            hints=["give the same `--trace` again"],
        )
    shape = Shape(**{**said["shape"], "lengths": tuple(said["shape"]["lengths"])})
    return replace(
        settings,
        shape=shape,
        **{key: said[key] for key in ("repeats", "warmup", "seed", "speed", "max_requests")},
        legs=tuple(said["legs"]),
    )


# --- measuring -------------------------------------------------------------------------------


def _measure(
    config: "Config",
    file: Path,
    settings: "Settings",
    folder: "Folder",
    caching: "Sequence[bool | None]",
    deadline: float | None,
) -> None:
    from pdctl.bench.deployed import bring_up, with_prefix_caching

    if caching == (None,):
        _group(config, settings, folder, deadline)
        return
    listen = ui.listener()
    try:
        for value in caching:
            changed = with_prefix_caching(config, value)
            bring_up(changed, file, listen)
            _group(changed, settings, folder, deadline)
    except KeyboardInterrupt:
        ui.say(f"prefill may run with another setting: `pdctl up -f {file}` puts it back", "warn")
        raise
    except PdctlError:
        bring_up(config, file, listen)
        raise
    bring_up(config, file, listen)


def _group(
    config: "Config", settings: "Settings", folder: "Folder", deadline: float | None
) -> None:
    import asyncio

    from pdctl.bench.run import Bench
    from pdctl.deploy.local import keys_of, read_secrets

    with reached(config) as endpoints:
        run = Bench(
            endpoints,
            settings,
            folder,
            admin_key=keys_of(read_secrets(config)).admin,
            listen=ui.listener(),
            deadline=deadline,
        )
        asyncio.run(run.run())


def _summarised(folder: "Folder") -> "Summary":
    from pdctl.bench import files
    from pdctl.bench.summary import summarise

    summary = summarise(files.read(folder.path))
    folder.write_summary(summary.as_dict())
    return summary


# --- telling ---------------------------------------------------------------------------------


def show(summary: "Summary") -> None:
    """Print the tables."""
    if not summary.lines:
        ui.say("nothing was measured", "warn")
        return
    ui.table(
        ["length", "leg", "turns", "TTFT, ms (95 %)", "p95", "first turn", "TPOT", "HIT", "reused"],
        [_speed_row(line) for line in summary.lines],
    )
    ui.data("")
    ui.table(
        ["length", "leg", "prefill", "transfer", "compute", "pulled", "MB", "cached", "pinned"],
        [_prefill_row(line) for line in summary.lines],
    )
    for ratio in summary.ratios:
        cache = {None: "", True: ", prefill's prefix cache on", False: ", prefix cache off"}
        where = f"{_length(ratio.length)}{cache[ratio.caching]}"
        times = _interval(ratio.value, ".1f")
        ui.data(f"{where}: the first token comes {times} times as fast with reuse")


def _speed_row(line: "Line") -> list[object]:
    return [
        _length(line.length),
        line.leg.label,
        f"{line.turns}{'!' if line.errors or line.incomplete else ''}",
        None if line.ttft is None else _interval(line.ttft, ",.0f"),
        _number(line.ttft_p95, ",.0f"),
        None if line.first_ttft is None else f"{line.first_ttft.value:,.0f}",
        None if line.tpot is None else f"{line.tpot.value:,.1f}",
        None if line.hits is None else f"{line.hits:.0%}",
        _number(line.reused, ",.0f"),
    ]


def _prefill_row(line: "Line") -> list[object]:
    return [
        _length(line.length),
        line.leg.label,
        *(_number(value, ",.0f") for value in (line.prefill_ms, line.transfer_ms)),
        _number(line.compute_ms, ",.0f"),
        _number(line.pulled_tokens, ",.0f"),
        None if line.pulled_bytes is None else f"{line.pulled_bytes / 1e6:,.1f}",
        _number(line.cached_tokens, ",.0f"),
        _number(line.pinned_tokens, ",.0f"),
    ]


def _length(length: int | None) -> str:
    return "trace" if length is None else f"{length:,}"


def _interval(estimate: "Estimate", form: str) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:{form}}"
    return f"{estimate.value:{form}} ({estimate.low:{form}}–{estimate.high:{form}})"


def _number(value: float | None, form: str) -> str | None:
    return None if value is None else f"{value:{form}}"
