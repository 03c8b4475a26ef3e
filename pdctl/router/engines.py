"""What is asked of the engines: JSON out and in, every wait with a limit."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from pdctl.config.model import RouterLimits
from pdctl.router.actions import Answer, Failure, Kind
from pdctl.router.ids import dumps, loads
from pdctl.router.wire import Client, Exchange, Response

_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Raw:
    """An engine's answer as it came."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str]


class Engines:
    """Calls engines by URL. One a router process; `close` gives the connections back.

    Attributes:
        key: the key that the engines want.
    """

    def __init__(self, limits: RouterLimits, engine_key: str | None = None) -> None:
        self._limits = limits
        self.key = engine_key
        self._client = Client(connect=limits.connect)
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        """For the probes that `pdctl verify` shares; made on first use, in the running loop."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._limits.connect),
            )
        return self._session

    def headers(self, client: Mapping[str, str]) -> dict[str, str]:
        """Headers for an engine: the client's own that matter, or the engine's key for its own."""
        headers = dict(client)
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        return headers

    async def close(self) -> None:
        """Close all connections."""
        self._client.close()
        if self._session is not None:
            await self._session.close()

    async def post_json(
        self,
        url: str,
        body: Mapping[str, Any],
        *,
        limit: float,
        headers: Mapping[str, str],
        ids: str = "",
        meanwhile: Callable[[], object] | None = None,
    ) -> Answer | Failure:
        """POST a JSON object and read the whole answer within `limit` seconds.

        Args:
            ids: the name of a list in the answer that is left as it is, as `Ids`.
            meanwhile: done while the engine works.
        """
        call = self.call(url, body, headers=headers, ids=ids)
        try:
            return await call.answer(limit, meanwhile)
        finally:
            call.drop()

    def call(
        self, url: str, body: Mapping[str, Any], *, headers: Mapping[str, str], ids: str = ""
    ) -> "Call":
        """The same as a `Call`, which goes on when who waits for it leaves."""
        return Call(self._client, url, body, self.of_json(headers), ids)

    def of_json(self, client: Mapping[str, str]) -> dict[str, str]:
        """Headers of a JSON body for an engine."""
        return {**_JSON, **self.headers(client)}

    async def request(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Raw:
        """One whole exchange. The caller sets the limit.

        Raises:
            OSError: when the engine cannot be reached or breaks off.
        """
        sent = self.of_json(headers) if body is not None else self.headers(headers)
        response = await self.send(method, url, body, sent)
        try:
            whole = await response.read()
        finally:
            response.close()
        content_type = response.headers.get("content-type", "application/json")
        return Raw(response.status, content_type, whole, response.headers)

    async def send(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Response:
        """Start a request as it is; the answer when its head is there. The caller sets the limit.

        Raises:
            OSError: when the engine cannot be reached or does not answer.
        """
        return await self._client.send(method, url, body, headers)

    async def begin(
        self, url: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> Exchange:
        """POST a JSON object. This waits only where a connection has to be made first.

        Raises:
            OSError: when the engine cannot be reached.
        """
        return await self._client.begin("POST", url, dumps(body), self.of_json(headers))

    async def get(self, url: str, *, limit: float) -> Raw | Failure:
        """GET within `limit` seconds."""
        try:
            async with asyncio.timeout(limit):
                return await self.request("GET", url, None, {})
        except TimeoutError:
            return Failure(0, "timeout", url=url)
        except OSError:
            return Failure(0, "unreachable", url=url)


class Call:
    """One JSON exchange. Who leaves in the middle of it may come back, and it has gone on."""

    def __init__(
        self,
        client: Client,
        url: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        ids: str,
    ) -> None:
        self._client = client
        self._url = url
        self._body = body
        self._headers = headers
        self._ids = ids
        self._exchange: Exchange | None = None
        self._began = time.monotonic()

    @property
    def sent(self) -> bool:
        """The engine may have it."""
        return self._exchange is not None

    async def answer(
        self, limit: float, meanwhile: Callable[[], object] | None = None
    ) -> Answer | Failure:
        """Send it, unless that was done, and read the whole answer within `limit` seconds."""
        try:
            async with asyncio.timeout(limit):
                if self._exchange is None:
                    self._exchange = await self._client.begin(
                        "POST", self._url, dumps(self._body), self._headers
                    )
                if meanwhile is not None:
                    meanwhile()
                response = await self._exchange.head()
                body = await response.read()
        except OSError as error:
            silent = self.sent and isinstance(error, TimeoutError)
            kind: Kind = "timeout" if silent else "unreachable"
            return Failure(0, kind, url=self._url, unsent=not self.sent)
        return self._judged(response, body)

    def drop(self) -> None:
        """End it, if it is not over."""
        if self._exchange is not None:
            self._exchange.drop()

    def _judged(self, response: Response, body: bytes) -> Answer | Failure:
        status = response.status
        if status == 200:
            with suppress(orjson.JSONDecodeError):
                value = loads(body, self._ids) if self._ids else orjson.loads(body)
                if isinstance(value, dict):
                    return Answer(value, time.monotonic() - self._began)
            status = 502
        content_type = response.headers.get("content-type", "application/json")
        return Failure(status, "status", body, content_type, self._url)
