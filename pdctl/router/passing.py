"""What goes to decode as it is, and comes back as it is: no prefill leg, no reuse."""

import asyncio
import uuid
from collections.abc import Awaitable, Mapping
from contextlib import closing

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from pdctl.base.sse import event_of
from pdctl.router import legs
from pdctl.router.front import error_answer
from pdctl.router.giving import Shared
from pdctl.router.relay import TOO_LONG
from pdctl.router.wire import Response

PASSED = (
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name:.*}"),
    ("GET", "/version"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/score"),
    ("POST", "/v1/rerank"),
)
"""Engine paths of which pdctl makes nothing of its own."""
_TO_ENGINE = ("authorization", "accept", "x-request-id", "traceparent", "tracestate", "user-agent")
_TO_CLIENT = ("content-type", "x-request-id", "retry-after", "cache-control")


async def body_of(shared: Shared, request: web.Request) -> bytes:
    """A request's body, if it is all there in time.

    Raises:
        HTTPRequestTimeout: it is not.
        HTTPBadRequest: it is broken.
    """
    try:
        if request.content.is_eof():  # it came with its head
            return await request.read()
        async with shared.patience.limit(shared.limits.idle):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(reason="The body did not come in time") from None
    except (HttpProcessingError, web.RequestPayloadError):
        raise web.HTTPBadRequest(reason="The body cannot be read") from None


def engine_headers(headers: Mapping[str, str], *, own_keys: bool) -> dict[str, str]:
    """What of a client's headers an engine may see.

    Args:
        own_keys: clients show keys that are meant for the router.
    """
    names = [name for name in _TO_ENGINE if name in headers]
    if own_keys:
        names = [name for name in names if name != "authorization"]
    return {name: header_text(headers[name]) for name in names}


def header_text(value: str | None) -> str:
    """A header's value; bytes that are no UTF-8 come as lone surrogates, which nothing can send."""
    return (value or "").encode("utf-8", "backslashreplace").decode()


async def pass_on(
    shared: Shared, request: web.Request, raw: bytes, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Pass a request to decode and its answer back, streaming.

    Args:
        raw: the request's body.
        headers: of `engine_headers`.
    """
    decode = shared.fleet.choose_decode()
    if decode is None:
        return error_answer(503, "No decode engine is healthy", "engine_unavailable")
    try:
        raw, dropped = legs.without_handles(raw)
    except RecursionError:
        return error_answer(400, "The body is nested too deeply", "invalid_request")
    shared.metrics.count_dropped(dropped)
    sent = shared.engines.headers(headers)
    if content_type := request.headers.get("Content-Type"):
        sent["Content-Type"] = content_type
    # Not normalised, else `..` would lead to paths that are not listed.
    url = f"{decode}{request.rel_url.raw_path_qs}"
    engine = shared.fleet.decode[decode]
    engine.turns += 1
    try:
        return await _through(shared, request, url, raw, sent)
    finally:
        engine.turns -= 1


async def _through(
    shared: Shared, request: web.Request, url: str, raw: bytes, sent: dict[str, str]
) -> web.StreamResponse:
    limits = shared.limits
    try:
        limit = limits.first_byte if request.method == "GET" else limits.total
        async with shared.patience.limit(limit):
            body = raw if request.method == "POST" else None
            upstream = await shared.engines.send(request.method, url, body, sent)
            if upstream.content_type != "text/event-stream":
                with closing(upstream):
                    return web.Response(
                        status=upstream.status,
                        body=await upstream.read(),
                        headers=_client_headers(upstream),
                    )
    except TimeoutError:
        return error_answer(504, "The decode engine did not answer in time", "timeout")
    except OSError:
        return error_answer(502, "The decode engine cannot be reached", "engine_unavailable")
    with closing(upstream):
        return await _copy_stream(shared, request, upstream)


async def _copy_stream(
    shared: Shared, request: web.Request, upstream: Response
) -> web.StreamResponse:
    limits = shared.limits
    response = web.StreamResponse(status=upstream.status, headers=_client_headers(upstream))
    await response.prepare(request)
    try:
        async with shared.patience.limit(limits.total):
            last = await _copy(upstream, response, limits.idle)
    except TimeoutError:
        last = _error_event(TOO_LONG, "timeout", 504)
    await _in_time(response.write_eof(last), limits.idle)
    return response


async def _copy(upstream: Response, response: web.StreamResponse, idle: float) -> bytes:
    """Copy until decode ends. Returns what the client has to be told then."""
    while True:
        try:
            async with asyncio.timeout(idle):
                chunk = await upstream.read_some()
        except OSError:
            text = "The decode engine broke off before the answer was complete"
            return _error_event(text, "decode_interrupted", 502)
        if not chunk:
            return b""
        await _in_time(response.write(chunk), idle)


async def _in_time(writing: Awaitable[None], idle: float) -> None:
    try:
        async with asyncio.timeout(idle):
            await writing
    except TimeoutError as error:
        raise ConnectionResetError("the client does not read") from error


def _error_event(message: str, kind: str, code: int) -> bytes:
    return event_of(legs.error_body(message, kind, code, uuid.uuid4().hex))


def _client_headers(upstream: Response) -> dict[str, str]:
    return {name: upstream.headers[name] for name in _TO_CLIENT if name in upstream.headers}
