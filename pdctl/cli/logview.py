"""How logs are shown to people: flagged lines, alerts, the summary."""

import shutil
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pdctl.base.words import listed
from pdctl.cli import ui

if TYPE_CHECKING:
    from pdctl.observe.logs.event import Event
    from pdctl.observe.logs.summary import Finding, Summary
    from pdctl.observe.signatures.model import Signature

_LINES_OF_ONE = 20
_WORST = 3
_WIDTH = 200
_CONTROLS = dict.fromkeys((*range(9), *range(10, 32), *range(127, 160)), "�")
_ROLE_STYLES = {"prefill": "cyan", "decode": "magenta", "router": "green"}
_MARKS = {"block": "bad", "degrade": "warn", "note": "skip"}
_STYLES = {"block": "bad", "degrade": "warn", "note": "dim"}


class EventView:
    """Prints events as lines to stdout.

    Args:
        every: also lines that say nothing bad; else those that do, and of one signature so many
            that a person may read them.
    """

    def __init__(self, *, every: bool) -> None:
        self._every = every
        self._shown: Counter[str] = Counter()
        self._line = ui.writer()

    def show(self, event: "Event", concluded: "Sequence[Signature]") -> None:
        """Print it, if it is to be seen."""
        if not self._every and not self._worth(event, concluded):
            return
        when = _clock(event.ts) if event.ts is not None else "-" * 14
        who = event.role or event.source
        self._line(f"{when} {who:<8}", _ROLE_STYLES.get(event.role or "", ""), end=" ")
        if event.signature is not None and event.severity and not event.signature.good:
            ids = " ".join(each.id for each in (*concluded, event.signature))
            self._line(f"{ui.mark(_MARKS[event.severity])} {ids}", _STYLES[event.severity], end=" ")
        elif event.signature is not None:
            self._line(f"{ui.mark('ok')} {event.signature.id}", "ok", end=" ")
        said = event.fields.get("exception") or event.said
        self._line(_safe(event.line if self._every or not said else said[:_WIDTH]))
        if self._every:
            for each in event.more:
                self._line(f"    {_safe(each)}", "dim")

    def _worth(self, event: "Event", concluded: "Sequence[Signature]") -> bool:
        if event.severity == "note" and not concluded:
            return False
        if event.signature is None:
            return True  # it was asked for
        self._shown[event.signature.id] += 1
        count = self._shown[event.signature.id]
        if count == _LINES_OF_ONE + 1:
            self._line(
                f"… further lines of `{event.signature.id}` are counted; `--all` shows them", "dim"
            )
        return count <= _LINES_OF_ONE


def _safe(text: str) -> str:
    """Somebody else's text, without what would command the terminal."""
    return text if text.isprintable() else text.translate(_CONTROLS)


def show_summary(summary: "Summary", sources: Sequence[str]) -> None:
    """What was found, worst first, with what to do; to stdout."""
    line = ui.writer()
    line("")
    for each in (*_counts(summary), *_speeds(summary)):
        line(each)
    worst = summary.worst()
    bad = [finding for finding in worst if finding.severity != "note"]
    notes = [finding for finding in worst if finding.severity == "note"]
    roots = [finding for finding in bad if finding.follows is None]
    if bad:
        line("")
    for finding in roots[:_WORST]:
        _show_finding(line, finding)
    for finding in (*roots[_WORST:], *(f for f in bad if f.follows is not None)):
        behind = f", follows from `{finding.follows}`" if finding.follows else ""
        line(f"{_head(finding)}{behind}", _STYLES[finding.severity])
    if notes:
        line("also: " + ", ".join(f"{f.count} × {f.signature.id}" for f in notes), "dim")
    if bad:
        first = (roots or bad)[0].signature.id
        line("")
        line(f"next: `pdctl explain {first}`")
    elif not summary.signatures:
        line(f"nothing that pdctl knows stands in {listed(list(sources))}")
    else:
        line(f"{ui.mark('ok')} nothing bad was found", "ok")


