"""What every store promises, held against each of them."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdctl.router.handle import Conversation, Handle, Scope
from pdctl.router.match import common_prefix
from pdctl.router.memory import MemoryStore
from pdctl.router.redis_store import RedisStore
from pdctl.router.store import HandleStore, Total
from tests.router.playbook import BLOCK, NAMED, SCOPE, D, a_handle, ids
from tests.router.redis_server import needs_redis_server

OTHER_SCOPE = Scope("another tenant", "m", "")
UNNAMED = Conversation("", "begins so")
SOON = 1000.0

NewStore = Callable[..., Any]
_names = itertools.count()


@pytest.fixture(params=["memory", pytest.param("redis", marks=needs_redis_server)])
def new_store(request: pytest.FixtureRequest) -> NewStore:
    """A function that gives a store of its own, as a context."""
    url = None
    if request.param == "redis":
        url = request.getfixturevalue("server").url

    @asynccontextmanager
    async def new(**options: Any) -> AsyncIterator[HandleStore]:
        store: HandleStore = (
            MemoryStore(**options)
            if url is None
            else RedisStore.open(url, name=f"d{next(_names)}", limit=5.0, **options)
        )
        try:
            yield store
        finally:
            await store.close()

    return new


def numbered(place: int, tokens: list[int], **more: Any) -> Handle:
    usual: dict[str, Any] = {"conversation": UNNAMED, "deadline": time.monotonic() + SOON}
    return a_handle(tokens, [1], request=f"d{place}", **(usual | more))


def named(place: int, tokens: list[int], **more: Any) -> Handle:
    return numbered(place, tokens, **({"conversation": NAMED} | more))


def names(handles: list[Handle]) -> list[str]:
    return [handle.request_id for handle in handles]


async def counted(store: HandleStore) -> dict[str, Total]:
    return {decode: total for decode, total in (await store.totals()).items() if total != Total()}


def long(pieces: list[int], rest: list[int]) -> list[int]:
    """Many tokens from few numbers."""
    return [token for piece in pieces for token in [piece] * 128] + rest


LONG = st.builds(
    lambda pieces, rest, cut: long(pieces, rest)[: cut or None],
    st.lists(st.integers(0, 2), max_size=5),
    st.lists(st.integers(0, 2), min_size=1, max_size=12),
    st.integers(0, 700),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(LONG, max_size=30), LONG, st.lists(st.integers(0, 29), max_size=10))
async def test_the_longest_common_prefix_is_always_among_what_is_found(
    new_store: NewStore, kept: list[list[int]], prompt: list[int], gone: list[int]
) -> None:
    async with new_store() as store:
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


async def test_a_handle_comes_back_as_it_was_kept(new_store: NewStore) -> None:
    async with new_store() as store:
        handle = named(
            1,
            long([1, 2], [3]),
            scope=Scope("t", "m/ö", "s"),
            turns=7,
            prefill="http://p",
            renewed=12345.678901234567,
        )
        assert await store.put(handle) == []
        (found,) = await store.find(handle.scope, handle.held.tokens, NAMED)
        taken = await store.take(handle.id)
        for back in (found, taken):
            assert back.deadline == pytest.approx(handle.deadline, abs=0.5)
            assert back.deadline <= handle.deadline
        for name in ("conversation", "decode", "engine_start", "prefill", "block_size"):
            assert getattr(found, name) == getattr(handle, name)
        assert (found.id, found.certain) == (handle.id, handle.held.certain)
        fields = set(Handle.__dataclass_fields__)
        for name in fields - {"deadline"}:
            assert getattr(taken, name) == getattr(handle, name)
        known = "scope conversation decode engine_id request_id raw held block_size blocks deadline"
        assert fields == {*known.split(), "prefill", "turns", "renewed"}, (
            "is the new one kept as well?"
        )


async def test_a_namesake_is_found_though_others_share_more(new_store: NewStore) -> None:
    async with new_store() as store:
        await store.put(named(0, long([1], [2, 9])))
        for place in range(1, 30):
            await store.put(numbered(place, long([1], [2, 3, 4, place])))
        found = await store.find(SCOPE, ids(*long([1], [2, 3, 4, 5])), NAMED)
        equal = {one.id: one.equal for one in found}
        assert equal["e1/d0"] == 129
        assert max(equal.values()) == 132


async def test_nothing_of_another_scope_is_found(new_store: NewStore) -> None:
    async with new_store() as store:
        await store.put(named(1, [1, 2, 3], scope=OTHER_SCOPE))
        assert await store.find(SCOPE, ids(1, 2, 3, 4), NAMED) == []
        assert not await store.knows(SCOPE, NAMED)
        assert await store.knows(OTHER_SCOPE, NAMED)
        # A name holds for all models of its tenant, tokens do not.
        other_model = Scope("another tenant", "n", "")
        assert await store.knows(other_model, NAMED)
        assert await store.find(other_model, ids(1, 2, 3, 4), NAMED) == []


async def test_it_knows_names_and_beginnings_until_the_last_is_gone(new_store: NewStore) -> None:
    async with new_store() as store:
        await store.put(named(1, [1, 2, 3]))
        assert await store.knows(SCOPE, Conversation("c1", "begins otherwise"))
        assert await store.knows(SCOPE, Conversation("another", "begins so"))
        assert not await store.knows(SCOPE, Conversation("another", "begins otherwise"))
        await store.take("e1/d1")
        assert not await store.knows(SCOPE, NAMED)


async def test_a_handle_is_taken_once(new_store: NewStore) -> None:
    async with new_store() as store:
        handle = named(1, [1, 2, 3])
        await store.put(handle)
        assert await store.take(handle.id) is not None
        assert await store.take(handle.id) is None
        assert await store.find(SCOPE, ids(1, 2, 3, 4), NAMED) == []
        assert await store.take("never there") is None


async def test_the_least_worthy_goes_first_and_only_as_many_as_are_needed(
    new_store: NewStore,
) -> None:
    async with new_store() as store:
        await store.put(numbered(1, list(range(40))))
        # It is older, and came back more often.
        await store.put(numbered(3, list(range(8)), turns=5))
        await store.put(numbered(2, list(range(8)), engine="e1_dp1"))
        await store.put(numbered(4, list(range(2)), decode="http://d:2"))
        assert names(await store.take_least(D, 1)) == ["d2"]
        assert names(await store.take_least(D, BLOCK * 3)) == ["d3", "d1"]
        assert await store.take_least(D, 1) == []
        assert set(await counted(store)) == {"http://d:2"}


async def test_a_bound_in_number_gives_up_the_least_worthy(new_store: NewStore) -> None:
    async with new_store(max_handles=2) as store:
        evicted = []
        for place, length in enumerate((40, 8, 30)):
            decode = f"http://d:{place}"
            evicted += await store.put(numbered(place, list(range(length)), decode=decode))
        assert names(evicted) == ["d1"]
        assert sum(total.handles for total in (await store.totals()).values()) == 2


async def test_a_named_conversation_has_few_branches_and_a_beginning_has_any_number(
    new_store: NewStore,
) -> None:
    async with new_store(max_branches=2) as store:
        evicted = []
        for place in range(3):
            evicted += await store.put(named(place, [1, 2, place]))
            await store.put(numbered(place + 10, [1, 2, place]))
        assert names(evicted) == ["d0"]
        assert (await store.totals())[D].handles == 5


async def test_totals_follow_what_is_there(new_store: NewStore) -> None:
    async with new_store() as store:
        first, second = numbered(1, list(range(9))), numbered(2, list(range(5)))
        await store.put(first)
        await store.put(second)
        assert (await store.totals())[D] == (2, 9 + 5, 12 + 8)
        await store.take(first.id)
        assert (await store.totals())[D] == (1, 5, 8)
        # An engine that names two turns alike has only the later one.
        await store.put(second)
        assert (await store.totals())[D] == (1, 5, 8)
        await store.take(second.id)
        assert await counted(store) == {}


async def test_what_is_taken_together(new_store: NewStore) -> None:
    async with new_store() as store:
        now = time.monotonic()
        mine = named(1, [1, 2, 3], deadline=now + 10)
        theirs = named(2, [1, 2, 3], scope=OTHER_SCOPE, deadline=now + 20)
        restarted = numbered(3, [1, 2, 3], engine="e2", deadline=now + 10)
        for handle in (mine, theirs, restarted):
            await store.put(handle)
        assert names(await store.take_conversation("", "c1")) == ["d1"]
        assert await store.forget_engine(D, keep_start="e1") == 1
        assert await store.take_expired(now) == []
        assert names(await store.take_expired(now + 21)) == ["d2"]
        await store.put(theirs)
        await store.put(mine)
        taken = await store.take_all(lambda tenant, what: tenant != "" and what == NAMED)
        assert names(taken) == ["d2"]
        assert names(await store.take_all()) == ["d1"]
        assert await counted(store) == {}


async def test_many_are_taken_together(new_store: NewStore) -> None:
    """More than a shared store hands out in one piece."""
    async with new_store() as store:
        for round_of in (0, 1, 2, 3):
            for place in range(150):
                engine = "e1" if place % 3 else "e2"
                await store.put(numbered(1000 * round_of + place, [1, 2, place], engine=engine))
            pinned = (await store.totals())[D].pinned
            if round_of == 0:
                assert len(await store.take_least(D, pinned)) == 150
            elif round_of == 1:
                assert len(await store.take_expired(time.monotonic() + 2 * SOON)) == 150
            elif round_of == 2:
                assert await store.forget_engine(D, keep_start="e1") == 50
                assert await store.forget_engine(D) == 100
            else:
                assert len(await store.take_all()) == 150
            assert await counted(store) == {}
            assert await store.find(SCOPE, ids(1, 2, 3), UNNAMED) == []


async def test_a_free_handle_can_be_kept_for_longer(new_store: NewStore) -> None:
    async with new_store() as store:
        soon = time.monotonic() + 1.0
        await store.put(named(1, [1, 2, 3], deadline=soon))
        await store.put(named(2, [1, 2, 4], deadline=soon))
        later = time.monotonic() + 60
        assert await store.extend("e1/d1", later, 777.25)
        found = {one.id: one for one in await store.find(SCOPE, ids(1, 2, 3, 5), NAMED)}
        assert found["e1/d1"].deadline == pytest.approx(later, abs=0.5)
        assert found["e1/d1"].deadline <= later
        await asyncio.sleep(soon + 0.1 - time.monotonic())
        assert names(await store.take_expired(time.monotonic())) == ["d2"]
        taken = await store.take("e1/d1")
        assert taken is not None
        assert taken.params["remote_blocks_expiry_time"] == 777.25
        assert taken.params["something_new"] == "kept"
        # It is put back as it was taken.
        await store.put(taken)
        again = await store.take("e1/d1")
        assert again is not None
        assert again.renewed == 777.25


async def test_what_is_not_free_any_more_is_not_kept_for_longer(new_store: NewStore) -> None:
    async with new_store() as store:
        handle = named(1, [1, 2, 3])
        await store.put(handle)
        assert await store.free(["e1/d1", "e1/d2"]) == {"e1/d1"}
        assert await store.free([]) == set()
        taken = await store.take("e1/d1")
        assert await store.free(["e1/d1"]) == set()
        assert not await store.extend("e1/d1", handle.deadline + 100, 5.0)
        assert not await store.extend("e1/d2", handle.deadline + 100, 5.0)
        assert await store.find(SCOPE, ids(1, 2, 3), NAMED) == []
        assert await counted(store) == {}
        assert taken is not None
        assert taken.renewed is None


async def test_a_deadline_is_never_made_earlier(new_store: NewStore) -> None:
    async with new_store() as store:
        handle = named(1, [1, 2, 3])
        await store.put(handle)
        assert await store.extend("e1/d1", handle.deadline - 100, 5.0)
        taken = await store.take("e1/d1")
        assert taken is not None
        assert taken.renewed is None
        assert taken.deadline == pytest.approx(handle.deadline, abs=0.5)


async def test_one_of_two_gets_a_handle_whose_time_is_changed(new_store: NewStore) -> None:
    """A claim and a renewal at once: the claim gets it as it was or as it is, not half of each."""
    async with new_store() as store:
        for place in range(20):
            handle = named(place, [1, 2, place])
            await store.put(handle)
            later = handle.deadline + 50
            taken, extended = await asyncio.gather(
                store.take(handle.id), store.extend(handle.id, later, 5.0)
            )
            assert taken is not None
            renewed = taken.renewed == 5.0
            assert renewed or taken.renewed is None
            assert extended or not renewed
            expected = later if renewed else handle.deadline
            assert taken.deadline == pytest.approx(expected, abs=0.5)
