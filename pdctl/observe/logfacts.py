"""The ends of logs as facts: what was found in them, judged and counted."""

from collections.abc import Sequence

from pdctl.base.redact import redacted
from pdctl.base.runfacts import LogFacts, LogFinding
from pdctl.observe.logs.event import Event
from pdctl.observe.logs.read import Source, events
from pdctl.observe.logs.scan import Scanner
from pdctl.observe.logs.summary import Finding, Summary, Wanted
from pdctl.observe.processes import HeldLog
from pdctl.observe.signatures import SIGNATURES

_LINE = 300
_NAMED = 16
"""Transports and devices that are named of one process."""


def log_facts(held: Sequence[HeldLog], since: float) -> LogFacts:
    """Everything in these logs from `since` on, seconds since the epoch."""
    summary = Summary()
    backends: dict[str, dict[str, None]] = {}
    rails: dict[str, dict[str, None]] = {}
    wanted = Wanted(since=since)

    def look(event: Event) -> bool:
        # What a start says holds for as long as the process runs, however long ago that was.
        if event.id == "nixl.backend.up":
            _note(backends, event.source, event.fields.get("backend"))
        elif event.id == "nixl.rail":
            _note(rails, event.source, event.fields.get("device"))
        return wanted(event)

    sources = [Source(log.name, (), log.role, data=log.data) for log in held if not log.error]
    for _ in summary.of(events(sources, Scanner(SIGNATURES)), look):
        pass
    summary.close()
    return LogFacts(
        since=since,
        bytes_read={log.name: len(log.data) for log in held},
        truncated=tuple(log.name for log in held if not log.whole and not log.error),
        hit=summary.hit,
        miss=summary.miss,
        misses=dict(summary.kinds),
        signatures=dict(sorted(summary.signatures.items())),
        findings=tuple(map(_finding, summary.worst())),
        backends={name: tuple(found) for name, found in backends.items()},
        rails={name: tuple(found) for name, found in rails.items()},
        problems={log.name: log.error for log in held if log.error},
    )


def _note(into: dict[str, dict[str, None]], source: str, what: object) -> None:
    found = into.setdefault(source, {})
    if what and len(found) < _NAMED:
        found[str(what)] = None


def _finding(finding: Finding) -> LogFinding:
    return LogFinding(
        id=finding.signature.id,
        title=finding.signature.title,
        severity=finding.severity,
        count=finding.count,
        first=finding.first,
        last=finding.last,
        sources=dict(finding.sources),
        line=redacted(finding.line)[:_LINE],
        why={redacted(why): count for why, count in finding.whys.most_common(4)},
        follows=finding.follows,
    )
