"""Replacing engines while others serve: held against a fleet, step by step."""

from copy import deepcopy

from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.plan.build import BY_UP
from pdctl.plan.model import Plan
from pdctl.plan.rolling import Member, cells_of, groups_of
from tests.plan.fleet import Fleet, running

SIZES = st.integers(1, 3)
SEVERAL = st.integers(2, 3)
EDITS = st.sampled_from(["kind", "prefill", "decode", "both", "kind and decode"])


def edit(fleet: Fleet, what: str) -> None:
    if "kind" in what:
        fleet.revision += "+"
    for role in ("prefill", "decode"):
        if role in what or what == "both":
            fleet.seqs[role] = fleet.seqs.get(role, "1") + "0"


def todo(plan: Plan) -> list[str]:
    return [step.id for step in plan.steps if step.action is not None]


def touched(fleet: Fleet, what: str) -> set[str]:
    roles = ("prefill", "decode") if what == "both" or "kind" in what else (what,)
    return {f"{role}-{n}" for role in roles for n in range(getattr(fleet, role))}


@given(prefill=SEVERAL, decode=SEVERAL, what=EDITS)
@settings(max_examples=40, deadline=None)
def test_something_serves_at_every_step_and_each_is_replaced_once(
    prefill: int, decode: int, what: str
) -> None:
    fleet = running(prefill=prefill, decode=decode)
    edit(fleet, what)
    fleet.up(watch=True)
    assert dict(fleet.starts) == dict.fromkeys(touched(fleet, what), 1)
    assert todo(fleet.plan()) == ["verify"]


@given(prefill=SIZES, decode=SIZES, what=EDITS, data=st.data())
@settings(max_examples=60, deadline=None)
def test_stopped_anywhere_it_goes_on_and_replaces_nothing_twice(
    prefill: int, decode: int, what: str, data: st.DataObject
) -> None:
    watch = prefill > 1 and decode > 1
    fleet = running(prefill=prefill, decode=decode)
    edit(fleet, what)
    steps = len(todo(deepcopy(fleet).plan()))
    for stop in data.draw(st.lists(st.integers(0, steps), max_size=3)):
        fleet.up(stop_after=stop, watch=watch)
    fleet.up(watch=watch)
    assert dict(fleet.starts) == dict.fromkeys(touched(fleet, what), 1)
    assert todo(fleet.plan()) == ["verify"]
    assert fleet.state is not None
    assert not fleet.state.drained
    assert not fleet.state.generations


@given(first=EDITS, then=EDITS, data=st.data(), back=st.booleans())
@settings(max_examples=60, deadline=None)
def test_another_edit_half_way_or_the_old_one_again_ends_well(
    first: str, then: str, data: st.DataObject, *, back: bool
) -> None:
    """The file may change between a failed `up` and the next, also back to what it was."""
    fleet = running()
    before = (fleet.revision, dict(fleet.seqs))
    edit(fleet, first)
    steps = len(todo(fleet.plan()))
    fleet.up(stop_after=data.draw(st.integers(0, steps)), watch=True)
    if back:
        fleet.revision, fleet.seqs = before
    else:
        edit(fleet, then)
    fleet.up()
    assert todo(fleet.plan()) == ["verify"]
    assert fleet.state is not None
    assert not fleet.state.drained
    assert not fleet.state.generations


@given(what=EDITS, dead=st.sets(st.sampled_from(["prefill-0", "prefill-1", "decode-1"])))
@settings(max_examples=60, deadline=None)
def test_what_is_down_comes_first_and_all_end_as_configured(what: str, dead: set[str]) -> None:
    fleet = running()
    fleet.alive -= dead
    fleet.healthy -= dead
    edit(fleet, what)
    fleet.up()
    assert all(fleet.starts[name] == 1 for name in touched(fleet, what) | dead)
    assert todo(fleet.plan()) == ["verify"]


def test_named_cells_are_replaced_whole() -> None:
    cells = {"prefill-0": "a", "prefill-1": "b", "prefill-2": "b", "decode-0": "b", "decode-1": "a"}
    fleet = running(prefill=3, cells=cells)
    edit(fleet, "kind")
    drains = [step for step in todo(fleet.plan()) if step.startswith("drain-")]
    assert drains == ["drain-prefill-0+decode-1", "drain-prefill-1+prefill-2+decode-0"]
    fleet.up(watch=True)
    assert todo(fleet.plan()) == ["verify"]


def test_one_of_each_says_before_it_starts_that_there_is_an_outage() -> None:
    fleet = running(prefill=1, decode=1)
    edit(fleet, "kind")
    plan = fleet.plan()
    assert "nothing can be served meanwhile: requests are answered with 503" in plan.consent[0]
    assert plan.consent[1].startswith("an upgrade without an outage needs two cells")
    fleet.up()
    assert todo(fleet.plan()) == ["verify"]


def test_two_cells_say_what_is_replaced_and_that_others_serve() -> None:
    fleet = running()
    edit(fleet, "kind")
    why = "the configuration changed: --revision: r1 → r1+"
    assert fleet.plan().consent == (
        f"this replaces prefill-0 and decode-0 ({why}): others serve meanwhile",
        f"this replaces prefill-1 and decode-1 ({why}): others serve meanwhile",
    )


