"""Which side has bi-directional transfer off? Asked of the engines, past the router.

No request here can hang: prefill without the flag never answers a request that has a handle with
tokens to pull (FACTS T7), but a handle with none is a release (FACTS L3) on one that has the flag
and nothing at all on one that has not. So whether decode's blocks become free tells.

The handle is one of a turn through both. Decode gives one for less, but its worker then knows
nothing of it, and those blocks are never free again (read in vLLM 0.32.0, and seen).

Nothing stays pinned either: a request that prefill rejects in its handler gives a handle back
whatever its flag (read in vLLM 0.32.0 and 0.33.0, and run there).
"""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import aiohttp

from pdctl.base.errors import BadAnswerError, PdctlError
from pdctl.base.facts import EngineMetrics
from pdctl.base.sse import SseSplitter, data_of
from pdctl.base.transfer import FIRST_TURN, for_refusal, for_release
from pdctl.observe.http import ask
from pdctl.observe.metrics import growth, scrape_engine
from pdctl.observe.proof import SideProbe

_FALL_S = 15.0
"""Within this decode's usage falls after a release. 2 s was measured, and more than 5 on two cores
with twice as much to do: prefill's first look at decode's memory is part of it."""


async def probe_sides(
    session: aiohttp.ClientSession,
    prefill: str,
    decode: str,
    *,
    model: str,
    prompt: Sequence[int],
    key: str | None = None,
    timeout: float = 30.0,
    poll: float = 0.25,
) -> SideProbe:
    """Get a handle from decode by a turn through both, then give it back through prefill.

    Args:
        prompt: token ids that fill a few blocks.
        timeout: seconds for each request.

    Never raises for an engine that answers badly: then it could not be told.
    """
    asker = _Asker(session, model, key, timeout)
    try:
        # An idle engine exports what its last step saw; a step of ours makes that now.
        await asker.one_token(decode, prompt[:3], None)
        before = await scrape_engine(session, decode, key=key)
        if before.finished is not None:
            # A request is counted a moment after its answer.
            await asyncio.sleep(poll)
            before = await scrape_engine(session, decode, key=key)
        asker.asked.clear()
        moved = await asker.first_leg(prefill, prompt)
        if moved is None:
            return SideProbe()
        handle = await asker.one_token(decode, prompt, moved)
        if not handle or not handle.get("remote_block_ids"):
            return SideProbe(decode_gives_handle=False)
        held = await scrape_engine(session, decode, key=key)
        await asker.one_token(prefill, prompt[:3], for_release(handle))
    except PdctlError:
        return SideProbe()
    freed = await _freed(asker, decode, prompt[:3], before, held, poll)
    if freed is False:
        # Where it cannot be told, prefill may have done it, and must not do it twice.
        await _give_back(asker, prefill, handle, prompt[:3])
    return SideProbe(True, freed)


async def streams_handle(
    session: aiohttp.ClientSession,
    prefill: str,
    decode: str,
    *,
    model: str,
    prompt: Sequence[int],
    key: str | None = None,
    timeout: float = 30.0,
) -> bool | None:
    """Whether decode's streamed answers bring a handle (FACTS T9); None when it could not be told.

    If not, what decode keeps of this turn stays until its TTL: only the handle could free it.
    """
    asker = _Asker(session, model, key, timeout)
    try:
        moved = await asker.first_leg(prefill, prompt)
        if moved is None:
            return None
        handle = await asker.one_streamed_token(decode, prompt, moved)
    except PdctlError:
        return None
    if handle is None:
        return False
    await _give_back(asker, prefill, handle, prompt[:3])
    return True


async def give_back(
    session: aiohttp.ClientSession,
    prefill: str,
    handle: Mapping[str, Any],
    *,
    model: str,
    prompt: Sequence[int],
    key: str | None = None,
    timeout: float = 30.0,
) -> None:
    """Free a handle's blocks whatever prefill's flag: a request that it rejects says so to decode.

    Never raises for an engine that answers badly: then the blocks stay until decode's TTL.
    """
    await _give_back(_Asker(session, model, key, timeout), prefill, handle, prompt)


