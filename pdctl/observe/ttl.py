"""For how long routers offer handles, and for how long decode really keeps their blocks."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import aiohttp

from pdctl.base.errors import BadAnswerError, PdctlError
from pdctl.base.explain import TTL_PATH
from pdctl.observe.http import HttpStatusError, ask_json
from pdctl.observe.reuse import explained
from pdctl.observe.sides import a_handle

_TIMEOUT_S = 10.0
# Plain text in every vocabulary, and no beginning of anything that is asked for.
_PROMPT = tuple(range(60, 20, -1))

Clock = Callable[[], Awaitable[float]]
"""Reads the clock that decode's deadlines are told by: its own host's, counted from its boot."""


@dataclass(frozen=True)
class RouterTtl:
    """One router's TTL in seconds, after a change if there was one.

    Attributes:
        error: why it could not be asked or changed; `ttl` is then None.
    """

    name: str
    url: str
    ttl: float | None = None
    error: PdctlError | None = None

    def as_dict(self) -> dict[str, object]:
        """The shape in `set-ttl --json`."""
        return {
            "name": self.name,
            "url": self.url,
            "ttl": self.ttl,
            "error": self.error.message if self.error else None,
        }


async def ask_routers(
    routers: Sequence[tuple[str, str]], key: str | None, ttl: float | None = None
) -> list[RouterTtl]:
    """Ask all at the same time, or tell them a TTL.

    Args:
        routers: name and URL of each.
        key: an API key of the tenant `admin`, where routers want one.
    """
    async with aiohttp.ClientSession() as session:
        found = await asyncio.gather(*(_ask(session, *each, key, ttl) for each in routers))
    return list(found)


async def _ask(
    session: aiohttp.ClientSession, name: str, url: str, key: str | None, ttl: float | None
) -> RouterTtl:
    router = RouterTtl(name, url)
    method, body = ("GET", None) if ttl is None else ("PUT", {"ttl": ttl})
    try:
        answer = await ask_json(
            session, url + TTL_PATH, method=method, body=body, key=key, timeout=_TIMEOUT_S
        )
    except HttpStatusError as error:
        return replace(router, error=explained(error, "change the TTL"))
    except PdctlError as error:
        return replace(router, error=error)
    told = answer.get("ttl")
    if isinstance(told, bool) or not isinstance(told, int | float):
        wrong = BadAnswerError("it does not answer as pdctl's router does", where=url)
        return replace(router, error=wrong)
    return replace(router, ttl=float(told))


@dataclass(frozen=True)
class KeptFor:
    """For how many seconds decode keeps the blocks of a turn, as its own handle says.

    Its deadline is certain; when exactly the turn ended is not, so there is a least and a most.
    """

    least: float
    most: float

    def is_about(self, seconds: float, *, slack: float = 0.5) -> bool:
        """Whether that may be its TTL."""
        return self.least - slack <= seconds <= self.most + slack


async def read_kept_for(
    prefill: str, decode: str, clock: Clock, *, model: str, key: str | None
) -> KeptFor | None:
    """Have a small turn through both servers, and read decode's deadline off its handle.

    The handle is given back. None where this vLLM's handles have no deadline.

    Raises:
        PdctlError: an engine does not answer, or decode gives no handle.
    """
    async with (
        aiohttp.ClientSession() as session,
        a_handle(session, prefill, decode, model=model, prompt=_PROMPT, key=key) as finish,
    ):
        before = await clock()
        handle = await finish()
        after = await clock()
    deadline = handle.get("remote_blocks_expiry_time")
    if isinstance(deadline, bool) or not isinstance(deadline, int | float):
        return None
    return KeptFor(deadline - after, deadline - before)