def test_one_prefill_of_several_decode_leaves_decode_alone_meanwhile() -> None:
    fleet = running(prefill=1, decode=2)
    edit(fleet, "prefill")
    (said,) = fleet.plan().consent
    assert said.endswith("decode computes prompts itself meanwhile, and nothing is reused")


def test_who_was_drained_by_hand_stays_so_and_does_not_count() -> None:
    fleet = running()
    assert fleet.state is not None
    fleet.state = fleet.state.with_drained(["decode-1"], "by hand")
    edit(fleet, "decode")
    assert "nothing can be served meanwhile" in fleet.plan().consent[1]
    fleet.up()
    assert fleet.state.drained == {"decode-1": "by hand"}


def test_what_an_earlier_run_drained_is_proven_and_admitted() -> None:
    fleet = running()
    assert fleet.state is not None
    fleet.state = fleet.state.with_drained(["decode-1"], BY_UP)
    assert todo(fleet.plan()) == ["pairs-decode-1", "admit-decode-1", "verify"]


def test_engines_that_move_go_with_their_routers_and_nobody_is_promised_anything() -> None:
    fleet = running()
    fleet.ports = {"prefill-0": 8101, "decode-0": 8101}
    plan = fleet.plan()
    assert plan.consent[0].startswith("this replaces prefill-0 and decode-0 ")
    assert (
        "prefill-0 moves to 10.0.0.0 port 5600, 10.0.0.0 port 8101: it is not replaced engine by "
        "engine"
    ) in plan.consent
    (meanwhile,) = [line for line in plan.consent if line.startswith("the routers send nothing")]
    assert "to prefill-0 and decode-0 from the end of each until the routers" in meanwhile
    assert "`target.start_timeout`: at most 5m" in meanwhile
    fleet.up()
    assert fleet.starts["router-0"] == 1
    assert todo(fleet.plan()) == ["verify"]


def test_nobody_waits_for_routers_to_prove_what_they_cannot_find() -> None:
    """They look for a moved engine where it was, until they are restarted after all engines."""
    fleet = running(prefill=1, decode=1)
    fleet.revision, fleet.ports = "r2", {"decode-0": 8101}
    steps = todo(fleet.plan())
    assert [step for step in steps if step.startswith("pairs-")] == []
    assert steps.index("admit-prefill-0+decode-0") < steps.index("stop-router-0")
    fleet.up()
    assert todo(fleet.plan()) == ["verify"]

    fleet = running(prefill=2, decode=1)
    fleet.seqs, fleet.ports = {"prefill": "2"}, {"decode-0": 8101}
    assert [step for step in todo(fleet.plan()) if step.startswith("pairs-")] == []
    fleet = running(prefill=2, decode=2)
    fleet.seqs, fleet.ports = {"prefill": "2"}, {"decode-0": 8101}
    proven = [step for step in todo(fleet.plan()) if step.startswith("pairs-")]
    assert proven == ["pairs-prefill-0", "pairs-prefill-1"]


def test_routers_are_restarted_one_after_the_other() -> None:
    fleet = running(routers=2)
    fleet.decode = 3
    steps = todo(fleet.plan())
    assert steps[steps.index("stop-router-0") :] == [
        "stop-router-0",
        "ports-router-0",
        "router-0",
        "health-router-0",
        "stop-router-1",
        "ports-router-1",
        "router-1",
        "health-router-1",
        "verify",
    ]
    assert steps.index("decode-2") < steps.index("stop-router-0")


def test_an_engine_that_goes_is_drained_before_it_ends() -> None:
    fleet = running()
    fleet.decode = 1
    steps = todo(fleet.plan())
    assert steps[:2] == ["drain-decode-1", "stop-decode-1"]
    fleet.up()
    assert todo(fleet.plan()) == ["verify"]


def test_a_restart_that_is_asked_for_goes_the_same_way() -> None:
    fleet = running()
    plan = fleet.plan(restart=["decode-0", "decode-1"])
    drains = [step for step in todo(plan) if step.startswith(("drain-", "stop-"))]
    assert drains == ["drain-decode-0", "stop-decode-0", "drain-decode-1", "stop-decode-1"]


def test_engines_that_swap_their_ports_are_one_group() -> None:
    one, two = frozenset({("h", 1)}), frozenset({("h", 2)})
    others = [Member("decode-0", "decode"), Member("decode-1", "decode")]
    swap = [
        Member("prefill-0", "prefill", replace=True, start=True, places=one, wants=two),
        Member("prefill-1", "prefill", replace=True, start=True, places=two, wants=one),
    ]
    assert [group.names for group in groups_of([*swap, *others], "g")] == [
        ("prefill-0", "prefill-1")
    ]


def test_cells_without_names_are_as_many_as_there_can_be() -> None:
    members = [Member(f"prefill-{n}", "prefill") for n in range(3)]
    members += [Member(f"decode-{n}", "decode") for n in range(2)]
    assert cells_of(members) == [
        ("prefill-0", "prefill-2", "decode-0"),
        ("prefill-1", "decode-1"),
    ]
