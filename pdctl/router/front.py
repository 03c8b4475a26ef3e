"""How HTTP itself is spoken to clients: bad requests get JSON, and browsers get in.

aiohttp answers what it cannot read in plain text, before any handler of ours; clients of an OpenAI
API expect JSON there too.
"""

import asyncio
import socket
import uuid
from collections.abc import Iterable
from contextlib import suppress

from aiohttp import hdrs, web
from aiohttp.http_exceptions import LineTooLong

from pdctl.base.explain import REQUEST_ID_HEADER, TURN_HEADER
from pdctl.router import legs

# Linux only.
_UNREAD_LIMIT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)
_BROWSER_METHODS = "GET, POST, OPTIONS"
_PREFLIGHT_S = 600


class Runner(web.AppRunner):
    """An `AppRunner` whose errors are JSON."""

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        # aiohttp has no other way to say which protocol a server speaks.
        server.__class__ = _Server
        return server


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        return _Protocol(self, loop=self._loop, **self._kwargs)


class _Protocol(web.RequestHandler):
    __slots__ = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected. Who does not read for as long as it may be idle is cut off.

        Nobody else would: what is closed stays open until the client has what is left for it.
        """
        super().connection_made(transport)
        if _UNREAD_LIMIT is not None:
            connection = transport.get_extra_info("socket")
            limit_ms = int(self._keepalive_timeout * 1000)
            with suppress(OSError):  # it may be gone already
                connection.setsockopt(socket.IPPROTO_TCP, _UNREAD_LIMIT, limit_ms)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """aiohttp's own answer, put into words of ours; it logs, and closes the connection."""
        response = super().handle_error(request, status, exc, message)
        if isinstance(response, web.Response):
            code, said = _said(response.status, exc)
            response.set_status(code)
            response.body = legs.error_body(said, "invalid_request", code, uuid.uuid4().hex)
            response.content_type = "application/json"
        return response


def error_answer(status: int, message: str, kind: str) -> web.Response:
    """An error of the router's own, of a request that has no id yet."""
    return web.Response(
        status=status,
        body=legs.error_body(message, kind, status, uuid.uuid4().hex),
        content_type="application/json",
    )


async def deliver(request: web.Request, response: web.StreamResponse) -> None:
    """Write an answer that is not streamed, so that its request runs until the client has it.

    Raises:
        ConnectionError: the client is gone, or does not read.
    """
    if isinstance(response, web.Response):
        await response.prepare(request)
        await response.write_eof()


def _said(status: int, error: BaseException | None) -> tuple[int, str]:
    if isinstance(error, LineTooLong):
        return 431, "The request line or a header is larger than the router allows"
    if status >= 500:
        return status, "The router has a bug; its log says more"
    return status, "The request is not valid HTTP"


def let_browsers_in(app: web.Application, paths: Iterable[str]) -> None:
    """Pages of any origin may call these paths, as they may call vLLM's own server.

    No cookies are involved: a page needs the API key that any other client needs. Nothing else
    of the router's can be called by pages.
    """
    routes = [app.router.add_options(path, _preflight) for path in paths]
    open_paths = {route.resource.canonical for route in routes if route.resource is not None}

    async def mark(request: web.Request, response: web.StreamResponse) -> None:
        resource = request.match_info.route.resource
        path = resource.canonical if resource is not None else ""
        if hdrs.ORIGIN in request.headers and path in open_paths:
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = "*"
            response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = (
                f"{REQUEST_ID_HEADER}, {TURN_HEADER}"
            )

    app.on_response_prepare.append(mark)


async def _preflight(request: web.Request) -> web.Response:
    headers = {
        hdrs.ACCESS_CONTROL_ALLOW_METHODS: _BROWSER_METHODS,
        # "*" would not cover Authorization.
        hdrs.ACCESS_CONTROL_ALLOW_HEADERS: request.headers.get(
            hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "*"
        ),
        hdrs.ACCESS_CONTROL_MAX_AGE: str(_PREFLIGHT_S),
    }
    return web.Response(status=204, headers=headers)
