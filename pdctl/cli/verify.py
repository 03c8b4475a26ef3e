"""`pdctl verify`: the two-turn proof, told in words."""

from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.base.exits import ExitCode
from pdctl.cli import options, ui
from pdctl.cli.reached import reached

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.doctor.table import Finding
    from pdctl.observe.endpoints import Endpoints
    from pdctl.observe.proof import TurnReport, VerifyReport
    from pdctl.observe.verify import VerifyOptions


def verify(
    file: options.File = options.DEFAULT_FILE,
    json: options.Json = False,
    history: Annotated[
        int, typer.Option(min=32, help="Tokens of turn 1's prompt, if the model takes as many.")
    ] = 2048,
    wait: Annotated[
        float, typer.Option(min=0, help="Seconds the router may take to prove its pairs.")
    ] = 20.0,
    chat: Annotated[bool, typer.Option(help="Also run an ordinary chat of two turns.")] = True,
) -> None:
    """Prove that turn 2 reuses the KV of turn 1.

    Two turns of fresh random content go through the router. Exit status 0: proven. 1: not proven,
    with the reason and the side. 69: the router or an engine does not answer.
    """
    import asyncio

    from pdctl.observe.verify import VerifyOptions
    from pdctl.render.check import load_checked

    settings = VerifyOptions(history_tokens=history, ready_s=wait, chat=chat)
    with reached(load_checked(file).config) as endpoints:
        report, findings = asyncio.run(_run(endpoints, settings))
    if json:
        ui.json(report.as_dict() | {"checks": [finding.as_dict() for finding in findings]})
    else:
        show_report(report, findings)
    if not report.ok:
        raise typer.Exit(int(ExitCode.BAD_ANSWER))


async def _run(
    endpoints: "Endpoints", settings: "VerifyOptions"
) -> "tuple[VerifyReport, list[Finding]]":
    import aiohttp

    from pdctl.doctor.checks import CHECKS
    from pdctl.doctor.table import run_checks
    from pdctl.observe.facts import gather
    from pdctl.observe.verify import verify as prove

    report = await prove(endpoints, settings, listen=ui.listener())
    if report.ok:
        return report, []
    async with aiohttp.ClientSession() as session:
        facts = await gather(session, endpoints, two_turn=report.facts())
    bad = [f for f in run_checks(facts, CHECKS) if f.status in ("fail", "warn")]
    return report, bad


def show_report(report: "VerifyReport", findings: "Sequence[Finding]" = ()) -> None:
    """Print the proof: the turns as a table, the verdict, and what it stands on."""
    ui.table(
        ["turn", "TTFT", "prompt tokens", "reused", "router says"],
        [*_rows(report), *_cold_row(report), *_chat_row(report)],
    )
    ui.data("")
    if report.ok:
        ui.data("proven: turn 2 reuses what decode kept of turn 1")
    else:
        ui.data(f"not proven: {report.reason}")
    for line in report.proved:
        ui.data(f"  {ui.mark('ok')} {line}")
    for note in (_speed(report), report.output_note, report.chat_note, _chat_note(report)):
        if note:
            ui.data(f"  {ui.mark('skip')} {note}")
    if report.router_limits:
        ui.data("the router is upstream's example proxy, for comparison only:")
    for limit in report.router_limits:
        ui.data(f"  {ui.mark('warn')} {limit}")
    _show_findings(report, findings)


def _show_findings(report: "VerifyReport", findings: "Sequence[Finding]") -> None:
    for finding in findings:
        if finding.id == "runtime.two_turn":
            continue
        ui.data(f"  {ui.mark('bad')} {finding.id} {finding.target}: {'; '.join(finding.evidence)}")
        if finding.fix:
            ui.data(f"    {finding.fix.text}")
    for hint in report.hints:
        ui.say(f"hint: {hint}")


def _rows(report: "VerifyReport") -> list[list[object]]:
    return [_row(str(turn.turn), turn) for turn in report.turns]


def _row(name: str, turn: "TurnReport") -> list[object]:
    says = " ".join(word for word in (turn.outcome or "", turn.reason) if word)
    return [name, _ms(turn.ttft_ms), turn.prompt_tokens, turn.reused_tokens, says or None]


def _cold_row(report: "VerifyReport") -> list[list[object]]:
    if report.cold_ttft_ms is None:
        return []
    prompt = report.turns[-1].prompt_tokens if report.turns else None
    return [["2, cold", _ms(report.cold_ttft_ms), prompt, 0, None]]


def _chat_row(report: "VerifyReport") -> list[list[object]]:
    return [_row("2 of a chat", report.chat)] if report.chat else []


def _ms(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f} ms"


def _speed(report: "VerifyReport") -> str:
    """The speed-up in words; one measurement, so it is told and not proven."""
    warm = report.turns[1].ttft_ms if len(report.turns) > 1 else None
    cold = report.cold_ttft_ms
    if not report.ok or not warm or not cold:
        return ""
    return (
        f"the first token of turn 2 came after {warm:,.0f} ms, cold after {cold:,.0f} ms "
        "(one measurement each)"
    )


def _chat_note(report: "VerifyReport") -> str:
    """Why an ordinary chat may reuse less than the proof."""
    if not report.ok or report.chat is None or report.chat.reason != "diverged":
        return ""
    return (
        "the chat reused less: its text does not become the tokens that were generated when it is "
        "tokenised again; a model that writes ordinary text does better than random weights"
    )
