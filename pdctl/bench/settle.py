"""Between cells: nothing is pinned on decode any more, by its own count, before the next begins."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp

from pdctl.base.errors import TemporaryError
from pdctl.base.events import Listener, StepWaiting
from pdctl.observe.counters import Look, look
from pdctl.observe.endpoints import Endpoints
from pdctl.observe.reuse import Setting, put_setting

_EMPTY = 0.001
"""Share of blocks that counts as none; engines keep one back for themselves."""
_WORD_EVERY_S = 10.0


@dataclass(frozen=True)
class Switch:
    """The router's switch, for whom everything is turned at once.

    Attributes:
        key: an API key of the tenant `admin`, where the router wants one.
    """

    session: aiohttp.ClientSession
    url: str
    key: str | None

    async def turn(self, share: float) -> None:
        """Reuse on (1) or off (0) for everybody; off also gives back what decode holds."""
        await self.put(Setting(share))

    async def put(self, setting: Setting) -> None:
        """Back to a setting that was read before."""
        await put_setting(self.session, self.url, self.key, setting)


async def settle(
    endpoints: Endpoints,
    switch: Switch,
    *,
    limit: float,
    listen: Listener,
    poll: float = 0.25,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> float:
    """Turn reuse off and wait until decode holds no blocks and the engines run nothing.

    Returns:
        Seconds that it took.

    Raises:
        TemporaryError: something is still held after `limit` seconds.
    """
    began = time.monotonic()
    told = began - _WORD_EVERY_S / 2
    while True:
        # Again each time: what a turn that ran at that moment has left is given back too.
        await switch.turn(0.0)
        seen = await look(switch.session, endpoints)
        waited = time.monotonic() - began
        if not seen.busy and seen.usage <= _EMPTY:
            return waited
        if waited >= limit:
            raise _never(seen, limit)
        if time.monotonic() - told >= _WORD_EVERY_S:
            told = time.monotonic()
            listen(StepWaiting("settle", _waiting_for(seen), waited, limit))
        await sleep(poll)


def _waiting_for(seen: Look) -> str:
    return f"decode to hold nothing: {seen.usage:.1%} of its cache in use, {seen.busy} requests"


def _never(seen: Look, limit: float) -> TemporaryError:
    return TemporaryError(
        f"decode still holds blocks {limit:.0f} s after the last turn: {seen.usage:.1%} of its KV "
        f"cache is in use, {seen.busy} requests run or wait",
        expected="engines that serve nobody else while they are measured",
        hints=["wait until other traffic has ended, or `--settle SECONDS` for a longer wait"],
    )
