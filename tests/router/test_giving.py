"""What goes on when its request is gone."""

import asyncio
import time
from typing import Any

from pdctl.router.giving import Background
from tests.router.test_server import LONG, user, world


async def test_the_end_waits_for_what_background_work_begins_too() -> None:
    """An answer that is kept for a client that left makes releases of its own."""
    background, done = Background(), asyncio.Event()

    async def second() -> None:
        await asyncio.sleep(0.02)
        done.set()

    async def first() -> None:
        await asyncio.sleep(0.02)
        background.run(second())

    background.run(first())
    await background.drain(5)
    assert done.is_set()


async def test_the_end_does_not_wait_for_ever() -> None:
    background = Background()

    async def again() -> None:
        await asyncio.sleep(0.02)
        background.run(again())

    background.run(again())
    late = background.run(asyncio.sleep(60))
    began = time.monotonic()
    await background.drain(0.2)
    assert time.monotonic() - began < 5
    assert late.cancelled()


async def test_many_handles_are_given_back_a_few_at_a_time() -> None:
    """A switch or a drain frees thousands; each is a request to prefill, and to it only."""
    running, most = 0, 0

    async def slow(request: Any, body: dict[str, Any]) -> None:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await asyncio.sleep(0.02)
        running -= 1

    async with world() as w:
        for place in range(100):
            await w.ask([user(f"{LONG} {place}")], conversation_id=f"{place}")
        w.p.fault = slow
        async with w.http.put(f"{w.url}/pdctl/v1/reuse", json={"share": 0}) as answer:
            assert (await answer.json())["released"] == 100
        await w.until(lambda: not w.d.held)
        assert len(w.p.released) == 100
        assert 8 <= most <= 32
