"""Requests that run now, and when the last work ended."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager


class InFlight:
    """Counts requests. Work is what engines are needed for; the rest asks how the router is.

    Attributes:
        count: requests of all kinds that run now.
        last_work: when work last ended, in seconds of the monotonic clock.
    """

    def __init__(self) -> None:
        self.count = 0
        self.last_work = time.monotonic()
        self._works = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def one(self, *, works: bool) -> Iterator[None]:
        """A request, for as long as the block runs."""
        self.count += 1
        self._works += works
        if self._works:
            self._idle.clear()
        try:
            yield
        finally:
            self.count -= 1
            self._works -= works
            if works:
                self.last_work = time.monotonic()
            if not self._works:
                self._idle.set()

    async def no_work(self) -> None:
        """Wait until nothing runs that engines are needed for."""
        await self._idle.wait()
