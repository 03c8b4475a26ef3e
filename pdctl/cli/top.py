"""`pdctl top`: what happens on a deployment now."""

from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.base.exits import ExitCode
from pdctl.cli import options, ui
from pdctl.cli.reached import reached

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from pdctl.doctor.table import Finding
    from pdctl.observe.endpoints import Endpoints
    from pdctl.observe.top import Glance, View

_WINDOW_S = 60.0


def top(
    file: options.File = options.DEFAULT_FILE,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="One look, with counts since everything started.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON to stdout; goes with `--once`.")
    ] = False,
) -> None:
    """Watch engines, turns, times, retained KV, transfers and alerts until Ctrl-C.

    Counts and times are those of the last minute; with `--once`, since the processes started.
    Alerts are the checks of `doctor` that need no other look than this one.

    Exit status with `--once`: 0 when everything answers, 1 when not. After Ctrl-C: 130.
    """
    import asyncio

    from pdctl.base.errors import UsageError
    from pdctl.render.check import load_checked

    if json and not once:
        raise UsageError("`--json` goes with `--once`")
    with reached(load_checked(file).config) as endpoints:
        if not once:
            asyncio.run(_watch(endpoints, every))
            return
        seen, found = asyncio.run(_look_once(endpoints))
    if json:
        ui.json(seen.as_dict() | {"alerts": [each.as_dict() for each in found]})
    else:
        ui.show(_drawn(seen, found))
    if not seen.healthy:
        raise typer.Exit(int(ExitCode.BAD_ANSWER))


async def _look_once(endpoints: "Endpoints") -> "tuple[View, list[Finding]]":
    import aiohttp

    from pdctl.observe.top import glance, view

    async with aiohttp.ClientSession() as session:
        new = await glance(session, endpoints)
    return view(None, new), _alerts(new)


async def _watch(endpoints: "Endpoints", every: float) -> None:
    import asyncio

    import aiohttp

    from pdctl.observe.top import glance, view

    past: list[Glance] = []
    async with aiohttp.ClientSession() as session:
        with ui.live() as draw:
            while True:
                new = await glance(session, endpoints)
                past.append(new)
                # The oldest look that is still within the window, or the one before the first.
                while len(past) > 2 and new.facts.taken_at - past[1].facts.taken_at >= _WINDOW_S:
                    past.pop(0)
                seen = view(past[0] if len(past) > 1 else None, new)
                draw(_drawn(seen, _alerts(new)))
                await asyncio.sleep(every)


def _alerts(new: "Glance") -> "list[Finding]":
    from pdctl.doctor.rows import router, runtime
    from pdctl.doctor.table import run_checks

    findings = run_checks(new.facts, (*router.CHECKS, *runtime.CHECKS))
    return [each for each in findings if each.status in ("fail", "warn")]


def _drawn(seen: "View", alerts: "Sequence[Finding]") -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    lines = [Text(line) for line in _lines(seen)]
    shown = [
        Text(f"{ui.mark('bad' if each.status == 'fail' else 'warn')} {_alert(each)}")
        for each in alerts
    ]
    return Group(
        ui.grid(
            ["engine", "health", "running", "waiting", "KV tokens in use", "of", "vLLM"],
            [
                [
                    each.name,
                    f"{ui.mark('bad')} {each.problem}" if each.problem else ui.mark("ok"),
                    each.running,
                    each.waiting,
                    None if each.used is None else f"{each.used:,}",
                    None if each.room is None else f"{each.room:,}",
                    each.version,
                ]
                for each in seen.engines
            ],
        ),
        Text(""),
        *lines,
        *(shown or [Text(f"{ui.mark('ok')} no alert")]),
    )


def _alert(finding: "Finding") -> str:
    return f"{finding.id} {finding.target}: {'; '.join(finding.evidence)}"


def _lines(seen: "View") -> list[str]:
    if seen.router_problem:
        return [f"{ui.mark('bad')} router: {seen.router_problem}"]
    since = "since the start" if seen.window_s is None else f"in {seen.window_s:.0f} s"
    return [
        f"turns {since}: {_turns(seen)}",
        f"TTFT: {_times(seen)}",
        f"retained: {_number(seen.retained_tokens)} tokens in {_number(seen.handles)} handles, "
        f"decode has room for {_number(seen.room_tokens)}",
        f"decode → prefill: {_moved(seen.pulled_bytes, seen.pulls)}; prefill → decode: "
        f"{_moved(seen.handed_bytes, seen.hands)}; failed {_number(seen.failed)}, "
        f"expired {_number(seen.expired)}",
    ]


def _turns(seen: "View") -> str:
    if not seen.turns:
        return "none"
    order = ("HIT", "PARTIAL", "MISS", "OFF")
    counts = ", ".join(f"{each} {seen.turns[each]:,}" for each in order if each in seen.turns)
    share = "" if seen.hit_share is None else f" ({seen.hit_share:.0%} HIT)"
    tokens = ""
    if seen.prompt_tokens and seen.reused_tokens is not None:
        part = seen.reused_tokens / seen.prompt_tokens
        tokens = f"; {part:.0%} of {seen.prompt_tokens:,} prompt tokens reused"
    return counts + share + tokens


def _times(seen: "View") -> str:
    if not seen.ttft_ms:
        return "no turn"
    return ", ".join(f"p{name * 100:g} {value:,.0f} ms" for name, value in seen.ttft_ms.items())


def _moved(size: int | None, count: int | None) -> str:
    return "-" if size is None else f"{size / 1e6:,.1f} MB in {_number(count)} transfers"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
