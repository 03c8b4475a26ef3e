"""Performs what the core asks for: the bridge between one generator and the network."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, assert_never

import orjson
from aiohttp import web

from pdctl.base.explain import REQUEST_ID_HEADER, TURN_HEADER, TurnExplanation
from pdctl.base.transfer import is_handle
from pdctl.base.words import one_line
from pdctl.router import legs
from pdctl.router.actions import (
    Action,
    Alarm,
    Answer,
    Audit,
    Failure,
    Find,
    Finish,
    Keep,
    Know,
    MakeRoom,
    OpenDecode,
    Opened,
    Prefill,
    Relay,
    Relayed,
    Release,
    Render,
    Reply,
    Report,
    Settle,
    Take,
)
from pdctl.router.core import Turn, release_of
from pdctl.router.engines import Call
from pdctl.router.fleet import Engine
from pdctl.router.giving import Shared, let_go, make_room, note_start, release
from pdctl.router.handle import Handle
from pdctl.router.ids import Ids
from pdctl.router.opening import Opening
from pdctl.router.relay import StreamRelay
from pdctl.router.wire import Response

log = logging.getLogger("pdctl.router")

Explain = Callable[[Report], TurnExplanation]
"""What a client is told of its turn."""

# A leg whose client left is ended after its first event, or after this long.
_ABANDON_S = 30.0
# A decode leg that does not stream shows no first event; pulling takes far less than this.
_PULL_GRACE_S = 2.0
_SAID = {
    "timeout": "did not answer in time",
    "unreachable": "cannot be reached",
    "status": "gave no valid answer",
    "stream_error": "gave no valid answer",
}


class Driver:
    """Runs one turn to its end for one client."""

    def __init__(
        self,
        shared: Shared,
        request: web.Request,
        request_id: str,
        headers: dict[str, str],
        *,
        explain: Explain | None,
    ) -> None:
        self._shared = shared
        self._request = request
        self._request_id = request_id
        self._headers = headers
        self._explain = explain
        self._path = request.path
        self._arrived = time.monotonic()
        self._opening: Opening | None = None
        self._charged: tuple[Engine, int] | None = None
        self._needed: Engine | None = None
        self._claimed: Handle | None = None
        self._stream: StreamRelay | None = None
        self._whole: web.Response | None = None
        self._ttft_s: float | None = None

    @property
    def response(self) -> web.StreamResponse | None:
        """What the client is being sent, or is to be sent; None before that is known."""
        return self._whole if self._stream is None else self._stream.response

    @property
    def ttft_s(self) -> float | None:
        """Seconds from the request to the first word of its answer; None before it."""
        return self._ttft_s if self._stream is None else self._stream.ttft_s

    async def run(self, turn: Turn) -> Report:
        """Perform the turn's actions until it ends.

        Raises:
            asyncio.CancelledError: when the client left; what must not be cut off goes on in
                the background.
        """
        try:
            return await self._run(turn)
        finally:
            self._charge(None, 0)
            self._need(None)
            if self._opening is not None:
                self._opening.close()

    def told(self, report: Report) -> None:
        """The turn has ended and was this; for a driver that traces it."""

    async def out_of_time(self) -> web.StreamResponse | None:
        """End an answer that took too long; None when none has begun."""
        if self._stream is None or self._stream.response is None:
            return None
        await self._stream.end_late()
        return self._stream.response

    async def _run(self, turn: Turn) -> Report:
        action = next(turn)
        while True:
            gone = False
            try:
                result = await self._perform(action)
            except (asyncio.CancelledError, ConnectionError) as error:
                result = self._after_leaving(action)
                if result is None:
                    turn.close()
                    if isinstance(action, MakeRoom):
                        self._let_claimed_go()
                    raise asyncio.CancelledError from error
                gone = True
            try:
                action = turn.send(result)
                if isinstance(result, Relayed) and not isinstance(action, Finish):
                    # Decode ended and its handle is known: it is kept, client or no client.
                    rest = self._shared.background.run(self._rest(turn, action))
                    action = await asyncio.shield(rest)
                if gone:
                    raise asyncio.CancelledError
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    def _after_leaving(self, action: Action) -> Relayed | None:
        """What the core still has to hear when the client left during `action`."""
        return self._stream.left() if isinstance(action, Relay) and self._stream else None

    async def _rest(self, turn: Turn, action: Action) -> Action:
        """Perform what follows an answer, up to its end, which may be sent then."""
        while not isinstance(action, Finish):
            action = turn.send(await self._perform(action))
        return action

    async def _perform(self, action: Action) -> Any:  # noqa: C901 - one line a kind of action
        shared = self._shared
        match action:
            case Know():
                return await shared.store.knows(action.scope, action.conversation)
            case Find():
                return await shared.store.find(action.scope, action.prompt, action.conversation)
            case Render():
                return await self._render(action)
            case Take():
                self._claimed = await shared.store.take(action.handle_id)
                return self._claimed
            case Settle():
                return self._settle(action)
            case MakeRoom():
                self._charge(action.decode, action.tokens)
                return await make_room(shared, action.decode)
            case Prefill():
                return await self._prefill(action)
            case Audit():
                return shared.auditor.begin(action)
            case OpenDecode():
                return await self._open_decode(action)
            case Relay():
                return await self._relay(action)
            case Finish():
                return await self._finish()
            case Reply():
                return self._reply(action.failure)
            case Keep():
                self._claimed = None
                return await asyncio.shield(shared.background.run(self._keep(action)))
            case Release():
                return self._release(action)
            case Alarm():
                shared.metrics.alarms.labels(action.kind).inc()
                return log.error("ALARM %s: %s", action.kind, one_line(action.text))
            case _:
                assert_never(action)

    # The legs.

    async def _render(self, action: Render) -> Ids | None:
        name = "tokens" if action.path == "/tokenize" else "token_ids"
        answer = await self._shared.engines.post_json(
            f"{action.url}{action.path}",
            action.body,
            limit=self._shared.limits.tokenize,
            headers=self._headers,
            ids=name,
            meanwhile=action.meanwhile,
        )
        return None if isinstance(answer, Failure) else Ids.of(answer.json.get(name))

    async def _prefill(self, action: Prefill) -> Answer | Failure:
        engine = self._shared.fleet.prefill[action.url]
        engine.outstanding += action.uncached
        engine.turns += 1
        self._need(engine)
        call = self._shared.engines.call(
            f"{action.url}{action.path}", action.body, headers=self._headers, ids="prompt_token_ids"
        )
        over = False
        try:
            result = await call.answer(action.limit)
            over = not (isinstance(result, Failure) and result.kind == "timeout")
        except asyncio.CancelledError:
            if action.carries_handle and not call.sent:
                self._let_claimed_go()
            raise
        finally:
            if action.carries_handle and call.sent and not over:
                self._shared.background.run(_see_out(call, engine, action))
            else:
                call.drop()
                engine.outstanding -= action.uncached
                engine.turns -= 1
        self._tell_prefill(action.url, result)
        return result

    def _tell_prefill(self, url: str, result: Answer | Failure) -> None:
        if isinstance(result, Answer):
            log.debug("[%s] prefill took %.0f ms", self._request_id, result.seconds * 1000)
            return
        kind, status = result.kind, result.status or ""
        log.warning("[%s] prefill %s failed: %s %s", self._request_id, url, kind, status)

    async def _open_decode(self, action: OpenDecode) -> Opened | Failure:
        limits = self._shared.limits
        streams = legs.is_true(action.body.get("stream"))
        self._charge(action.url, action.tokens)
        opening = Opening(action.url)
        try:
            async with asyncio.timeout(limits.first_byte if streams else limits.total):
                result = await opening.send(
                    self._shared.engines, self._path, action.body, self._decode_headers(action)
                )
        except TimeoutError:
            self._shared.background.run(self._abandon(opening, 0, action))
            return Failure(0, "timeout", url=action.url)
        except asyncio.CancelledError:
            # Decode may be in the middle of pulling blocks: let it get them, then abort.
            grace = _ABANDON_S if streams else _PULL_GRACE_S
            self._shared.background.run(self._abandon(opening, grace, action))
            raise
        self._need(None)
        self._opening = opening
        return result

    async def _abandon(self, opening: Opening, grace: float, action: OpenDecode) -> None:
        if not opening.sent:
            return
        kv = await opening.see_out(grace)
        if isinstance(kv, dict) and is_handle(kv):
            # Decode finished all the same, and keeps blocks for somebody who is gone.
            prefill = self._shared.fleet.choose_prefill(decode=action.url) or ""
            model = str(action.body.get("model") or "")
            gone = Release(prefill, action.url, model, kv, "client_left")
            await release(self._shared, gone, self._headers)

    def _charge(self, decode: str | None, tokens: int) -> None:
        """Count this request's tokens on the decode server that has it now, and on no other."""
        if self._charged is not None:
            engine, counted = self._charged
            engine.outstanding -= counted
            engine.turns -= 1
        self._charged = None
        if decode is not None:
            engine = self._shared.fleet.decode[decode]
            engine.outstanding += tokens
            engine.turns += 1
            self._charged = (engine, tokens)

    def _need(self, prefill: Engine | None) -> None:
        """Prefill keeps what it made until decode has begun to answer, which has it by then."""
        if self._needed is not None:
            self._needed.turns -= 1
        self._needed = prefill
        if prefill is not None:
            prefill.turns += 1

    def _decode_headers(self, action: OpenDecode) -> dict[str, str]:
        if action.rank is None:
            return self._headers
        return {**self._headers, "X-data-parallel-rank": str(action.rank)}

    # Decode to client.

    async def _relay(self, action: Relay) -> Relayed:
        opening = self._opening
        assert opening is not None
        upstream = opening.upstream
        assert upstream is not None
        headers = self._response_headers(action.report, upstream)
        if opening.answer is not None:
            harvest = legs.clean_answer(opening.answer, action.wants, action.cached_tokens)
            self._whole = web.Response(
                body=orjson.dumps(opening.answer), headers=headers, content_type="application/json"
            )
            self._ttft_s = time.monotonic() - self._arrived
            return Relayed(harvest)
        headers["Content-Type"] = upstream.headers.get("content-type", "text/event-stream")
        self._stream = StreamRelay(
            self._request,
            self._request_id,
            upstream,
            legs.StreamCleaner(
                action.wants,
                action.cached_tokens,
                hold_end=action.hold_end,
                splitter=opening.splitter,
            ),
            idle=self._shared.limits.idle,
            arrived=self._arrived,
        )
        return await self._stream.run(headers, opening.first_events)

    async def _finish(self) -> None:
        if self._stream is not None:
            await self._stream.end()

    def _reply(self, failure: Failure) -> None:
        headers = {REQUEST_ID_HEADER: self._request_id}
        if failure.body and failure.status >= 400:
            headers["Content-Type"] = failure.content_type
            body = failure.body
        else:
            headers["Content-Type"] = "application/json"
            said = _SAID[failure.kind]
            body = legs.error_body(
                f"The decode engine {said}", "engine_unavailable", failure.client_status,
                self._request_id,
            )  # fmt: skip
        self._whole = web.Response(status=failure.client_status, body=body, headers=headers)

    def _response_headers(self, report: Report, upstream: Response) -> dict[str, str]:
        headers = {REQUEST_ID_HEADER: self._request_id}
        if name := upstream.headers.get("x-request-id"):
            headers["X-Request-Id"] = name
        if self._explain:
            headers[TURN_HEADER] = self._explain(report).to_header()
        return headers

    # Handles.

    def _let_claimed_go(self) -> None:
        """Release a handle that nobody was sent, and that nobody else can get any more."""
        if self._claimed is not None:
            let_go(self._shared, self._claimed, "client_left")

    def _settle(self, action: Settle) -> None:
        level = logging.DEBUG if action.outcome == "consumed" else logging.WARNING
        log.log(
            level,
            "[%s] handle %s %s (%s)",
            self._request_id,
            action.handle.request_id,
            action.outcome,
            action.reason,
        )

    async def _keep(self, action: Keep) -> None:
        shared, handle = self._shared, action.handle
        if not await note_start(shared, handle, fresh=action.fresh):
            return
        for gone in await shared.store.put(handle):
            self._release(release_of(shared.fleet, gone, "evicted"))
        if action.fresh:
            shared.leases.add(handle, time.monotonic(), self._active(action.calls_tool))
        log.debug(
            "conv=%s: cached D blocks (remote_request_id=%s, blocks=%d, tokens=%d)",
            one_line(handle.conversation.key),
            handle.request_id,
            handle.blocks,
            handle.held.certain,
        )
        await make_room(shared, handle.decode)

    def _release(self, action: Release) -> None:
        self._shared.background.run(release(self._shared, action, self._headers))

    def _active(self, calls_tool: bool) -> Callable[[], bool]:
        """Tells whether the client will be back: it has to, or it is still connected."""
        transport = self._request.transport
        if calls_tool or transport is None:
            return lambda: calls_tool
        return lambda: not transport.is_closing()


def explanation(report: Report) -> TurnExplanation:
    """What a client that asked is told."""
    return TurnExplanation(
        outcome=report.outcome,
        reason=report.reason,
        reused_tokens=report.reused_tokens,
        prompt_tokens=report.prompt_tokens,
        prefill=report.prefill,
        decode=report.decode,
        attached_tokens=report.attached_tokens,
        retries=tuple(report.retries),
    )


def without_engines(report: Report) -> TurnExplanation:
    """The same for one that shall not know the engines' addresses."""
    return replace(explanation(report), prefill="", decode="")


async def _see_out(call: Call, engine: Engine, action: Prefill) -> None:
    """A leg with a handle outlives its limit rather than being aborted; it ends at last."""
    try:
        await call.see_out(action.limit + _ABANDON_S)
    finally:
        engine.outstanding -= action.uncached
        engine.turns -= 1
