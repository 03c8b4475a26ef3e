"""Steps within a budget: what fails, what is left out, and that the others are still tried."""

from collections.abc import Callable

import pytest

from pdctl.accept.budget import Budget, allowed
from pdctl.accept.model import Found, Report, Result
from pdctl.accept.run import Past, Step, run_steps
from pdctl.base.errors import UnreachableError
from pdctl.base.events import ignore


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def passing(clock: Clock, takes: float = 1.0) -> Callable[[float, Past], Found]:
    def run(left: float, past: Past) -> Found:
        clock.now += takes
        return Found("pass", f"{left:.0f} s were left", {"after": list(past)})

    return run


def run(steps: list[Step], seconds: float, clock: Clock) -> list[Result]:
    return list(run_steps(steps, Budget(seconds, clock=clock), ignore))


def test_each_step_knows_what_is_left_and_what_was_found() -> None:
    clock = Clock()
    steps = [Step("a", "A", passing(clock, 20)), Step("b", "B", passing(clock))]
    a, b = run(steps, 60, clock)
    assert (a.found.said, a.seconds) == ("60 s were left", 20)
    assert (b.found.said, b.found.data) == ("40 s were left", {"after": ["a"]})


def test_what_cannot_be_ended_well_is_not_begun() -> None:
    clock = Clock()
    steps = [
        Step("long", "takes all", passing(clock, 55)),
        Step("restart", "needs a minute", passing(clock), needs=60),
        Step("last", "reads counters", passing(clock), needs=60, always=True),
    ]
    long, restart, last = run(steps, 60, clock)
    assert [each.found.status for each in (long, restart, last)] == ["pass", "skip", "pass"]
    assert restart.over_budget
    assert "the budget is spent: 5 s are left, it needs 60" in restart.found.said


def test_what_fails_does_not_end_the_run() -> None:
    clock = Clock()

    def unreachable(_: float, __: Past) -> Found:
        raise UnreachableError("nobody answers", where="http://d")

    def bug(_: float, __: Past) -> Found:
        raise KeyError("x")

    steps = [Step("a", "A", unreachable), Step("b", "B", bug), Step("c", "C", passing(clock))]
    a, b, c = run(steps, 60, clock)
    assert (a.found.status, a.found.said) == ("fail", "nobody answers")
    assert a.found.data["where"] == "http://d"
    assert b.found.said == "this is a bug in pdctl: KeyError: 'x'"
    assert "Traceback" in b.found.data["detail"][0]
    assert c.found.status == "pass"


def test_what_the_configuration_does_not_have_is_skipped_and_no_want_of_budget() -> None:
    clock = Clock()
    (only,) = run([Step("mtp", "MTP", passing(clock), skip="there is none")], 60, clock)
    assert (only.found.status, only.found.said, only.over_budget) == (
        "skip",
        "there is none",
        False,
    )


@pytest.mark.parametrize(
    ("found", "over", "ok"),
    [("pass", False, True), ("skip", False, True), ("skip", True, False), ("fail", False, False)],
)
def test_a_run_is_good_when_nothing_failed_and_nothing_is_missing(
    found: str, over: bool, ok: bool
) -> None:
    result = Result("a", "A", Found(found, "said"), over_budget=over)  # type: ignore[arg-type]
    report = Report("pair", "now", [result], {}, [], {})
    assert report.ok is ok
    assert report.as_dict()["ok"] is ok


def test_the_lesser_cap_holds() -> None:
    assert allowed(30, None, None) == 1800
    assert allowed(30, 10.0, 120.0) == 300
    assert allowed(2, 10.0, 120.0) == 120
    with pytest.raises(ValueError, match="not known"):
        allowed(30, 10.0, None)


def test_what_was_spent_is_told_in_dollars_too() -> None:
    clock = Clock()
    budget = Budget(7200, 63.3, clock=clock)
    clock.now += 3600
    assert budget.as_dict()["spent_usd"] == 63.3
    assert Budget(60, clock=clock).as_dict()["spent_usd"] is None
