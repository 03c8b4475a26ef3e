"""A streamed answer on its way from decode to the client: word by word, cleaned, and watched."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import cast

from aiohttp import web
from aiohttp.http import StreamWriter

from pdctl.base.sse import event_of
from pdctl.router import legs
from pdctl.router.actions import Relayed
from pdctl.router.wire import Response

log = logging.getLogger("pdctl.router")

TOO_LONG = "The answer took longer than the router allows"
_WORTH_NOTING_S = 0.001
# Less than what asyncio buffers for a connection before it makes its writer wait.
_NO_WAIT_BYTES = 2**15


class DecodeBrokeOff(Exception):  # noqa: N818 - a turn of events, not an error of ours
    """Decode ended in mid-answer; the text says how."""


class StreamRelay:
    """One answer's way to one client.

    Args:
        request: the client's.
        request_id: for what the client is told when the answer breaks off.
        upstream: decode's answer, read as far as its first word.
        cleaner: takes the router's part out of it.
        idle: seconds that decode may be silent, and that the client may not read.
        arrived: when the request came, by the monotonic clock.

    Attributes:
        blocked: seconds that a slow client made us wait.
        ttft_s: seconds from the request to the first word; None before it.
    """

    def __init__(
        self,
        request: web.Request,
        request_id: str,
        upstream: Response,
        cleaner: legs.StreamCleaner,
        *,
        idle: float,
        arrived: float,
    ) -> None:
        self._transport = request.transport
        self._request = request
        self._request_id = request_id
        self._upstream = upstream
        self._cleaner = cleaner
        self._idle = idle
        self._arrived = arrived
        self._silence = _Silence(idle, upstream)
        self._response: _Stream | None = None
        self.blocked = 0.0
        self.ttft_s: float | None = None

    @property
    def response(self) -> web.StreamResponse | None:
        """What the client is being sent; None before it has begun."""
        return self._response

    async def run(self, headers: Mapping[str, str], first_events: Sequence[bytes]) -> Relayed:
        """Send all but the end, which waits for `end`.

        Raises:
            ConnectionError: the client is gone, or does not read.
        """
        first = self._cleaner.feed_all(first_events) + self._cleaner.feed_some(b"")
        response = _Stream(status=self._upstream.status, headers=headers)
        await response.prepare(self._request)
        self._response = response
        try:
            await self._send(first)
            async for out in self._pieces():
                await self._send(out)
        except DecodeBrokeOff as broke:
            log.warning("[%s] decode %s in mid-answer", self._request_id, broke)
            said = f"The decode engine {broke} before the answer was complete"
            # Behind the end of the answer, if that is being held back.
            if out := self._cleaner.feed(self._error(said, "decode_interrupted", 502)):
                await self._write(out)
        finally:
            self._silence.end()
        return Relayed(self._cleaner.harvest, self.blocked)

    async def end(self) -> None:
        """Send what was held back, and end the answer."""
        tail = self._cleaner.tail()
        if tail and self.ttft_s is None:
            self.ttft_s = time.monotonic() - self._arrived
        await self._write(tail, last=True)

    async def end_late(self) -> None:
        """End an answer that took too long."""
        await self._write(self._error(TOO_LONG, "timeout", 504), last=True)

    def left(self) -> Relayed | None:
        """What there is to know when the client left; None when decode had not finished."""
        # The end of its answer may be here, unread.
        self._cleaner.feed_some(self._upstream.take())
        harvest = self._cleaner.harvest
        return Relayed(harvest, self.blocked) if harvest.kv else None

    def _error(self, message: str, kind: str, code: int) -> bytes:
        return event_of(legs.error_body(message, kind, code, self._request_id))

    async def _pieces(self) -> AsyncIterator[bytes]:
        """What the client gets of each piece that was not passed on as it came.

        Raises:
            DecodeBrokeOff: when decode is silent too long or closes before the end.
        """
        self._silence.watch()
        while True:
            try:
                self._silence.begin()
                chunk = await self._upstream.read_some(self._pass_on, self._pass_chunk_on)
            except TimeoutError as error:
                raise DecodeBrokeOff("stopped sending") from error
            except OSError as error:
                raise DecodeBrokeOff("closed the connection") from error
            if not chunk:
                break
            self._silence.pause()
            yield self._cleaner.feed_some(chunk)
        if self._cleaner.splitter.rest() or not self._cleaner.harvest.over:
            raise DecodeBrokeOff("closed the connection")

    # As it comes, while the client has room.

    def _pass_on(self, piece: bytes) -> bool:
        if not self._has_room(len(piece)):
            return False
        self._send_now(self._cleaner.feed_some(piece))
        return True

    def _pass_chunk_on(self, chunk: bytes) -> bool:
        if not self._has_room(len(chunk)) or not (out := self._cleaner.feed_chunk(chunk)):
            return False
        self._send_now(out)
        return True

    def _has_room(self, size: int) -> bool:
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        return transport.get_write_buffer_size() + size < _NO_WAIT_BYTES

    def _send_now(self, out: bytes) -> None:
        self._silence.begin()
        if out and self._response is not None:
            self._note_first()
            self._response.write_now(out)

    # When the client may have to be waited for.

    async def _send(self, out: bytes) -> None:
        if out:
            self._note_first()
            await self._write(out)

    def _note_first(self) -> None:
        if self.ttft_s is None and self._cleaner.harvest.content_seen:
            self.ttft_s = time.monotonic() - self._arrived

    async def _write(self, out: bytes, *, last: bool = False) -> None:
        """Send to the client.

        Raises:
            ConnectionError: when the client is gone, or has not read for as long as an engine
                may be silent.
        """
        assert self._response is not None
        write = self._response.write_eof if last else self._response.write
        transport = self._transport
        if transport is not None and transport.get_write_buffer_size() + len(out) < _NO_WAIT_BYTES:
            # It has room for this, so that no limit is needed; making one costs as much.
            await write(out)
            return
        before = time.monotonic()
        try:
            async with asyncio.timeout(self._idle):
                await write(out)
        except TimeoutError as error:
            raise ConnectionResetError("the client does not read") from error
        finally:
            # Also when the client leaves in the middle of it: decode may have ended long ago.
            waited = time.monotonic() - before
            self.blocked += waited if waited > _WORTH_NOTING_S else 0.0


class _Stream(web.StreamResponse):
    """Its head goes out with its first words, which are there already."""

    _send_headers_immediately = False

    def write_now(self, data: bytes) -> None:
        """Write to an open connection without waiting for the client, whom the caller minds.

        It does what `write` does for a body without a length and a compressor. For a word at a
        time, the coroutines and checks on that way cost more than all else that is done with it.
        """
        writer = cast(StreamWriter, self._payload_writer)
        writer.send_headers()
        assert writer.transport is not None
        writer.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if writer.chunked else data)


class _Silence:
    """The limit on decode's silence, over all reads of one answer.

    A timer a read would cost as much as the read. So there is one that looks now and then how long
    the read that is going on has lasted.
    """

    def __init__(self, limit: float, upstream: Response) -> None:
        self._limit = limit
        self._upstream = upstream
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Fail a read with a TimeoutError when it lasts too long."""
        self._timer = self._loop.call_later(self._limit, self._look)

    def begin(self) -> None:
        """A read begins."""
        self._since = self._loop.time()

    def pause(self) -> None:
        """No read is going on, so decode is not to blame."""
        self._since = None

    def end(self) -> None:
        """Nothing is read any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        over = (now if self._since is None else self._since) + self._limit
        if now < over:
            self._timer = self._loop.call_at(over, self._look)
        else:
            self._upstream.fail(TimeoutError())
