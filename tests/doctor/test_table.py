"""How a table of checks is run: needs, crashes, order, shapes. And what the first checks say."""

from dataclasses import replace

import pytest

from pdctl.base.facts import (
    EngineMetrics,
    HostFacts,
    PairFacts,
    PairState,
    RouterFacts,
    ServingFacts,
    TwoTurnFacts,
)
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
from pdctl.engine.example import LIMITS

METRICS = EngineMetrics(block_size=128)
PREFILL = ServingFacts(
    "prefill-0", "prefill", "a", "http://a:1", version="0.33.0", model_root="m", metrics=METRICS
)
DECODE = replace(PREFILL, name="decode-0", role="decode", host="b", url="http://b:2")
GOOD = PairFacts(
    name="demo",
    taken_at=0.0,
    hosts=(HostFacts("a"), HostFacts("b")),
    engines=(PREFILL, DECODE),
    router=RouterFacts(
        "http://r", ours=True, ready=True, pairs=(PairState("http://a:1", "http://b:2", True),)
    ),
    two_turn=TwoTurnFacts(True, 200, 300, 1000, True),
)


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
    assert skips["engine.version.equal"] == ("needs engine.health on decode-0",)


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


# --- the checks there are -------------------------------------------------------------------


def verdict(facts: PairFacts, id: str) -> Finding:
    return next(finding for finding in run_checks(facts, CHECKS) if finding.id == id)


def test_a_healthy_pair_is_all_green() -> None:
    found = run_checks(GOOD, CHECKS)
    # Skips are of what was not looked at, such as the hosts.
    assert {finding.status for finding in found} == {"pass", "skip"}
    assert all(finding.evidence for finding in found)


def test_nothing_set_up_is_skipped_or_passed_and_never_crashes() -> None:
    nothing = PairFacts(name="none", taken_at=0.0)
    found = run_checks(nothing, CHECKS)
    assert {finding.status for finding in found} == {"skip"}


def test_ids_are_dotted_unique_and_explained() -> None:
    ids = [row.id for row in CHECKS]
    assert len(set(ids)) == len(ids)
    for row in CHECKS:
        assert "." in row.id
        assert row.meaning.endswith(".")
        assert row.fix.text
        assert row.docs == f"docs/checks.md#{row.id.replace('.', '')}"


@pytest.mark.parametrize(
    ("id", "change"),
    [
        ("engine.version.equal", {"version": "0.32.0"}),
        ("engine.model.equal", {"model_root": "/other/path"}),
        ("engine.block_size.equal", {"metrics": EngineMetrics(block_size=16)}),
    ],
)
def test_what_must_be_equal_is_compared(id: str, change: dict[str, object]) -> None:
    facts = replace(GOOD, engines=(PREFILL, replace(DECODE, **change)))  # type: ignore[arg-type]
    finding = verdict(facts, id)
    assert finding.status == "fail"
    assert len(finding.evidence) == 2
    assert finding.evidence[1].startswith("decode-0: ")
    name = next(iter(change))
    unknown = replace(GOOD, engines=(PREFILL, replace(DECODE, **{name: None})))  # type: ignore[arg-type]
    assert verdict(unknown, id).evidence == ("decode-0 did not say",)


def test_an_engine_that_is_down() -> None:
    facts = replace(GOOD, engines=(PREFILL, replace(DECODE, error="refused")))
    finding = verdict(facts, "engine.health")
    assert (finding.target, finding.status) == ("decode-0", "fail")
    assert finding.evidence == ("http://b:2: refused",)
    assert verdict(facts, "router.pair").status == "skip"


def test_a_router_that_is_down() -> None:
    assert GOOD.router is not None
    facts = replace(GOOD, router=replace(GOOD.router, error="refused"))
    assert verdict(facts, "router.reach").status == "fail"
    assert verdict(facts, "runtime.two_turn").evidence == ("needs router.reach on demo",)


def test_the_example_proxy_is_flagged_with_each_of_its_limits() -> None:
    assert GOOD.router is not None
    facts = replace(GOOD, router=replace(GOOD.router, ours=False, example=True))
    finding = verdict(facts, "router.kind")
    assert (finding.status, finding.severity) == ("warn", "degrade")
    assert "compares no tokens" in finding.evidence[0]
    assert len(finding.evidence) == len(LIMITS)
    assert finding.fix is not None
    assert "router.kind: pdctl" in finding.fix.text
    unknown = replace(GOOD, router=replace(GOOD.router, ours=False))
    assert verdict(unknown, "router.kind").status == "skip"


def test_pairs_out_of_use() -> None:
    assert GOOD.router is not None
    good, bad = GOOD.router.pairs[0], PairState("http://a:1", "http://c:3", False, "no handle")

    def with_pairs(*pairs: PairState) -> PairFacts:
        assert GOOD.router is not None
        return replace(GOOD, router=replace(GOOD.router, pairs=pairs))

    assert verdict(with_pairs(bad), "router.pair").status == "fail"
    assert verdict(with_pairs(good, bad), "router.pair").status == "warn"
    assert verdict(with_pairs(good, bad), "router.pair").evidence == (
        "http://a:1 → http://c:3: no handle",
    )
    assert verdict(with_pairs(), "router.pair").status == "fail"


def test_a_proof_that_failed_brings_its_own_fix() -> None:
    proof = TwoTurnFacts(False, 0, 300, 0, None, "reused nothing", "decode", ("turn it on",))
    finding = verdict(replace(GOOD, two_turn=proof), "runtime.two_turn")
    assert (finding.status, finding.evidence) == ("fail", ("reused nothing",))
    assert finding.fix == Fix("turn it on")
    assert verdict(replace(GOOD, two_turn=None), "runtime.two_turn").status == "skip"
