"""HTTP/1.1 to the engines, as little of it as they speak.

A general client costs more than all else that the router does for a request, and it does so three
times: to render, to prefill and to decode. This one keeps connections and gives answers out as they
come; `httptools` takes them apart.

Whatever goes wrong is an OSError: what the network says, `BadAnswerError` for what is no HTTP, and
`HungUpError` where an engine closed the connection before its answer was complete.
"""

import asyncio
import ssl
import zlib
from collections.abc import Callable, Mapping
from typing import cast
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

_LONGEST_HEAD = 2**16
# Reading stops when so much waits to be taken, and goes on when it was.
_MOST_WAITING = 2**20
# vLLM closes what is idle for 5 s; a connection that is about to be closed is not used any more.
_MOST_IDLE_S = 4.0

Passing = Callable[[bytes], bool]
"""Is shown bytes, and says whether it took them."""


class BadAnswerError(ConnectionError):
    """What came is no HTTP/1.1."""


class HungUpError(ConnectionError):
    """The connection ended before the answer did."""


class Response:
    """An engine's answer, whose body is read by one reader."""

    def __init__(self, status: int, fields: dict[str, str], connection: "_Connection") -> None:
        self.status = status
        self.headers: Mapping[str, str] = fields
        self._connection = connection
        self._parts: list[bytes] = []
        self._waiting = 0
        self._whole: list[bytes] = []
        self._over = False
        self._error: OSError | None = None
        self._reader: asyncio.Future[None] | None = None
        self._take: Passing | None = None
        self._take_chunk: Passing | None = None

    @property
    def content_type(self) -> str:
        """The media type, without its parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def read_some(
        self,
        take: Passing | None = None,
        take_chunk: Passing | None = None,
    ) -> bytes:
        """What has come since the last call, at least a byte; empty at the end.

        Args:
            take: is shown what comes while this waits, and says whether it took it. To wake a
                task for each piece of an answer costs more than to pass the piece on. What it did
                not take is returned; an error of its own is raised.
            take_chunk: the same for what begins with a chunk's size and is not unwrapped.

        Raises:
            OSError: the connection broke, or `fail` was called.
        """
        while not self._parts:
            if self._error is not None:
                raise self._error
            if self._over:
                return b""
            self._reader = asyncio.get_running_loop().create_future()
            self._take, self._take_chunk = take, take_chunk
            try:
                await self._reader
            finally:
                self._reader = self._take = self._take_chunk = None
        parts, self._parts = self._parts, []
        if self._waiting > _MOST_WAITING:
            self._connection.resume()
        self._waiting = 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def read(self) -> bytes:
        """All of the rest. Who leaves may ask again: what had come is kept."""
        parts = self._whole
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

    def feed_chunk(self, data: bytes) -> bool:
        """A read that begins with a chunk of the body, as it came; whether it was taken whole."""
        take = self._take_chunk
        return take is not None and self._taken(data, take)

    def end(self) -> None:
        """The body is complete."""
        self._over = True
        self._wake()

    def _taken(self, part: bytes, take: Passing) -> bool:
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


class Exchange:
    """A request that was sent. It goes on when who waits for its answer leaves, until `drop`."""

    def __init__(self, connection: "_Connection") -> None:
        self._connection = connection
        self._response: Response | None = None
        self._error: OSError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def answered(self) -> bool:
        """The head of the answer is there, or will not come."""
        return self._response is not None or self._error is not None

    async def head(self) -> Response:
        """The answer, when its head is there.

        Raises:
            OSError: it did not come.
        """
        while self._response is None:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._response

    def drop(self) -> None:
        """End it, if it is not over: its connection goes with it."""
        self._connection.drop_if_at(self)

    def begin(self, response: Response) -> None:
        """The head has come."""
        self._response = response
        self._wake()

    def fail(self, error: OSError) -> None:
        """The head will not come."""
        if not self.answered:
            self._error = error
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Connection(asyncio.Protocol):
    """One connection, with one exchange at a time."""

    def __init__(self, pool: "list[_Connection]", loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._response: Response | None = None
        self._unpack: zlib._Decompress | None = None
        # A parser for each exchange, so that none begins with what is left of the one before.
        self._parser: HttpResponseParser | None = None
        self._fields: dict[str, str] = {}
        self._parts: list[bytes] = []
        # Bytes since the last that was content: of a head, or of trailers.
        self._bare = 0
        # The body goes on to the end of the connection.
        self._endless = False
        # What comes next begins with a chunk's size, and is not packed.
        self._between_chunks = False
        self._complete = False
        self._keep = False
        self.idle_since = 0.0

    @property
    def usable(self) -> bool:
        """Whether a request may be sent on it."""
        transport = self._transport
        fresh = self._loop.time() - self.idle_since < _MOST_IDLE_S
        return fresh and transport is not None and not transport.is_closing()

    def ask(self, head: bytes, body: bytes) -> Exchange:
        """Send a request."""
        assert self._transport is not None
        self._exchange = exchange = Exchange(self)
        self._parser = HttpResponseParser(self)
        # Some proxies say a length besides the chunks, which count, or pad the sizes of chunks.
        self._parser.set_dangerous_leniencies(
            lenient_chunked_length=True, lenient_spaces_after_chunk_size=True
        )
        self._bare, self._complete, self._between_chunks = 0, False, False
        self._transport.writelines([head, body] if body else [head])
        return exchange

    def drop_if_at(self, exchange: Exchange) -> None:
        """End the connection if it is at this exchange; it may be at the next one."""
        if self._exchange is exchange:
            self.drop()

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
        self._parser = None  # the two hold each other
        response = self._response
        if response is not None and self._endless and error is None:
            response.end()
            return
        lost = (
            error if isinstance(error, OSError) else HungUpError("the engine closed the connection")
        )
        self._fail(lost)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        if self._between_chunks and self._response is not None and self._response.feed_chunk(data):
            return
        try:
            self._read(data)
        except BadAnswerError as error:
            self._fail(error)
            self.drop()

    # What the parser calls.

    def on_message_begin(self) -> None:
        """The first bytes of an answer, of an interim one, or of what nobody asked for."""
        if self._complete:
            raise BadAnswerError("an answer without a request")
        self._fields = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head, or a trailer, which nobody reads; the last of each name counts."""
        if self._response is None:
            text = value.rstrip(b" \t").decode("utf-8", "surrogateescape")
            self._fields[name.decode().lower()] = text

    def on_headers_complete(self) -> None:
        """Make a response, unless the head only says that the answer will come."""
        parser, exchange = self._parser, self._exchange
        assert parser is not None
        assert exchange is not None
        if not parser.get_http_version().startswith("1."):
            raise BadAnswerError("what came is no HTTP/1.1")
        status = parser.get_status_code()
        if status < 200:
            if self._fields.keys() & {"content-length", "transfer-encoding"}:
                raise BadAnswerError("an interim answer has a body")
            return
        self._expect(status, self._fields)
        self._keep = parser.should_keep_alive()
        self._response = Response(status, self._fields, self)
        exchange.begin(self._response)

    def on_body(self, part: bytes) -> None:
        """A piece of the body; a read may bring many, and the reader gets them as one."""
        self._parts.append(part)

    def on_chunk_header(self) -> None:
        """A chunk begins."""
        self._between_chunks = False

    def on_chunk_complete(self) -> None:
        """A chunk is over, and another one or the end comes."""
        self._between_chunks = self._unpack is None

    def on_message_complete(self) -> None:
        """The end of an answer, or of an interim one."""
        self._complete = self._response is not None
        self._bare = 0

    # What we make of it.

    def _fail(self, error: OSError) -> None:
        if self._response is not None:
            self._response.fail(error)
        elif self._exchange is not None:
            self._exchange.fail(error)

    def _read(self, data: bytes) -> None:
        exchange, parser = self._exchange, self._parser
        if parser is None or exchange is None or (self._response is None and exchange.answered):
            raise BadAnswerError("an answer without a request")
        self._bare += len(data)
        extra = False
        try:
            parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if not self._complete:
                raise _bad(error) from error
            extra = True
        if self._parts:
            self._bare = 0
        elif self._bare > _LONGEST_HEAD:
            raise BadAnswerError("a head or the trailers have no end")
        if self._response is not None:
            self._read_body(self._response, extra)

    def _expect(self, status: int, fields: Mapping[str, str]) -> None:
        coding = fields.get("transfer-encoding")
        self._unpack = _unpacker(fields.get("content-encoding", "identity").lower())
        if coding is not None and coding.lower() != "chunked":
            raise BadAnswerError(f"the answer is encoded as {coding}")
        sized = coding is not None or "content-length" in fields
        self._endless = not sized and status not in (204, 304)

    def _read_body(self, response: Response, extra: bool) -> None:
        parts, self._parts = self._parts, []
        part = parts[0] if len(parts) == 1 else b"".join(parts)
        if part and self._unpack is not None:
            part = _unpacked(self._unpack, part)
        over = self._complete
        if part and response.feed(part) and not over and self._transport is not None:
            self._transport.pause_reading()
        if over:
            self._over(response, extra)

    def _over(self, response: Response, extra: bool) -> None:
        self._response = self._exchange = self._parser = None
        response.end()
        assert self._transport is not None
        # An engine that goes on after its answer cannot be asked again.
        if extra or not self._keep or self._transport.is_closing():
            self._transport.close()
        else:
            self.idle_since = self._loop.time()
            self._pool.append(self)


def _bad(error: Exception) -> BadAnswerError:
    """What the parser said, or what one of our own callbacks did."""
    cause = error.__context__
    return cause if isinstance(cause, BadAnswerError) else BadAnswerError(f"no HTTP: {error}")


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

    async def begin(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Exchange:
        """Send a request. This waits only where a connection has to be made first.

        Args:
            url: with a path, which goes out as it is.

        Raises:
            TimeoutError: the connection could not be opened in time.
            OSError: the engine cannot be reached.
        """
        begin = url.index("/", url.index("://") + 3)
        base = url[:begin]
        head = _head(method, url[begin:], base[base.index("://") + 3 :], body, headers)
        connection = self._idle(base) or await self._open(base)
        return connection.ask(head, body or b"")

    async def send(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Response:
        """Send a request; the answer when its head is there. The caller sets a limit.

        Raises:
            TimeoutError: the connection could not be opened in time.
            OSError: the engine cannot be reached, or gives no answer.
        """
        exchange = await self.begin(method, url, body, headers)
        try:
            return await exchange.head()
        except BaseException:
            exchange.drop()
            raise

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
