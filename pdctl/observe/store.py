"""Whether the store that routers share answers; asked without any library for it."""

import asyncio
import ssl
from urllib.parse import unquote, urlsplit

from pdctl.base.redact import redacted
from pdctl.base.runfacts import StoreFacts


async def ask_store(url: str, timeout: float) -> StoreFacts:
    """Say PING to a Redis or Valkey; never raises for one that does not answer."""
    shown = redacted(url)
    try:
        async with asyncio.timeout(timeout):
            said = await _ping(url)
    except TimeoutError:
        return StoreFacts(shown, f"no answer within {timeout:g} s")
    except (OSError, ValueError) as error:
        return StoreFacts(shown, str(error) or type(error).__name__)
    if said == "+PONG":
        return StoreFacts(shown)
    return StoreFacts(shown, f"it answers `{redacted(said)[:200]}`")


async def _ping(url: str) -> str:
    parts = urlsplit(url)
    tls = ssl.create_default_context() if parts.scheme.startswith(("rediss", "valkeys")) else None
    reader, writer = await asyncio.open_connection(
        parts.hostname or "localhost", parts.port or 6379, ssl=tls
    )
    try:
        if parts.password:
            user = [unquote(parts.username)] if parts.username else []
            writer.write(_words("AUTH", *user, unquote(parts.password)))
            answer = (await reader.readline()).decode("utf-8", "replace").strip()
            if not answer.startswith("+"):
                return answer
        writer.write(_words("PING"))
        await writer.drain()
        return (await reader.readline()).decode("utf-8", "replace").strip()
    finally:
        writer.close()


def _words(*words: str) -> bytes:
    """A command as the protocol frames it."""
    parts = [f"*{len(words)}\r\n".encode()]
    for word in words:
        data = word.encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)