@contextlib.asynccontextmanager
async def a_handle(
    session: aiohttp.ClientSession,
    prefill: str,
    decode: str,
    *,
    model: str,
    prompt: Sequence[int],
    key: str | None = None,
    timeout: float = 30.0,
) -> AsyncIterator[Callable[[], Awaitable[Mapping[str, Any]]]]:
    """A turn through both, ready for decode: gives what lets decode finish it and tell its handle.

    What decode keeps for it is given back at the end.

    Raises:
        PdctlError: an engine does not answer, or there is no handle.
    """
    asker = _Asker(session, model, key, timeout)
    moved = await asker.first_leg(prefill, prompt)
    if moved is None:
        raise BadAnswerError("prefill offers no blocks to decode", where=prefill)
    handles: list[Mapping[str, Any]] = []

    async def finish() -> Mapping[str, Any]:
        handle = await asker.one_token(decode, prompt, moved)
        if not handle or not handle.get("remote_block_ids"):
            raise BadAnswerError("decode gives no handle", where=decode)
        handles.append(handle)
        return handle

    try:
        yield finish
    finally:
        for handle in handles:
            await _give_back(asker, prefill, handle, prompt)


async def _freed(
    asker: "_Asker",
    decode: str,
    prompt: Sequence[int],
    before: EngineMetrics,
    held: EngineMetrics,
    poll: float,
) -> bool | None:
    """True when decode's usage fell by what the handle held, None when others use it too.

    Others: they need not run while one looks. What they retain meanwhile hides what was freed.
    """
    if before.kv_usage is None or held.kv_usage is None or not held.kv_usage > before.kv_usage:
        return None
    limit = before.kv_usage + (held.kv_usage - before.kv_usage) / 2
    over = asyncio.get_running_loop().time() + _FALL_S
    after = held
    try:
        while (after.kv_usage or 0.0) > limit:
            finished = growth(before.finished, after.finished)
            if before.finished is None or finished is None or finished > asker.asked[decode]:
                return None
            if asyncio.get_running_loop().time() >= over:
                return False if finished == asker.asked[decode] else None
            # Decode handles the notice in its next step; without work it makes none.
            await asker.one_token(decode, prompt, None)
            await asyncio.sleep(poll)
            after = await scrape_engine(asker.session, decode, key=asker.key)
    except PdctlError:
        return None
    return True


async def _give_back(
    asker: "_Asker", prefill: str, handle: Mapping[str, Any], prompt: Sequence[int]
) -> None:
    """Free the handle's blocks by a request that prefill rejects; its next step tells decode."""
    with contextlib.suppress(PdctlError):
        await asker.one_token(
            prefill, prompt, for_refusal(handle), stream=True, use_beam_search=True
        )
    with contextlib.suppress(PdctlError):
        await asker.one_token(prefill, prompt, None)


class _Asker:
    def __init__(
        self, session: aiohttp.ClientSession, model: str, key: str | None, timeout: float
    ) -> None:
        self.session, self.key = session, key
        self._model, self._timeout = model, timeout
        self.asked: Counter[str] = Counter()
        """Requests by URL."""

    async def first_leg(self, prefill: str, prompt: Sequence[int]) -> dict[str, Any] | None:
        """What decode needs to pull prefill's blocks; None when prefill offers none."""
        moved = await self.one_token(prefill, prompt, FIRST_TURN)
        return moved if moved and moved.get("remote_block_ids") else None

    async def one_token(
        self, url: str, prompt: Sequence[int], kv: Mapping[str, Any] | None, **more: object
    ) -> dict[str, Any] | None:
        return _handle_in(await self._ask(url, prompt, kv, more))

    async def one_streamed_token(
        self, url: str, prompt: Sequence[int], kv: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        answer = await self._ask(url, prompt, kv, {"stream": True})
        found = (_handle_in(data_of(event) or b"") for event in SseSplitter().feed(answer))
        return next(filter(None, found), None)

    async def _ask(
        self,
        url: str,
        prompt: Sequence[int],
        kv: Mapping[str, Any] | None,
        more: Mapping[str, object],
    ) -> bytes:
        self.asked[url] += 1
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": list(prompt),
            "max_tokens": 1,
            "temperature": 0,
            **more,
        }
        if kv is not None:
            body["kv_transfer_params"] = dict(kv)
        return await ask(
            self.session,
            url + "/v1/completions",
            method="POST",
            body=body,
            key=self.key,
            timeout=self._timeout,
        )


def _handle_in(answer: bytes) -> dict[str, Any] | None:
    try:
        params = json.loads(answer)["kv_transfer_params"]
    except (ValueError, TypeError, KeyError):
        return None
    return params if isinstance(params, dict) else None
