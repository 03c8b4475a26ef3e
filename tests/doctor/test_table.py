"""How a table of checks is run: needs, crashes, order, shapes."""

from dataclasses import replace

import pytest

from pdctl.base.facts import HostFacts, PairFacts
from pdctl.doctor.checks import CHECKS
from pdctl.doctor.table import (
    Check,
    Finding,
    Fix,
    Judge,
    Scope,
    Severity,
    failed,
    healthy,
    passed,
    report,
    run_checks,
    skipped,
    warned,
)
from tests.doctor.cases import GOOD


def check(
    id: str,
    judge: Judge,
    *,
    scope: Scope = "pair",
    severity: Severity = "block",
    needs: tuple[str, ...] = (),
) -> Check:
    return Check(id, id, scope, severity, judge, "it matters", Fix("mend it"), needs)


def statuses(findings: list[Finding]) -> dict[tuple[str, str], str]:
    return {(finding.id, finding.target): finding.status for finding in findings}


def test_one_dead_host_gives_one_failure() -> None:
    facts = replace(GOOD, hosts=(HostFacts("a"), HostFacts("b", "no route to host")))
    found = run_checks(facts, CHECKS)
    assert [(f.id, f.target) for f in found if f.status == "fail"] == [("host.reach", "b")]
    told = statuses(found)
    assert told["engine.health", "prefill-0"] == "pass"
    assert told["engine.health", "decode-0"] == "skip"
    skips = {f.id: f.evidence for f in found if f.status == "skip"}
    assert skips["engine.health"] == ("needs host.reach on b",)
    assert skips["engine.version.equal"] == ("needs host.reach on b",)


def test_a_judge_that_crashes_is_a_failure_that_asks_for_a_report() -> None:
    def crash(facts: PairFacts, target: str) -> object:
        raise KeyError("oops")

    (finding,) = run_checks(GOOD, [check("x", crash)])  # type: ignore[arg-type]
    assert finding.status == "fail"
    assert finding.evidence == ("the check itself crashed: KeyError: 'oops'",)
    assert finding.fix is not None
    assert "bug in pdctl" in finding.fix.text


def test_worst_first_then_by_consequence_then_by_the_table() -> None:
    table = [
        check("a.pass", lambda f, t: passed("fine")),
        check("b.note", lambda f, t: failed("x"), severity="note"),
        check("c.skip", lambda f, t: skipped("cannot tell")),
        check("d.warn", lambda f, t: warned("hm")),
        check("e.block", lambda f, t: failed("x")),
        check("f.block", lambda f, t: failed("x")),
    ]
    found = run_checks(GOOD, table)
    assert [f.id for f in found] == ["e.block", "f.block", "b.note", "d.warn", "c.skip", "a.pass"]


def test_needs_are_per_target_and_must_come_before() -> None:
    def only_a(facts: PairFacts, target: str) -> object:
        return passed() if target == "a" else failed("down")

    table = [
        check("h", only_a, scope="host"),  # type: ignore[arg-type]
        check("e", lambda f, t: passed(), scope="engine", needs=("h",)),
        check("p", lambda f, t: passed(), needs=("e",)),
    ]
    assert statuses(run_checks(GOOD, table)) == {
        ("h", "a"): "pass",
        ("h", "b"): "fail",
        ("e", "prefill-0"): "pass",
        ("e", "decode-0"): "skip",
        ("p", "demo"): "skip",
    }
    with pytest.raises(ValueError, match="`e` needs `h`, which must come before it"):
        run_checks(GOOD, [table[1], table[0]])


def test_a_host_with_an_odd_name_stands_for_itself() -> None:
    """What is shown is cleaned of what a terminal obeys; what is looked up is not."""
    odd = replace(GOOD, hosts=(HostFacts("a\x1b[31m"),))
    table = [
        check("h", lambda f, t: failed("down"), scope="host"),
        check("after", lambda f, t: passed(), scope="host", needs=("h",)),
    ]
    assert [(f.id, f.status) for f in run_checks(odd, table)] == [("h", "fail"), ("after", "skip")]


def test_what_could_not_be_told_says_so_also_for_what_needs_it() -> None:
    found = run_checks(
        GOOD,
        [
            check("a", lambda f, t: skipped("this target has no such thing")),
            check("b", lambda f, t: passed(), needs=("a",)),
        ],
    )
    assert [f.evidence for f in found] == [("this target has no such thing",)] * 2


def test_a_warning_does_not_stop_what_needs_it() -> None:
    table = [
        check("w", lambda f, t: warned("hm")),
        check("after", lambda f, t: passed(), needs=("w",)),
    ]
    assert statuses(run_checks(GOOD, table))["after", "demo"] == "pass"


def test_the_documents_shape() -> None:
    better = Fix("do that", ("pdctl up",))
    table = [
        check("a.b", lambda f, t: failed("seen this", fix=better), severity="degrade"),
        check("c.d", lambda f, t: passed("all well")),
        check("e.f", lambda f, t: skipped("nobody said")),
    ]
    assert report(run_checks(GOOD, table)) == {
        "summary": {"pass": 1, "warn": 0, "fail": 1, "skip": 1},
        "checks": [
            {
                "id": "a.b",
                "title": "a.b",
                "scope": "pair",
                "target": "demo",
                "status": "fail",
                "severity": "degrade",
                "evidence": ["seen this"],
                "fix": {"text": "do that", "commands": ["pdctl up"]},
            },
            {
                "id": "e.f",
                "title": "e.f",
                "scope": "pair",
                "target": "demo",
                "status": "skip",
                "severity": "block",
                "evidence": ["nobody said"],
                "fix": None,
            },
            {
                "id": "c.d",
                "title": "c.d",
                "scope": "pair",
                "target": "demo",
                "status": "pass",
                "severity": "block",
                "evidence": ["all well"],
                "fix": None,
            },
        ],
    }


def test_what_counts_as_healthy() -> None:
    found = run_checks(GOOD, [check("w", lambda f, t: warned("hm"))])
    assert healthy(found)
    assert not healthy(found, strict=True)
    assert not healthy(run_checks(GOOD, [check("f", lambda f, t: failed("x"))]))
    assert healthy(run_checks(GOOD, [check("s", lambda f, t: skipped("x"))]), strict=True)
