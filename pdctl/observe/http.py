"""Small questions to engines and router over HTTP, each with a limit and a plain error."""

import asyncio
import json
import os
from collections.abc import Mapping
from typing import Any

import aiohttp

from pdctl.base.errors import UnreachableError


class HttpStatusError(UnreachableError):
    """A server answered with an HTTP error; `status` is its number."""

    def __init__(self, status: int, where: str, text: str = "") -> None:
        detail = [text] if text else []
        super().__init__(f"HTTP {status} from {where}", where=where, detail=detail)
        self.status = status


async def ask(
    session: aiohttp.ClientSession,
    where: str,
    *,
    method: str = "GET",
    body: Mapping[str, Any] | None = None,
    key: str | None = None,
    timeout: float = 10.0,
) -> bytes:
    """One request, the whole answer.

    Args:
        where: the whole URL.
        body: sent as JSON.
        key: for `Authorization: Bearer`.
        timeout: seconds, for everything.

    Raises:
        HttpStatusError: any status but 2xx.
        UnreachableError: no connection, or no answer in time.
    """
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        async with (
            asyncio.timeout(timeout),
            session.request(method, where, json=body, headers=headers) as response,
        ):
            answer = await response.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        reason = _reason(error) or f"nothing within {timeout:g} s"
        raise UnreachableError(f"no answer from {where}: {reason}", where=where) from error
    if not 200 <= response.status < 300:
        text = answer[:500].decode("utf-8", "replace").strip()
        raise HttpStatusError(response.status, where, text)
    return answer


async def require_answer(where: str) -> None:
    """Return if a server answers at all: how well is for whoever asks it more.

    Raises:
        UnreachableError: no connection, or no answer in time.
    """
    async with aiohttp.ClientSession() as session:
        try:
            await ask(session, where)
        except HttpStatusError:
            return


def _reason(error: Exception) -> str:
    """Why there was no connection, without aiohttp's way to write an address."""
    number = error.errno if isinstance(error, aiohttp.ClientConnectorError) else None
    # Those of names (gaierror) are below zero, and are told well enough by their text.
    return os.strerror(number).lower() if number and number > 0 else str(error)


async def ask_json(
    session: aiohttp.ClientSession,
    where: str,
    *,
    method: str = "GET",
    body: Mapping[str, Any] | None = None,
    key: str | None = None,
    timeout: float = 10.0,
) -> dict[str, Any]:
    """`ask`, with the answer as a JSON object; anything else gives `{}`.

    Raises:
        HttpStatusError, UnreachableError: as `ask`.
    """
    answer = await ask(session, where, method=method, body=body, key=key, timeout=timeout)
    try:
        value = json.loads(answer)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
