"""What all requests of a router share, and how blocks are given back to decode."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pdctl.config.model import RouterLimits
from pdctl.router import legs, retention
from pdctl.router.actions import (
    Answer,
    Failure,
    Release,
)
from pdctl.router.auditor import Auditor
from pdctl.router.core import release_of
from pdctl.router.engines import Engines
from pdctl.router.fleet import Fleet
from pdctl.router.handle import Handle
from pdctl.router.leases import Leases
from pdctl.router.metrics import RouterMetrics
from pdctl.router.patience import Patience
from pdctl.router.store import HandleStore, Total

log = logging.getLogger("pdctl.router")

# At the end of the router. An engine that does not answer must not hold that up.
_LAST_RELEASES_S = 5.0
_LAST_AT_ONCE = 16
_ALL_TOKENS = 2**62
# That one prefill server is asked for. A drain may free thousands of handles, and each is a request
# that takes a socket here and a place there.
_RELEASES_AT_ONCE = 32


class Background:
    """Work that must go on when its request is gone; the router waits for it at shutdown."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def run(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Start it; an error in it is logged, not lost."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def drain(self, limit: float) -> None:
        """Wait for what runs and what that begins, at most `limit` seconds, then cancel it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while self._tasks:
                    await asyncio.wait(set(self._tasks))
        late = set(self._tasks)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=1)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("background work failed", exc_info=task.exception())


@dataclass
class Shared:
    """What all requests of a router share.

    Attributes:
        releasing: by prefill server, places for releases.
    """

    engines: Engines
    fleet: Fleet
    store: HandleStore
    metrics: RouterMetrics
    limits: RouterLimits
    background: Background
    auditor: Auditor
    leases: Leases
    patience: Patience
    releasing: Mapping[str, asyncio.Semaphore] = field(
        default_factory=lambda: defaultdict(lambda: asyncio.Semaphore(_RELEASES_AT_ONCE))
    )


async def note_start(shared: Shared, handle: Handle, *, fresh: bool) -> bool:
    """Whether a handle is of its engine's present start; a new one means all others are dead.

    Args:
        fresh: it has just come from the engine, so it says which start that is.
    """
    fleet, start = shared.fleet, handle.engine_start
    known = fleet.decode_starts.get(handle.decode)
    if start in fleet.ended_starts or not fresh:
        return known in (None, start)
    if known == start:
        return True
    fleet.decode_starts[handle.decode] = start
    if known is not None:
        fleet.ended_starts.add(known)
    # Also for the first that this router sees: a shared store may have some that nobody forgot.
    if gone := await shared.store.forget_engine(handle.decode, start):
        log.warning("%s was restarted: %d handles forgotten", handle.decode, gone)
    return True


async def make_room(shared: Shared, decode: str) -> None:
    """Give back what is least worth, as far as decode has no room for what is there or coming."""
    engine = shared.fleet.decode[decode]
    totals = (await shared.store.totals()).get(decode, Total())
    engine.retained = totals.pinned
    missing = retention.shortfall(
        engine.capacity_tokens, totals.pinned, engine.outstanding, engine.others
    )
    if missing <= 0:
        return
    await take_and_let_go(shared, shared.store.take_least(decode, missing), "pressure")


def let_go(shared: Shared, handle: Handle, reason: str) -> None:
    """Have decode free a handle that was taken out of the store, in the background."""
    shared.background.run(release(shared, release_of(shared.fleet, handle, reason), {}))


async def take_and_let_go(
    shared: Shared, taking: Coroutine[Any, Any, list[Handle]], reason: str
) -> int:
    """Have decode free what is taken out of the store, also when who waits for that leaves.

    Returns how many handles it was.
    """

    async def both() -> int:
        handles = await taking
        for handle in handles:
            let_go(shared, handle, reason)
        return len(handles)

    return await asyncio.shield(shared.background.run(both()))


async def give_back_all(shared: Shared, decode: str, reason: str) -> int:
    """Have a decode server free all that it keeps. Returns how many handles it was."""
    return await take_and_let_go(shared, shared.store.take_least(decode, _ALL_TOKENS), reason)


async def let_all_go(shared: Shared, handles: Sequence[Handle]) -> None:
    """Have decode free what ends with this router, as far as there is time."""
    left = iter(handles)

    async def some() -> None:
        for handle in left:
            await release(shared, release_of(shared.fleet, handle, "router_ends"), {})

    with suppress(TimeoutError):
        async with asyncio.timeout(_LAST_RELEASES_S):
            await asyncio.gather(*(some() for _ in range(_LAST_AT_ONCE)))
    if late := sum(1 for _ in left):
        log.warning("%d handles were not given back: decode keeps them for its TTL", late)


async def release(shared: Shared, action: Release, headers: dict[str, str]) -> None:
    """Free a handle's blocks on decode by way of prefill. Failing costs memory only."""
    if not action.prefill:
        shared.metrics.releases.labels("no_prefill").inc()
        return
    refusal = shared.fleet.releases_by_refusal(action.prefill, action.decode)
    body = legs.release_by_refusal if refusal else legs.release_by_reading
    async with shared.releasing[action.prefill]:
        result = await shared.engines.post_json(
            f"{action.prefill}/v1/completions",
            body(action.model, action.params),
            limit=shared.limits.prefill_base,
            headers=headers,
        )
    refused = refusal and isinstance(result, Failure) and result.status == 400
    # Also by a prefill that does not refuse: it has been told to pull nothing.
    released = refused or isinstance(result, Answer)
    shared.metrics.releases.labels(action.reason if released else "failed").inc()
    if not released:
        log.warning("release of %s failed: %s", action.params.get("remote_request_id"), result)
