"""HTTP/1.1 to the engines, as little of it as they speak.

A general client costs more than all else that the router does for a request, and it does so three
times: to render, to prefill and to decode. This one keeps connections, reads heads, and reads
bodies by length, by chunks or to the end of the connection; nothing else.

Whatever goes wrong is an OSError: what the network says, `BadAnswerError` for what is no HTTP, and
`HungUpError` where an engine closed the connection before its answer was complete.
"""

import asyncio
import re
import ssl
import zlib
from collections.abc import Callable, Mapping
from typing import cast
from urllib.parse import urlsplit

_LONGEST_HEAD = 2**16
# Reading stops when so much waits to be taken, and goes on when it was.
_MOST_WAITING = 2**20
# vLLM closes what is idle for 5 s; a connection that is about to be closed is not used any more.
_MOST_IDLE_S = 4.0
_STATUS = re.compile(rb"HTTP/1\.([01]) (\d{3})(?: .*)?")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*")
_LENGTH = re.compile(r"\d{1,18}")
_FIRST_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")
_NEXT_SIZE = re.compile(rb"\r\n([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")
_LONGEST_SIZE = 4096


class BadAnswerError(ConnectionError):
    """What came is no HTTP/1.1."""


class HungUpError(ConnectionError):
    """The connection ended before the answer did."""


class Chunks:
    """Takes a chunked body apart, under any cutting of it.

    Attributes:
        done: the body is over.
        extra: what came after it.
    """

    def __init__(self) -> None:
        self.done = False
        self.extra = b""
        self._rest = b""
        self._left = 0
        self._size = _FIRST_SIZE
        self._last = False

    def feed(self, data: bytes) -> bytes:
        """The content in this piece.

        Raises:
            BadAnswerError: it is not chunked as it should be.
        """
        buffer, begin = (self._rest + data if self._rest else data), 0
        self._rest = b""
        if self._last:
            self._end(buffer)
            return b""
        parts, left, total, size_of = [], self._left, len(buffer), self._size
        while True:
            if left:
                end = begin + left
                parts.append(buffer[begin:end])
                if end > total:
                    self._left = end - total
                    break
                begin = end
            size = size_of.match(buffer, begin)
            if size is None:
                self._left = 0
                self._wait(buffer[begin:])
                break
            begin = size.end()
            left = int(size[1], 16)
            size_of = _NEXT_SIZE
            if not left:
                self._last = True
                self._end(buffer[begin:])
                break
        self._size = size_of
        return b"".join(parts)

    def _wait(self, rest: bytes) -> None:
        """Keep what may become the size of a chunk."""
        if len(rest) > _LONGEST_SIZE or b"\n" in rest[2:]:
            raise BadAnswerError("a chunk has no size")
        self._rest = rest

    def _end(self, rest: bytes) -> None:
        """After the last chunk come trailers, which nobody reads, and an empty line."""
        if rest.startswith(b"\r\n"):
            end = 2
        elif (found := rest.find(b"\r\n\r\n")) >= 0:
            end = found + 4
        elif len(rest) > _LONGEST_HEAD:
            raise BadAnswerError("the trailers have no end")
        else:
            self._rest = rest
            return
        self.done, self.extra = True, rest[end:]


def read_head(head: bytes) -> tuple[int, bool, dict[str, str]]:
    """Status, whether the protocol is 1.1, and fields by lower-case name; the last of each name.

    Raises:
        BadAnswerError: it is no head of an answer.
    """
    first, *lines = head.split(b"\r\n")
    status = _STATUS.fullmatch(first)
    if status is None:
        raise BadAnswerError("the answer has no status")
    fields: dict[str, str] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise BadAnswerError("a header is not one")
        name = field[1].decode().lower()
        value = field[2].decode("utf-8", "surrogateescape")
        if name == "content-length" and fields.get(name, value) != value:
            raise BadAnswerError("the answer has two lengths")
        fields[name] = value
    return int(status[2]), status[1] == b"1", fields


