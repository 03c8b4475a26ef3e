"""How the findings of `doctor` are shown: worst first, causes in full, the rest counted."""

import shutil
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pdctl.base.words import listed
from pdctl.cli import ui

if TYPE_CHECKING:
    from pdctl.doctor.table import Finding

_WIDEST = 100
_EVIDENCE = 8
_TARGETS = 6
_REASONS = 3
_MARKS = {"fail": "bad", "warn": "warn", "skip": "skip", "pass": "ok"}
_STYLES = {"fail": "bad", "warn": "warn", "skip": "dim", "pass": "ok"}


def show(findings: "Sequence[Finding]", *, every: bool) -> None:
    """Print them to stdout.

    Args:
        every: also what passed and what was skipped, one by one.
    """
    line = ui.writer()
    for group in _alike([f for f in findings if f.status in ("fail", "warn")]):
        _show_group(line, group)
    rest = [f for f in findings if f.status in ("skip", "pass")]
    if every:
        for group in _alike(rest):
            _show_short(line, group)
        if rest:
            line("")
    else:
        _fold(line, [f for f in rest if f.status == "skip"])
    _sum_up(line, findings)


def _alike(findings: "Iterable[Finding]") -> "list[list[Finding]]":
    """Findings of several targets that say the same, together."""
    groups: dict[object, list[Finding]] = {}
    for finding in findings:
        key = (finding.id, finding.status, finding.severity, finding.evidence, finding.fix)
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def _show_group(line: ui.Writer, group: "Sequence[Finding]") -> None:
    first = group[0]
    head = f"{ui.mark(_MARKS[first.status])} {first.id} ({first.severity}) on {_targets(group)}"
    line(_wrapped(head, "", "  "), _STYLES[first.status])
    for said in first.evidence[:_EVIDENCE]:
        line(_wrapped(said, "    "))
    if (more := len(first.evidence) - _EVIDENCE) > 0:
        line(f"    and {more} more; `--json` has all")
    if first.fix is not None:
        line(_wrapped(f"fix: {first.fix.text}", "    "))
        for command in first.fix.commands:
            line(f"      {command}")
    line(f"    more: pdctl explain {_explained(first)}", "dim")
    line("")


def _explained(finding: "Finding") -> str:
    """The id that says most: of logs, that of the signature."""
    return finding.target if finding.scope == "logs" else finding.id


def _show_short(line: ui.Writer, group: "Sequence[Finding]") -> None:
    first = group[0]
    said = "; ".join(first.evidence) or first.title
    head = f"{ui.mark(_MARKS[first.status])} {first.id} on {_targets(group)}: {said}"
    line(_wrapped(head, "", "    "), _STYLES[first.status] if first.status == "skip" else "")


def _targets(group: "Sequence[Finding]") -> str:
    return _named([finding.target for finding in group])


def _named(names: "list[str]") -> str:
    if len(names) > _TARGETS:
        return f"{', '.join(names[:_TARGETS])} and {len(names) - _TARGETS} more"
    return listed(names)


def _fold(line: ui.Writer, skipped: "Sequence[Finding]") -> None:
    """Why things were not judged, one line a reason: one dead host is one line, not forty."""
    reasons = _reasons(skipped)
    for reason, count in list(reasons.items())[:_REASONS]:
        checks = f"{count} check{'' if count == 1 else 's'}"
        line(_wrapped(f"{ui.mark('skip')} {checks} skipped: {reason}", "", "    "), "dim")
    if (more := len(reasons) - _REASONS) > 0:
        left = sum(list(reasons.values())[_REASONS:])
        line(
            f"{ui.mark('skip')} {left} skipped for {more} other reasons; `--all` shows them", "dim"
        )
    if skipped:
        line("")


def _reasons(skipped: "Sequence[Finding]") -> dict[str, int]:
    """How many were skipped for each reason: what waits for something first, then the most."""
    needs: dict[str, dict[str, int]] = {}
    others: Counter[str] = Counter()
    for finding in skipped:
        said = finding.evidence[0] if finding.evidence else ""
        id, on, target = said.removeprefix("needs ").partition(" on ")
        if said.startswith("needs ") and on:
            counts = needs.setdefault(id, {})
            counts[target] = counts.get(target, 0) + 1
        else:
            others[said] += 1
    waiting = {
        f"needs {id} on {_named(list(counts))}": sum(counts.values())
        for id, counts in needs.items()
    }
    return waiting | dict(others.most_common())


def _sum_up(line: ui.Writer, findings: "Sequence[Finding]") -> None:
    counts = Counter(finding.status for finding in findings)
    parts = [
        f"{counts['fail']} failed",
        f"{counts['warn']} warning{'' if counts['warn'] == 1 else 's'}",
        f"{counts['pass']} passed",
        f"{counts['skip']} skipped",
    ]
    bad = counts["fail"] or counts["warn"]
    style = "bad" if counts["fail"] else "warn" if bad else "ok" if counts["pass"] else ""
    line(", ".join(parts), style)
    worst = next((f for f in findings if f.status in ("fail", "warn")), None)
    if worst is not None and counts["fail"] + counts["warn"] > 1:
        line(f"begin with the first: `pdctl explain {_explained(worst)}`")


def _wrapped(text: str, indent: str, hanging: str | None = None) -> str:
    columns = min(shutil.get_terminal_size((80, 24)).columns, _WIDEST)
    return textwrap.fill(
        text,
        columns,
        initial_indent=indent,
        subsequent_indent=indent if hanging is None else hanging,
        break_on_hyphens=False,
    )