def _show_finding(line: ui.Writer, finding: "Finding") -> None:
    line(_head(finding), _STYLES[finding.severity])
    where = ", ".join(f"{name} ({count})" for name, count in list(finding.sources.items())[:6])
    if finding.first is not None and finding.last is not None:
        where += f", {_clock(finding.first)} to {_clock(finding.last)}"
    line(f"    in {where}")
    if finding.whys:
        why = ", ".join(f"{why} ({count})" for why, count in finding.whys.most_common(4))
        line(f"    why: {why}")
    line(_wrapped(finding.signature.meaning))
    line(_wrapped(f"fix: {finding.signature.fix.text}"))
    for command in finding.signature.fix.commands:
        line(f"      {command}")


def _wrapped(text: str) -> str:
    columns = min(shutil.get_terminal_size((80, 24)).columns, 100)
    return textwrap.fill(text, columns, initial_indent="    ", subsequent_indent="    ")


def _head(finding: "Finding") -> str:
    return (
        f"{ui.mark(_MARKS[finding.severity])} {finding.count} × {finding.signature.id} "
        f"({finding.severity}): {finding.signature.title}"
    )


def _counts(summary: "Summary") -> list[str]:
    if summary.miss_rate is None:
        return []
    kinds = {
        "first_turn": "first turns",
        "unnamed": "without a conversation id",
        "late": "after the TTL",
        "meant": "not to be reused",
        "lost": "that should have been HITs",
    }
    parts = [f"{summary.kinds[kind]} {said}" for kind, said in kinds.items() if summary.kinds[kind]]
    of = f": {', '.join(parts)}" if parts else ""
    return [f"turns: {summary.hit} HIT, {summary.miss} MISS ({summary.miss_rate:.0%}){of}"]


def _speeds(summary: "Summary") -> list[str]:
    lines = []
    if summary.prefill.count:
        points = ", ".join(
            f"p{round(share * 100)} {summary.prefill.at(share)} ms" for share in (0.5, 0.9, 0.99)
        )
        lines.append(f"prefill, most of the time to the first token: {points} "
                     f"({summary.prefill.count} turns)")  # fmt: skip
    for role, moved in sorted(summary.transfers.items()):
        if moved.count:
            lines.append(
                f"KV read by {role}: {moved.count} transfers, {moved.mb:.1f} MB, "
                f"{moved.ms / moved.count:.1f} ms on average, p90 up to {moved.worst_p90_ms:.1f} ms"
            )
    return lines


def _clock(ts: float) -> str:
    try:
        return time.strftime("%m-%d %H:%M:%S", time.localtime(ts))
    except (ValueError, OverflowError, OSError):
        return "-" * 14


class LiveView:
    """A status line and alerts while logs are followed; to stderr."""

    _EVERY_S = 10.0

    def __init__(self, summary: "Summary") -> None:
        self._summary = summary
        self._alerted: set[str] = set()
        self._told = ""
        self._next = 0.0
        self._live = sys.stderr.isatty()

    def clear(self) -> None:
        """Take the status line away, before anything else is printed."""
        if self._live and self._told:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._told = ""

    def alert(self) -> None:
        """Tell of each cause once."""
        for id, finding in self._summary.findings.items():
            if id in self._alerted or finding.severity == "note":
                continue
            signature = finding.signature
            ui.say(f"{ui.mark(_MARKS[finding.severity])} alert {id}: {signature.title}",
                   _STYLES[finding.severity])  # fmt: skip
            self._alerted.add(id)  # only now: Ctrl-C before it must not lose the alert
            if not any(cause in self._alerted for cause in signature.follows):
                ui.say(_wrapped(signature.meaning))
                ui.say(_wrapped(f"fix: {signature.fix.text}"))

    def tick(self, now: float) -> None:
        """Show the rates of the last minute."""
        text = self._status(now)
        if self._live:
            if text != self._told:
                sys.stderr.write(f"\r\x1b[K{text}")
                sys.stderr.flush()
        elif text == self._told or now < self._next:
            return
        else:
            ui.say(text)
            self._next = now + self._EVERY_S
        self._told = text

    def _status(self, now: float) -> str:
        summary = self._summary
        hits, misses = summary.rate(now)
        turns = hits + misses
        rate = f"{hits / turns:.0%} HIT of {turns} turns" if turns else "no turns"
        declined = summary.signatures["kv.read.declined"]
        failed = summary.signatures["kv.load.failed"]
        waiting = sum(int(each["waiting"]) for each in summary.load.values())
        return (
            f"last minute: {rate} | expired reads {declined} | failed loads {failed} | "
            f"waiting {waiting}"
        )
