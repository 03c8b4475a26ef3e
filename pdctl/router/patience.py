"""How long a request may take: its limit, and no longer than a router that stops has left."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Patience:
    """Limits on what runs, all of which come nearer when the router stops.

    Args:
        last: seconds that there are from then on.
    """

    def __init__(self, last: float) -> None:
        self._last = last
        self._end: float | None = None
        self._running: set[asyncio.Timeout] = set()

    @property
    def ending(self) -> bool:
        """The router stops."""
        return self._end is not None

    @asynccontextmanager
    async def limit(self, seconds: float) -> AsyncIterator[None]:
        """Cut the block off when it takes longer than so many seconds.

        Raises:
            TimeoutError: it did, or the router stopped.
        """
        when = asyncio.get_running_loop().time() + seconds
        limit = asyncio.timeout_at(when if self._end is None else min(when, self._end))
        self._running.add(limit)
        try:
            async with limit:
                yield
        finally:
            self._running.discard(limit)

    def end(self) -> None:
        """Give what runs its last seconds, so that it ends with words and not in silence."""
        if self._end is not None:
            return
        self._end = end = asyncio.get_running_loop().time() + self._last
        for limit in self._running:
            if not limit.expired():  # what is being cut off already cannot be moved
                limit.reschedule(min(end, limit.when() or end))

    def left(self) -> float:
        """Seconds until the end; all of them before the router stops."""
        if self._end is None:
            return self._last
        return max(0.0, self._end - asyncio.get_running_loop().time())