class Response:
    """An engine's answer, whose body is read by one reader."""

    def __init__(self, status: int, fields: dict[str, str], connection: "_Connection") -> None:
        self.status = status
        self.headers: Mapping[str, str] = fields
        self._connection = connection
        self._parts: list[bytes] = []
        self._waiting = 0
        self._over = False
        self._error: OSError | None = None
        self._reader: asyncio.Future[None] | None = None
        self._take: Callable[[bytes], bool] | None = None

    @property
    def content_type(self) -> str:
        """The media type, without its parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def read_some(self, take: Callable[[bytes], bool] | None = None) -> bytes:
        """What has come since the last call, at least a byte; empty at the end.

        Args:
            take: is shown what comes while this waits, and says whether it took it. To wake a
                task for each piece of an answer costs more than to pass the piece on. What it did
                not take is returned; an error of its own is raised.

        Raises:
            OSError: the connection broke, or `fail` was called.
        """
        while not self._parts:
            if self._error is not None:
                raise self._error
            if self._over:
                return b""
            self._reader, self._take = asyncio.get_running_loop().create_future(), take
            try:
                await self._reader
            finally:
                self._reader = self._take = None
        parts, self._parts = self._parts, []
        if self._waiting > _MOST_WAITING:
            self._connection.resume()
        self._waiting = 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def read(self) -> bytes:
        """All of the rest."""
        parts = []
        while part := await self.read_some():
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def take(self) -> bytes:
        """What has come and was not read yet, for who will read no more."""
        parts, self._parts = self._parts, []
        return b"".join(parts)

    def fail(self, error: OSError) -> None:
        """Let the reader have this error after what has come."""
        if not self._over and self._error is None:
            self._error = error
            self._wake()

    def close(self) -> None:
        """Read no more: an answer that is not over ends its connection."""
        if not self._over:
            self._connection.drop()

    def feed(self, part: bytes) -> bool:
        """A piece of the body has come; whether the reader lags behind."""
        if self._take is not None and self._taken(part, self._take):
            return False
        self._parts.append(part)
        self._waiting += len(part)
        self._wake()
        return self._waiting > _MOST_WAITING

    def end(self) -> None:
        """The body is complete."""
        self._over = True
        self._wake()

    def _taken(self, part: bytes, take: Callable[[bytes], bool]) -> bool:
        reader = self._reader
        if reader is None or reader.done():
            return False
        try:
            return take(part)
        except Exception as error:  # the reader's affair, and not the connection's
            reader.set_exception(error)
            return True

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class _Connection(asyncio.Protocol):
    """One connection, with one exchange at a time."""

    def __init__(self, pool: "list[_Connection]", loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._head = b""
        self._answer: asyncio.Future[Response] | None = None
        self._response: Response | None = None
        self._chunks: Chunks | None = None
        self._unpack: zlib._Decompress | None = None
        # Bytes to come; None when the body goes on to the end of the connection.
        self._left: int | None = 0
        self._keep = False
        self.idle_since = 0.0

    @property
    def usable(self) -> bool:
        """Whether a request may be sent on it."""
        transport = self._transport
        fresh = self._loop.time() - self.idle_since < _MOST_IDLE_S
        return fresh and transport is not None and not transport.is_closing()

    async def ask(self, head: bytes, body: bytes) -> Response:
        """Send a request; the answer when its head is there.

        Raises:
            OSError: it did not come.
        """
        assert self._transport is not None
        answer: asyncio.Future[Response] = self._loop.create_future()
        self._answer = answer
        self._transport.writelines([head, body] if body else [head])
        try:
            return await answer
        except BaseException:
            # Who leaves just when the whole answer is there may find the next request on it.
            if self._answer is answer:
                self.drop()
            raise

    def drop(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def resume(self) -> None:
        """The reader has taken what was there."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        """The end, which may also be that of a body without a length."""
        if self in self._pool:
            self._pool.remove(self)
        response = self._response
        if response is not None and self._left is None and self._chunks is None and error is None:
            response.end()
            return
        lost = (
            error if isinstance(error, OSError) else HungUpError("the engine closed the connection")
        )
        self._fail(lost)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        try:
            if self._response is None:
                data = self._read_head(data)
            if self._response is not None:
                self._read_body(self._response, data)
        except BadAnswerError as error:
            self._fail(error)
            self.drop()

    def _fail(self, error: OSError) -> None:
        if self._response is not None:
            self._response.fail(error)
        elif self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def _read_head(self, data: bytes) -> bytes:
        """Make a response when the head is complete. Returns what came after it."""
        if self._answer is None or self._answer.done():
            raise BadAnswerError("an answer without a request")
        buffer = self._head + data if self._head else data
        while True:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                self._head = buffer
                if len(buffer) > _LONGEST_HEAD or not b"HTTP/1.".startswith(buffer[:7]):
                    raise BadAnswerError("what came is no HTTP")
                return b""
            status, recent, fields = read_head(buffer[:end])
            buffer = buffer[end + 4 :]
            if status >= 200:  # any other only says that the answer will come
                break
        self._head = b""
        self._expect(status, fields)
        self._response = Response(status, fields, self)
        self._keep = recent and fields.get("connection", "").lower() != "close"
        self._answer.set_result(self._response)
        return buffer

    def _expect(self, status: int, fields: Mapping[str, str]) -> None:
        self._chunks, self._left = None, None
        coding = fields.get("transfer-encoding", "").lower()
        self._unpack = _unpacker(fields.get("content-encoding", "identity").lower())
        if coding == "chunked":
            self._chunks = Chunks()
        elif coding:
            raise BadAnswerError(f"the answer is encoded as {coding}")
        elif status in (204, 304):
            self._left = 0
        elif (length := fields.get("content-length")) is not None:
            if not _LENGTH.fullmatch(length):
                raise BadAnswerError("the answer has no length")
            self._left = int(length)

    def _read_body(self, response: Response, data: bytes) -> None:
        extra = b""
        if self._chunks is not None:
            part = self._chunks.feed(data)
            over, extra = self._chunks.done, self._chunks.extra
        elif self._left is not None:
            part, extra = data[: self._left], data[self._left :]
            self._left -= len(part)
            over = self._left == 0
        else:
            part, over = data, False
        if part and self._unpack is not None:
            part = _unpacked(self._unpack, part)
        if part and response.feed(part) and not over and self._transport is not None:
            self._transport.pause_reading()
        if over:
            self._over(response, extra)

    def _over(self, response: Response, extra: bytes) -> None:
        self._response = self._answer = None
        response.end()
        assert self._transport is not None
        # An engine that goes on after its answer cannot be asked again.
        if extra or not self._keep or self._transport.is_closing():
            self._transport.close()
        else:
            self.idle_since = self._loop.time()
            self._pool.append(self)


def _unpacker(coding: str) -> "zlib._Decompress | None":
    """An engine is asked for plain answers; one behind a proxy may pack them all the same."""
    if coding == "identity":
        return None
    if coding in ("gzip", "x-gzip", "deflate"):
        return zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    raise BadAnswerError(f"the answer is packed as {coding}")


def _unpacked(unpacker: "zlib._Decompress", part: bytes) -> bytes:
    try:
        return unpacker.decompress(part)
    except zlib.error as error:
        raise BadAnswerError(f"the answer cannot be unpacked: {error}") from error


class Client:
    """Connections to engines, kept for the next request.

    Args:
        connect: seconds that opening a connection may take.
    """

    def __init__(self, *, connect: float) -> None:
        self._connect = connect
        self._pools: dict[str, list[_Connection]] = {}
        self._secure: ssl.SSLContext | None = None

    async def send(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Response:
        """Send a request; the answer when its head is there. The caller sets a limit.

        Args:
            url: with a path, which goes out as it is.

        Raises:
            TimeoutError: the connection could not be opened in time.
            OSError: the engine cannot be reached, or gives no answer.
        """
        begin = url.index("/", url.index("://") + 3)
        base = url[:begin]
        connection = self._idle(base) or await self._open(base)
        head = _head(method, url[begin:], base[base.index("://") + 3 :], body, headers)
        return await connection.ask(head, body or b"")

    def close(self) -> None:
        """Close the connections that are idle."""
        for pool in self._pools.values():
            while pool:
                pool.pop().drop()

    def _idle(self, base: str) -> _Connection | None:
        """The connection that was used last, so that few are kept."""
        pool = self._pools.get(base)
        while pool:
            connection = pool.pop()
            if connection.usable:
                return connection
            connection.drop()
        return None

    async def _open(self, base: str) -> _Connection:
        parts = urlsplit(base)
        loop = asyncio.get_running_loop()
        pool = self._pools.setdefault(base, [])
        secure = parts.scheme == "https"
        if secure and self._secure is None:
            self._secure = ssl.create_default_context()
        async with asyncio.timeout(self._connect):
            _, connection = await loop.create_connection(
                lambda: _Connection(pool, loop),
                parts.hostname or "",
                parts.port or (443 if secure else 80),
                ssl=self._secure if secure else None,
            )
        connection.idle_since = loop.time()
        return connection


def _head(
    method: str, path: str, host: str, body: bytes | None, headers: Mapping[str, str]
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Accept-Encoding: identity"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    text = "\r\n".join([*lines, "", ""])
    if text.count("\n") != len(lines) + 1 or text.count("\r") != len(lines) + 1:
        raise ValueError("a line break in a header")
    return text.encode("utf-8", "surrogateescape")
