"""Which handles are renewed, and when: without engines and without waiting."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pdctl.router.handle import Conversation, Handle
from pdctl.router.leases import Leases
from pdctl.router.match import Retained
from tests.router.playbook import BLOCK, SCOPE, D, d_params, ids

TTL = 40.0
AHEAD = 1000.0
"""Decode's clock is so far ahead of the router's."""
MARGIN = 8.0


def handle(name: str = "d1", *, ends: float = 0.0, ttl: float = TTL, **marks: Any) -> Handle:
    """Of a turn that ended then."""
    expiry = ends + ttl + MARGIN + AHEAD
    params = d_params(9, name) | {"remote_blocks_expiry_time": expiry, "pdctl_renewable": True}
    return Handle.of(
        params | marks,
        scope=SCOPE,
        conversation=Conversation(name),
        decode=D,
        held=Retained(ids(*range(9)), 9),
        block_size=BLOCK,
        deadline=ends + ttl,
    )


def names(leases: Leases, now: float, ttl: float = TTL) -> list[str]:
    return [lease.request_id for lease in leases.due(now, ttl)]


def test_it_is_due_when_half_of_its_time_is_over() -> None:
    leases = Leases(300)
    leases.add(handle(), 0.0, lambda: True)
    assert names(leases, 19.9) == []
    (lease,) = leases.due(20.0, TTL)
    assert lease.wanted(20.0, TTL) == 60.0
    assert lease.expiry_at(60.0) == 60.0 + MARGIN + AHEAD
    assert lease.deadline_at(59.0 + MARGIN + AHEAD) == 59.0
    lease.deadline, lease.expiry = 60.0, 60.0 + MARGIN + AHEAD
    leases.keep(lease, 20.0, TTL)
    assert names(leases, 39.9) == []
    assert names(leases, 40.0) == ["d1"]


def test_one_that_failed_is_due_again_soon_until_it_has_ended() -> None:
    leases = Leases(300)
    leases.add(handle(), 0.0, lambda: True)
    (lease,) = leases.due(20.0, TTL)
    leases.keep(lease, 25.0, TTL)
    assert names(leases, 25.5) == []
    assert names(leases, 26.0) == ["d1"]
    leases.keep(lease, 38.0, TTL)
    assert names(leases, 40.0) == []
    assert len(leases) == 0


def test_it_is_renewed_no_further_than_it_may_be_active() -> None:
    leases = Leases(50)
    leases.add(handle(), 0.0, lambda: True)
    (lease,) = leases.due(20.0, TTL)
    assert lease.wanted(20.0, TTL) == 50.0
    lease.deadline, lease.expiry = 50.0, 50.0 + MARGIN + AHEAD
    leases.keep(lease, 20.0, TTL)
    assert names(leases, 45.0) == []
    assert len(leases) == 0


def test_what_is_not_active_any_more_is_not_renewed() -> None:
    here = True
    leases = Leases(300)
    leases.add(handle(), 0.0, lambda: here)
    here = False
    assert names(leases, 20.0) == []
    assert len(leases) == 0
    leases.add(handle(), 0.0, lambda: False)
    assert len(leases) == 0


def test_where_decode_cannot_be_asked_nothing_is_renewed() -> None:
    leases = Leases(300)
    for marks in (
        {"pdctl_renewable": None},
        {"pdctl_renewable": "yes"},
        {"remote_blocks_expiry_time": None},
        {"remote_blocks_expiry_time": "soon"},
    ):
        leases.add(handle(**marks), 0.0, lambda: True)
    assert len(leases) == 0
    leases.add(handle(), 0.0, lambda: True)
    assert len(leases) == 1


def test_switched_off_nothing_is_renewed() -> None:
    leases = Leases(0)
    leases.add(handle(), 0.0, lambda: True)
    assert len(leases) == 0


def test_a_ttl_that_is_longer_is_not_enough() -> None:
    """The idle time is shorter than the TTL: there is nothing to ask for."""
    leases = Leases(30)
    leases.add(handle(), 0.0, lambda: True)
    assert names(leases, 20.0) == []
    assert len(leases) == 0


def test_a_ttl_that_was_lowered_is_asked_for_later() -> None:
    leases = Leases(300)
    leases.add(handle(ttl=100.0), 0.0, lambda: True)
    assert names(leases, 50.0, ttl=10.0) == []
    assert names(leases, 94.0, ttl=10.0) == []
    (lease,) = leases.due(95.0, 10.0)
    assert lease.wanted(95.0, 10.0) == 105.0


@given(st.lists(st.tuples(st.floats(0, 30), st.booleans()), max_size=40), st.floats(20, 200))
def test_a_deadline_only_moves_when_decode_has_said_so(
    steps: list[tuple[float, bool]], idle: float
) -> None:
    """Whatever fails: the router's deadline stays the margin before decode's."""
    leases = Leases(idle)
    first = handle()
    leases.add(first, 0.0, lambda: True)
    now, said = 0.0, TTL + MARGIN + AHEAD
    for wait, answered in steps:
        now += wait
        for lease in leases.due(now, TTL):
            assert now < lease.deadline
            wanted = lease.expiry_at(lease.wanted(now, TTL))
            assert said < wanted <= now + TTL + MARGIN + AHEAD + 1e-6
            assert wanted <= idle + MARGIN + AHEAD + 1e-6
            if answered:
                said = wanted
                lease.deadline, lease.expiry = lease.deadline_at(said), said
            leases.keep(lease, now, TTL)
            assert lease.deadline + MARGIN + AHEAD <= said + 1e-6
