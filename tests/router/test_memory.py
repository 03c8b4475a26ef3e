"""The store in memory: what it finds, what it gives up, and what it counts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.router.handle import Conversation, Handle, Scope
from pdctl.router.match import common_prefix
from pdctl.router.memory import MemoryStore
from tests.router.playbook import BLOCK, NAMED, SCOPE, D, a_handle, ids

OTHER_SCOPE = Scope("another tenant", "m", "")
UNNAMED = Conversation("", "begins so")


def numbered(place: int, tokens: list[int], **more: Any) -> Handle:
    return a_handle(tokens, [1], request=f"d{place}", **({"conversation": UNNAMED} | more))


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), max_size=30),
    st.lists(st.integers(0, 2), max_size=12),
    st.lists(st.integers(0, 29), max_size=10),
)
async def test_the_longest_common_prefix_is_always_among_what_is_found(
    kept: list[list[int]], prompt: list[int], gone: list[int]
) -> None:
    store = MemoryStore()
    handles = [numbered(place, tokens) for place, tokens in enumerate(kept)]
    for handle in handles:
        await store.put(handle)
    for place in gone:
        await store.take(f"e1/d{place}")
    left = [h for place, h in enumerate(handles) if place not in gone]
    found = await store.find(SCOPE, ids(*prompt), UNNAMED)
    best = max((common_prefix(h.held.tokens, ids(*prompt)) for h in left), default=None)
    assert max((one.equal for one in found), default=None) == best
    for one in found:
        handle = await store.take(one.id)
        assert handle is not None
        assert one.equal == common_prefix(handle.held.tokens, ids(*prompt))


async def test_a_namesake_is_found_though_others_share_more() -> None:
    store = MemoryStore()
    await store.put(a_handle([1, 2, 9], [3], request="own"))
    for place in range(20):
        await store.put(numbered(place, [1, 2, 3, 4, place]))
    found = await store.find(SCOPE, ids(1, 2, 3, 4, 5), NAMED)
    assert "e1/own" in {one.id for one in found}


async def test_nothing_of_another_scope_is_found() -> None:
    store = MemoryStore()
    await store.put(a_handle([1, 2, 3], [4], scope=OTHER_SCOPE))
    assert await store.find(SCOPE, ids(1, 2, 3, 4), NAMED) == []
    assert not await store.knows(SCOPE, NAMED)
    assert await store.knows(OTHER_SCOPE, NAMED)


async def test_it_knows_names_and_beginnings_until_the_last_is_gone() -> None:
    store = MemoryStore()
    await store.put(a_handle([1, 2, 3], [4]))
    assert await store.knows(SCOPE, Conversation("c1", "begins otherwise"))
    assert await store.knows(SCOPE, Conversation("another", "begins so"))
    assert not await store.knows(SCOPE, Conversation("another", "begins otherwise"))
    await store.take("e1/d1")
    assert not await store.knows(SCOPE, NAMED)


async def test_a_handle_is_taken_once() -> None:
    store = MemoryStore()
    handle = a_handle([1, 2, 3], [4])
    await store.put(handle)
    assert await store.take(handle.id) == handle
    assert await store.take(handle.id) is None


async def test_the_least_worthy_goes_first_and_only_as_many_as_are_needed() -> None:
    now = 0.0
    store = MemoryStore(clock=lambda: now)
    await store.put(numbered(1, list(range(40))))
    await store.put(numbered(2, list(range(8))))
    await store.put(numbered(3, list(range(8)), turns=5))
    taken = await store.take_least(D, 1)
    assert [h.request_id for h in taken] == ["d2"]
    taken = await store.take_least(D, BLOCK * 3)
    assert [h.request_id for h in taken] == ["d3", "d1"]
    assert await store.take_least(D, 1) == []


async def test_a_handle_loses_worth_with_time() -> None:
    now = 0.0
    store = MemoryStore(clock=lambda: now)
    await store.put(numbered(1, list(range(40))))
    now = 600.0
    await store.put(numbered(2, list(range(8))))
    assert [h.request_id for h in await store.take_least(D, 1)] == ["d1"]


async def test_a_bound_in_number_and_in_bytes_gives_up_the_least_worthy() -> None:
    few = MemoryStore(max_handles=2)
    evicted = []
    for place, length in enumerate((40, 8, 30)):
        evicted += await few.put(numbered(place, list(range(length))))
    assert [h.request_id for h in evicted] == ["d1"]
    small = MemoryStore(max_bytes=10_000)
    evicted = []
    for place in range(10):
        evicted += await small.put(numbered(place, list(range(100))))
    assert len(small) == 3
    assert len(evicted) == 7


async def test_a_named_conversation_has_few_branches_and_a_beginning_has_any_number() -> None:
    store = MemoryStore(max_branches=2)
    evicted = []
    for place in range(3):
        evicted += await store.put(numbered(place, [1, 2, place], conversation=NAMED))
        await store.put(numbered(place + 10, [1, 2, place]))
    assert [h.request_id for h in evicted] == ["d0"]
    assert len(store) == 5


async def test_totals_follow_what_is_there() -> None:
    store = MemoryStore()
    first, second = numbered(1, list(range(9))), numbered(2, list(range(5)))
    await store.put(first)
    await store.put(second)
    assert (await store.totals())[D] == (2, 9 + 5, 12 + 8)
    await store.take(first.id)
    assert (await store.totals())[D] == (1, 5, 8)
    await store.put(second)
    assert (await store.totals())[D] == (1, 5, 8)


async def test_what_is_taken_together() -> None:
    store = MemoryStore()
    mine = a_handle([1, 2, 3], [4], deadline=10.0)
    theirs = a_handle([1, 2, 3], [4], request="d2", scope=OTHER_SCOPE, deadline=20.0)
    restarted = a_handle([1, 2, 3], [4], request="d3", engine="e2", conversation=UNNAMED)
    for handle in (mine, theirs, restarted):
        await store.put(handle)
    assert await store.take_conversation("", "c1") == [mine]
    assert await store.forget_engine(D, keep_start="e1") == 1
    assert await store.take_expired(20.0) == [theirs]
    await store.put(theirs)
    await store.put(mine)
    assert await store.take_all(lambda tenant, _: tenant == "another tenant") == [theirs]
    assert await store.take_all() == [mine]


@pytest.mark.parametrize("rounds", [300])
async def test_heaps_do_not_grow_with_what_has_gone(rounds: int) -> None:
    store = MemoryStore()
    for place in range(rounds):
        await store.put(numbered(place, [1, 2, 3]))
        await store.take(f"e1/d{place}")
    assert sum(map(len, [*store._worth.values(), store._deadlines])) < 200
