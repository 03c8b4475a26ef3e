"""Drives a router with streamed chats of four growing turns, and says how it did as JSON.

usage: python load.py URL CLIENTS TURNS KILOBYTES
The first message of each conversation is random words of so many kilobytes; each answer is
carried back as the client saw it. Talks HTTP by itself: a client library would cost more than
the routers do.
"""

import asyncio
import itertools
import random
import secrets
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import orjson

TURNS = 4
_HEAD = (
    "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
    "Content-Length: %d\r\n\r\n"
)
_STILL_S = 60.0


class Stream(asyncio.Protocol):
    """One connection that asks one question after another."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._done: asyncio.Future[bytes] | None = None
        self.first: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError("the router hung up"))

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self.first is None and b'"content":"t' in self._received:
            self.first = time.perf_counter()
        if self._done is not None and not self._done.done() and self._whole():
            self._done.set_result(bytes(self._received))

    def _whole(self) -> bool:
        if self._received.endswith(b"0\r\n\r\n"):
            return True
        # Only errors have a length.
        head, found, body = self._received.partition(b"\r\n\r\n")
        lengths = [part for part in head.lower().split(b"\r\n") if b"content-length:" in part]
        return bool(found and lengths) and len(body) >= int(lengths[0].split(b":")[1])

    async def ask(self, request: bytes) -> bytes:
        """The whole answer as it came. `first` is when the first word was there."""
        assert self._transport is not None
        self._received.clear()
        self.first = None
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        async with asyncio.timeout(_STILL_S):
            return await self._done


@dataclass
class Seen:
    """Seconds to the first word and to the end, of turns that were answered; errors else."""

    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    errors: int = 0


def content_of(answer: bytes) -> str | None:
    """What the assistant said; None when the answer is none."""
    if not answer.startswith(b"HTTP/1.1 200"):
        return None
    lines = [line for line in answer.split(b"\n") if line.startswith(b"data: {")]
    chunks = [orjson.loads(line[6:]) for line in lines]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk.get("choices", [])]
    return "".join(delta.get("content") or "" for delta in deltas) if deltas else None


async def turn(
    stream: Stream, host: str, name: str, messages: list[dict[str, str]], seen: Seen
) -> str:
    """Ask once; what the assistant said."""
    body = orjson.dumps(
        {
            "model": "m",
            "messages": messages,
            "stream": True,
            "max_tokens": 64,
            "conversation_id": name,
        }
    )
    request = (_HEAD % (host, len(body))).encode() + body
    began = time.perf_counter()
    answer = await stream.ask(request)
    content = content_of(answer)
    if content is None or stream.first is None:
        seen.errors += 1
        return ""
    seen.first.append(stream.first - began)
    seen.whole.append(time.perf_counter() - began)
    return content


async def client(number: int, url: str, turns: int, kilobytes: int, seen: Seen) -> None:
    """One client: conversation after conversation on one connection."""
    host = urlsplit(url)
    _, stream = await asyncio.get_running_loop().create_connection(Stream, host.hostname, host.port)
    name = f"{secrets.token_hex(4)}-{number}"
    chance = random.Random(name)
    for conversation in itertools.count():
        # Seven letters and a space are a word.
        words = [f"{chance.getrandbits(28):07x}" for _ in range(kilobytes * 1024 // 8)]
        messages = [{"role": "user", "content": " ".join(words)}]
        for place in range(TURNS):
            if conversation * TURNS + place >= turns:
                return
            said = await turn(stream, host.netloc, f"{name}-{conversation}", messages, seen)
            messages += [
                {"role": "assistant", "content": said},
                {"role": "user", "content": f"and then {place}"},
            ]


async def main(url: str, clients: int, turns: int, kilobytes: int) -> None:
    seen = Seen()
    each = -(-turns // clients)
    began = time.perf_counter()
    await asyncio.gather(*(client(number, url, each, kilobytes, seen) for number in range(clients)))
    took = time.perf_counter() - began
    result = {
        "turns": each * clients,
        "errors": seen.errors,
        "per_second": len(seen.first) / took,
        "ttft_ms": 1000 * statistics.median(seen.first) if seen.first else None,
        "whole_ms": 1000 * statistics.median(seen.whole) if seen.whole else None,
    }
    print(orjson.dumps(result).decode())


if __name__ == "__main__":
    try:
        from uvloop import run
    except ImportError:
        from asyncio import run
    run(main(sys.argv[1], *(int(value) for value in sys.argv[2:5])))
