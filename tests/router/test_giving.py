"""What goes on when its request is gone."""

import asyncio
import time

from pdctl.router.giving import Background


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
