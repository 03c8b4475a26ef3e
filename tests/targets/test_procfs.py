from dataclasses import replace

import pytest

from pdctl.base.process import ProcessRef
from pdctl.targets.procfs import Stat, ancestors, members, parse_stat

REF = ProcessRef(pid=100, start_ticks=500, boot_id="b", mark="/st/demo/prefill-0")


def stat(pid: int, *, parent: int = 1, group: int = 0, session: int = 0, **more: object) -> Stat:
    fields: dict[str, object] = {"name": "p", "state": "S", "start_ticks": 500 + pid, **more}
    return Stat(pid=pid, parent=parent, group=group or pid, session=session or pid, **fields)  # type: ignore[arg-type]


LEADER = stat(100, group=100, session=100, start_ticks=500)


def pids(
    *table: Stat, seen: set[tuple[int, int]] | None = None, marks: dict[int, str] | None = None
) -> list[int]:
    found = members(
        REF,
        {each.pid: each for each in table},
        seen=seen or set(),
        mark_of=lambda pid: (marks or {}).get(pid, ""),
    )
    return [each.pid for each in found]


def test_a_name_with_spaces_and_brackets_does_not_shift_the_fields() -> None:
    line = "42 (a) b (c)) S 7 40 41 0 -1 4194560 2958 50326 0 9 1 2 33 11 20 0 3 0 70987 5124096"
    assert parse_stat(line) == Stat(42, "a) b (c)", "S", 7, 40, 41, 70987, threads=3)


@pytest.mark.parametrize("line", ["", "12", "12 (x", "12 (x) S 1 2"])
def test_a_line_that_is_cut_is_refused(line: str) -> None:
    with pytest.raises(ValueError):
        parse_stat(line)


def test_group_session_and_children_that_left_both_are_members() -> None:
    table = (
        LEADER,
        stat(101, parent=100, group=100, session=100),
        stat(102, parent=101, group=102, session=100),  # changed its group
        stat(103, parent=102),  # its own session
        stat(104),  # a stranger
    )
    assert pids(*table) == [100, 101, 102, 103]


def test_a_recycled_pid_is_no_member_and_neither_is_its_group() -> None:
    recycled = stat(100, group=100, session=100, start_ticks=501)
    assert pids(recycled, stat(101, parent=100, group=100, session=100)) == []


def test_orphans_of_a_dead_leader_need_their_mark() -> None:
    orphans = (stat(101, group=100, session=100), stat(102, group=102, session=100))
    assert pids(*orphans) == []
    # One marked member proves that the session's number was never given to anybody else.
    assert pids(*orphans, marks={102: REF.mark}) == [101, 102]
    assert pids(*orphans, marks={102: "/st/other/prefill-0"}) == []


def test_a_member_seen_before_vouches_for_the_session_and_stays_one() -> None:
    orphans = (stat(101, group=100, session=100), stat(102, group=100, session=100), stat(103))
    assert pids(*orphans, seen={(101, 601)}) == [101, 102]
    assert pids(*orphans, seen={(103, 603)}) == [103]
    assert pids(*orphans, seen={(103, 1)}) == []  # the number of another process by now


def test_a_zombie_runs_nothing_but_still_holds_its_number() -> None:
    zombie = stat(100, group=100, session=100, start_ticks=500, state="Z")
    assert pids(zombie, stat(101, group=100, session=100)) == [101]


def test_a_zombie_with_threads_left_still_holds_ports_and_memory() -> None:
    assert pids(replace(LEADER, state="Z", threads=2)) == [100]


def test_what_carries_the_mark_is_a_member_wherever_it_is() -> None:
    assert pids(stat(200), marks={200: REF.mark}) == [200]


def test_ancestors_end_at_the_top() -> None:
    table = {s.pid: s for s in (stat(1, parent=0), stat(5, parent=1), stat(9, parent=5), stat(7))}
    assert ancestors(9, table) == {9, 5, 1}
