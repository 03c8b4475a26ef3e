"""What only the store in memory does; what every store promises is in test_store.py."""

from pdctl.router.memory import MemoryStore
from tests.router.playbook import D
from tests.router.test_store import names, numbered


async def test_a_handle_loses_worth_with_time() -> None:
    now = 0.0
    store = MemoryStore(clock=lambda: now)
    await store.put(numbered(1, list(range(40))))
    now = 600.0
    await store.put(numbered(2, list(range(8))))
    assert names(await store.take_least(D, 1)) == ["d1"]


async def test_a_bound_in_bytes_gives_up_the_least_worthy() -> None:
    store = MemoryStore(max_bytes=10_000)
    evicted = []
    for place in range(10):
        evicted += await store.put(numbered(place, list(range(100 + place))))
    assert len(store) == 3
    assert names(evicted) == [f"d{place}" for place in range(7)]


async def test_heaps_do_not_grow_with_what_has_gone() -> None:
    store = MemoryStore()
    for place in range(300):
        await store.put(numbered(place, [1, 2, 3]))
        await store.take(f"e1/d{place}")
    assert sum(map(len, [*store._worth.values(), store._deadlines])) < 200
