"""What is asked of the engines: JSON out and in, every wait with a limit."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from pdctl.config.model import RouterLimits
from pdctl.router.actions import Answer, Failure
from pdctl.router.ids import dumps, loads
from pdctl.router.wire import Client, Response

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
    ) -> Answer | Failure:
        """POST a JSON object and read the whole answer within `limit` seconds.

        Args:
            ids: the name of a list in the answer that is left as it is, as `Ids`.
        """
        began = time.monotonic()
        try:
            async with asyncio.timeout(limit):
                raw = await self.request("POST", url, dumps(body), headers)
        except TimeoutError:
            return Failure(0, "timeout", url=url)
        except OSError:
            return Failure(0, "unreachable", url=url)
        if raw.status != 200:
            return Failure(raw.status, "status", raw.body, raw.content_type, url)
        try:
            value = loads(raw.body, ids) if ids else orjson.loads(raw.body)
        except orjson.JSONDecodeError:
            return Failure(502, "status", raw.body, raw.content_type, url)
        if not isinstance(value, dict):
            return Failure(502, "status", raw.body, raw.content_type, url)
        return Answer(value, time.monotonic() - began)

    async def request(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Raw:
        """One whole exchange. The caller sets the limit.

        Raises:
            OSError: when the engine cannot be reached or breaks off.
        """
        sent = {**_JSON, **self.headers(headers)} if body is not None else self.headers(headers)
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

    async def open(self, url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
        """POST a JSON object; the answer when its head is there.

        Raises:
            OSError: when the engine cannot be reached or does not answer.
        """
        sent = {**_JSON, **self.headers(headers)}
        return await self.send("POST", url, dumps(body), sent)

    async def get(self, url: str, *, limit: float) -> Raw | Failure:
        """GET within `limit` seconds."""
        try:
            async with asyncio.timeout(limit):
                return await self.request("GET", url, None, {})
        except TimeoutError:
            return Failure(0, "timeout", url=url)
        except OSError:
            return Failure(0, "unreachable", url=url)
