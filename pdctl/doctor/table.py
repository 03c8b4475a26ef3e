"""Checks as rows of a table, and how a table is run over facts. Pure.

A check names what it stands on (`needs`), so that one dead host gives one finding and not forty;
a check that crashes is a finding; a check that cannot tell says so and why.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pdctl.base.facts import PairFacts
from pdctl.base.fix import SEVERITIES
from pdctl.base.fix import Fix as Fix
from pdctl.base.fix import Severity as Severity
from pdctl.base.redact import redacted
from pdctl.base.runfacts import LogFinding

Scope = Literal["config", "aws", "host", "engine", "router", "pair", "logs"]
Status = Literal["fail", "warn", "skip", "pass"]

STATUSES: tuple[Status, ...] = ("fail", "warn", "skip", "pass")
"""Worst first."""


@dataclass(frozen=True)
class Verdict:
    """What a judge says about one target; made by `passed`, `warned`, `failed`, `skipped`.

    Attributes:
        evidence: what was seen, one fact a line; for a skip, why it could not be told.
        fix: instead of the check's own, when the evidence allows a better one.
        severity: instead of the check's own, where one check has faults of several consequences.
    """

    status: Status
    evidence: tuple[str, ...]
    fix: Fix | None = None
    severity: Severity | None = None


def passed(*evidence: str) -> Verdict:
    """It is as it should be."""
    return Verdict("pass", evidence)


def warned(*evidence: str, fix: Fix | None = None, severity: Severity | None = None) -> Verdict:
    """It works, but."""
    return Verdict("warn", evidence, fix, severity)


def failed(*evidence: str, fix: Fix | None = None, severity: Severity | None = None) -> Verdict:
    """It is not as it should be."""
    return Verdict("fail", evidence, fix, severity)


def skipped(why: str) -> Verdict:
    """It could not be told from these facts."""
    return Verdict("skip", (why,))


Judge = Callable[[PairFacts, str], Verdict]
"""Judges one target, by its name; looks at facts only."""


@dataclass(frozen=True)
class Check:
    """One row.

    Attributes:
        id: stable and dotted, never used for anything else later.
        title: what is so when the check passes, in a few words.
        scope: one verdict for each target of this kind (see `targets_of`).
        severity: of a failure.
        needs: ids of checks that must pass first, each for the targets this one stands on.
        judge: gives the verdict.
        meaning: what a failure means for the user.
        fix: what to do about it.
        docs: anchor in docs/checks.md.
    """

    id: str
    title: str
    scope: Scope
    severity: Severity
    judge: Judge
    meaning: str
    fix: Fix
    needs: tuple[str, ...] = ()

    @property
    def docs(self) -> str:
        """Where the check is explained."""
        return f"docs/checks.md#{self.id.replace('.', '')}"


@dataclass(frozen=True)
class Finding:
    """A verdict with its check, ready to be shown."""

    id: str
    title: str
    scope: Scope
    target: str
    status: Status
    severity: Severity
    evidence: tuple[str, ...]
    fix: Fix | None
    docs: str

    def as_dict(self) -> dict[str, object]:
        """The JSON shape that `doctor --json` promises."""
        return {
            "id": self.id,
            "title": self.title,
            "scope": self.scope,
            "target": self.target,
            "status": self.status,
            "severity": self.severity,
            "evidence": list(self.evidence),
            "fix": self.fix.as_dict() if self.fix else None,
        }


def targets_of(facts: PairFacts, scope: Scope) -> tuple[str, ...]:
    """The names of all targets of a scope: hosts, engines, what logs say, or the one deployment."""
    if scope == "host":
        return tuple(host.name for host in facts.hosts)
    if scope == "engine":
        return tuple(engine.name for engine in facts.engines)
    if scope == "logs":
        causes = [each.id for each in (facts.logs.findings if facts.logs else ()) if _counts(each)]
        return tuple(causes) or (facts.name,)
    return (facts.name,)


def _counts(finding: LogFinding) -> bool:
    """Whether it is something to be done: no note, and no consequence of another."""
    return finding.severity != "note" and finding.follows is None


def stands_on(facts: PairFacts, target: str, scope: Scope, needed: Scope) -> tuple[str, ...]:
    """Which targets of `needed` a target of `scope` stands on: its own host, or all of them."""
    if scope == "engine" and needed == "host":
        return tuple(engine.host for engine in facts.engines if engine.name == target)
    if scope == "router" and needed == "host" and facts.router is not None:
        return (facts.router.host,)
    if scope == needed:
        return (target,)
    return targets_of(facts, needed)


def run_checks(facts: PairFacts, checks: Sequence[Check]) -> list[Finding]:
    """All findings, worst first; within a status by severity, then in the table's order.

    A need that is not among `checks` counts as met, so that a single check can be run alone.

    Raises:
        ValueError: a check needs one that comes after it, which would never be looked at.
    """
    _check_order(checks)
    scopes = {check.id: check.scope for check in checks}
    found: dict[str, dict[str, Finding]] = {}
    for check in checks:
        found[check.id] = {
            target: _finding(check, target, _verdict(check, target, facts, scopes, found))
            for target in targets_of(facts, check.scope)
        }
    findings = [finding for by_target in found.values() for finding in by_target.values()]
    return sorted(findings, key=_rank)


def _rank(finding: Finding) -> tuple[int, int]:
    return STATUSES.index(finding.status), SEVERITIES.index(finding.severity)


def _check_order(checks: Sequence[Check]) -> None:
    place = {check.id: number for number, check in enumerate(checks)}
    for check in checks:
        late = [need for need in check.needs if place.get(need, -1) >= place[check.id]]
        if late:
            raise ValueError(f"`{check.id}` needs `{late[0]}`, which must come before it")


def _verdict(
    check: Check,
    target: str,
    facts: PairFacts,
    scopes: Mapping[str, Scope],
    found: Mapping[str, Mapping[str, Finding]],
) -> Verdict:
    for need in check.needs:
        if need not in found:
            continue
        for below in stands_on(facts, target, check.scope, scopes[need]):
            finding = found[need].get(below)
            if finding is None or finding.status not in ("fail", "skip"):
                continue
            if finding.status == "skip" and finding.evidence:
                return skipped(finding.evidence[0])  # the root of it all, however far below
            return skipped(f"needs {need} on {finding.target}")
    try:
        return check.judge(facts, target)
    except Exception as error:
        return failed(
            f"the check itself crashed: {type(error).__name__}: {error}",
            fix=Fix("this is a bug in pdctl; report it with the output of `pdctl version`"),
        )


def _plain(text: str) -> str:
    """Without what a terminal obeys: a host's or a bundle's words are not to be trusted."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def _finding(check: Check, target: str, verdict: Verdict) -> Finding:
    wants_fix = verdict.status in ("fail", "warn")
    return Finding(
        id=check.id,
        title=check.title,
        scope=check.scope,
        target=_plain(target),
        status=verdict.status,
        severity=verdict.severity or check.severity,
        evidence=tuple(_plain(redacted(line)) for line in verdict.evidence),
        fix=(verdict.fix or check.fix) if wants_fix else None,
        docs=check.docs,
    )


def report(findings: Iterable[Finding]) -> dict[str, object]:
    """The whole document: counts, then every finding."""
    listed = list(findings)
    order: tuple[Status, ...] = ("pass", "warn", "fail", "skip")
    return {
        "summary": {status: sum(f.status == status for f in listed) for status in order},
        "checks": [finding.as_dict() for finding in listed],
    }


def healthy(findings: Iterable[Finding], *, strict: bool = False) -> bool:
    """True when nothing failed; with `strict`, nothing warned either."""
    bad = {"fail", "warn"} if strict else {"fail"}
    return all(finding.status not in bad for finding in findings)
