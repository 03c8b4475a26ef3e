import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from pdctl.config.model import RouterLimits
from pdctl.router import wire
from pdctl.router.engines import Engines
from pdctl.router.wire import BadAnswerError, Client, HungUpError

OK = b"HTTP/1.1 200 OK\r\n"
Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


class Engine:
    """A server that follows a script, once a connection."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.connections = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self.script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            head += await reader.readexactly(int(line.split(b":")[1]))
    return head


def answers(*raw: bytes, stay: bool = True) -> Script:
    """Answers each request with the next of these."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in raw:
            await request(reader)
            writer.write(answer)
        if stay:
            await reader.read()

    return script


@asynccontextmanager
async def engine(script: Script) -> AsyncIterator[tuple[Engine, Client]]:
    it = Engine(script)
    server = await asyncio.start_server(it.serve, "127.0.0.1", 0)
    it.url = "http://127.0.0.1:%d" % server.sockets[0].getsockname()[1]  # noqa: UP031
    client = Client(connect=5)
    try:
        yield it, client
    finally:
        client.close()
        server.close()


async def fetch(
    it: Engine, client: Client, method: str = "GET", body: bytes | None = None
) -> bytes:
    async with asyncio.timeout(5):
        response = await client.send(method, f"{it.url}/x", body, {})
        return await response.read()


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (OK + b"Content-Length: 3\r\n\r\nabc", b"abc"),
        (OK + b"Content-Length: 0\r\n\r\n", b""),
        (OK + b"Transfer-Encoding: Chunked\r\n\r\n" + chunked(b"ab", b"c"), b"abc"),
        (
            OK + b"Transfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n"
            b"2;name=value\r\nab\r\n1 \r\nc\r\n0\r\nTrailer: x\r\n\r\n",
            b"abc",
        ),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\nx", b"x"),
        (b"HTTP/1.1 102 \r\n\r\n" * 3000 + OK + b"Content-Length: 1\r\n\r\nx", b"x"),
        (
            OK + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
            + chunked(gzip.compress(b"abc")),
            b"abc",
        ),
    ],
)  # fmt: skip
async def test_bodies_are_read_and_the_connection_is_kept(raw: bytes, body: bytes) -> None:
    async with engine(answers(raw, raw)) as (it, client):
        assert await fetch(it, client) == body
        assert await fetch(it, client) == body
        assert it.connections == 1


async def test_a_body_may_end_with_its_connection() -> None:
    async with engine(answers(OK + b"\r\nabc", stay=False)) as (it, client):
        assert await fetch(it, client) == b"abc"
        assert await fetch(it, client) == b"abc"
        assert it.connections == 2


@pytest.mark.parametrize(
    "raw",
    [
        OK + b"Content-Length: 1\r\nConnection: close\r\n\r\nx",
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx",
        OK + b"Content-Length: 1\r\n\r\nx and more",
        OK + b"Content-Length: 1\r\n\r\nx" + OK + b"Content-Length: 1\r\n\r\ny",
        OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(b"x") + b"HTTP",
    ],
)
async def test_what_may_not_be_asked_again_is_not(raw: bytes) -> None:
    async with engine(answers(raw, raw)) as (it, client):
        assert await fetch(it, client) == b"x"
        assert await fetch(it, client) == b"x"
        assert it.connections == 2


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"", HungUpError),
        (b"220 smtp ready\r\n", BadAnswerError),
        (OK + b"Content-Length: 5\r\n\r\nabc", HungUpError),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabc", HungUpError),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", BadAnswerError),
        (OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n", BadAnswerError),
        (OK + b"Content-Length: -1\r\n\r\n", BadAnswerError),
        (OK + b"Content-Encoding: br\r\n\r\n", BadAnswerError),
        (OK + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", BadAnswerError),
        (OK + b"X: " + b"x" * 70_000, BadAnswerError),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"x" * 300_000, BadAnswerError),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", BadAnswerError),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n0x2\r\nab", BadAnswerError),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n", BadAnswerError),
        (b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n", BadAnswerError),
        (b"HTTP/1.1 2000 OK\r\n\r\n", BadAnswerError),
        (OK + b"no field\r\n\r\n", BadAnswerError),
        (OK + b" folded: x\r\n\r\n", BadAnswerError),
        (OK + b"a b: c\r\n\r\n", BadAnswerError),
        (OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", BadAnswerError),
        (b"HTTP/1.1 100 Continue\r\nContent-Length: 3\r\n\r\nabc", BadAnswerError),
        (b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", BadAnswerError),
    ],
)
async def test_what_is_no_answer_is_an_error(raw: bytes, error: type[OSError]) -> None:
    async with engine(answers(raw, stay=False)) as (it, client):
        with pytest.raises(error):
            await fetch(it, client)


async def test_a_head_is_read() -> None:
    raw = OK + b"Content-Type: text/plain; x=\xc3\xa9 \r\nX-A:\r\nx-a: 2\r\nX-B: \xff\r\n\r\n"
    async with engine(answers(b"HTTP/1.1 103 Hints\r\nX-C: 3\r\n\r\n" + raw)) as (it, client):
        response = await client.send("GET", f"{it.url}/x", None, {})
        assert response.headers == {
            "content-type": "text/plain; x=é",
            "x-a": "2",
            "x-b": "\udcff",
        }
        response.close()


async def test_an_answer_is_the_same_under_any_cutting() -> None:
    raw = OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(b"ab", b"\r\n0\r\n\r\n")

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await request(reader):
            for at in range(len(raw)):
                writer.write(raw[at : at + 1])
                await asyncio.sleep(0)

    async with engine(script) as (it, client):
        assert await fetch(it, client) == b"ab\r\n0\r\n\r\n"
        assert await fetch(it, client) == b"ab\r\n0\r\n\r\n"
        assert it.connections == 1


async def test_requests_go_out_as_they_are() -> None:
    seen = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await request(reader))
        writer.write(OK + b"Content-Length: 0\r\n\r\n")

    async with engine(script) as (it, client):
        response = await client.send("POST", f"{it.url}/a%2f?b=c", b"{}", {"X-A": "é"})
        assert (await response.read(), response.status) == (b"", 200)
        host = it.url.removeprefix("http://")
    assert seen == [
        f"POST /a%2f?b=c HTTP/1.1\r\nHost: {host}\r\nAccept-Encoding: identity\r\n"
        "X-A: é\r\nContent-Length: 2\r\n\r\n{}".encode()
    ]


async def test_a_line_break_cannot_be_sent() -> None:
    async with engine(answers()) as (it, client):
        with pytest.raises(ValueError, match="line break"):
            await client.send("GET", f"{it.url}/", None, {"X-A": "a\r\nX-B: b"})


async def test_an_engine_that_closes_an_idle_connection_is_asked_on_another() -> None:
    raw = OK + b"Content-Length: 1\r\n\r\nx"
    async with engine(answers(raw, stay=False)) as (it, client):
        assert await fetch(it, client) == b"x"
        await asyncio.sleep(0.05)
        assert await fetch(it, client) == b"x"
        assert it.connections == 2


async def test_what_was_idle_for_long_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = OK + b"Content-Length: 1\r\n\r\nx"
    async with engine(answers(raw, raw)) as (it, client):
        await fetch(it, client)
        monkeypatch.setattr(wire, "_MOST_IDLE_S", 0.0)
        await fetch(it, client)
        assert it.connections == 2


async def test_an_answer_that_is_left_ends_its_connection() -> None:
    ended = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(OK + b"Content-Length: 10\r\n\r\nabc")
        try:
            await reader.read()
        finally:
            ended.set()

    async with engine(script) as (it, client), asyncio.timeout(5):
        response = await client.send("GET", f"{it.url}/x", None, {})
        assert await response.read_some() == b"abc"
        response.close()
        await ended.wait()


async def test_a_request_that_is_given_up_ends_its_connection() -> None:
    ended = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        except ConnectionError:
            pass
        finally:
            ended.set()

    async with engine(script) as (it, client), asyncio.timeout(5):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.send("GET", f"{it.url}/x", None, {})
        await ended.wait()


async def test_who_leaves_as_the_answer_comes_does_not_cut_off_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = OK + b"Content-Length: 3\r\n\r\nabc"
    receive = wire._Connection.data_received
    tasks: list[asyncio.Task[bytes]] = []

    def and_leave(connection: wire._Connection, data: bytes) -> None:
        if len(tasks) == 1:
            # Its turn comes before that of who has been answered, and it takes the connection.
            tasks.append(asyncio.create_task(fetch(it, client)))
        receive(connection, data)
        tasks[0].cancel()

    monkeypatch.setattr(wire._Connection, "data_received", and_leave)
    async with engine(answers(raw, raw)) as (it, client):
        tasks.append(asyncio.create_task(fetch(it, client)))
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        assert await tasks[1] == b"abc"
        assert it.connections == 1


async def test_a_slow_reader_stops_the_engine_and_gets_everything() -> None:
    written = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await request(reader)
        writer.write(OK + b"Content-Length: %d\r\n\r\n" % (64 * 2**20))
        for _ in range(64):
            writer.write(b"x" * 2**20)
            await writer.drain()
            written += 1

    async with engine(script) as (it, client), asyncio.timeout(20):
        response = await client.send("GET", f"{it.url}/x", None, {})
        await asyncio.sleep(0.3)
        assert written < 32
        assert len(await response.read()) == 64 * 2**20


def pieces(*parts: bytes) -> Script:
    """An answer whose parts come one after the other."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(OK + b"Content-Length: %d\r\n\r\n" % len(b"".join(parts)))
        for part in parts:
            await asyncio.sleep(0.01)
            writer.write(part)
        await reader.read()

    return script


async def test_what_comes_while_a_reader_waits_may_be_taken_at_once() -> None:
    taken: list[bytes] = []

    def take(part: bytes) -> bool:
        if part == b"c":
            return False
        taken.append(part)
        return True

    async with engine(pieces(b"a", b"b", b"c", b"d", b"e")) as (it, client), asyncio.timeout(5):
        response = await client.send("GET", f"{it.url}/x", None, {})
        left = await response.read_some(take)
        # Nothing overtakes what was not taken, and without a reader nothing is.
        await asyncio.sleep(0.03)
        left += await response.read_some(take)
        while more := await response.read_some(take):
            left += more
        assert taken[:2] == [b"a", b"b"]
        assert left.startswith(b"c")
        assert sorted(b"".join(taken) + left) == sorted(b"abcde")


def chunks(*reads: bytes) -> Script:
    """Chunked answers to any number of requests, whose reads come one after the other."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request(reader)
            writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n")
            for read in reads:
                await asyncio.sleep(0.01)
                writer.write(read)

    return script


async def test_a_chunk_may_be_taken_as_it_came_and_reading_goes_on_behind_it() -> None:
    taken: list[bytes] = []

    def take_chunk(data: bytes) -> bool:
        if not data.startswith(b"1\r\n"):
            return False
        taken.append(data)
        return True

    # What looks like a chunk in the middle of one is none.
    odd = (b"7\r\ne\n", b"1\r\nf\n", b"\r\n")
    words = (b"2\r\nab\r\n", b"1\r\nc\r\n", b"1\r\nd\r\n")
    script = chunks(*words, *odd, b"1\r\nf\r\n", b"0\r\n\r\n")
    async with engine(script) as (it, client), asyncio.timeout(5):
        for _ in range(2):
            taken.clear()
            response = await client.send("GET", f"{it.url}/x", None, {})
            left = b""
            while more := await response.read_some(None, take_chunk):
                left += more
            assert left == b"abe\n1\r\nf\n"
            assert taken == [b"1\r\nc\r\n", b"1\r\nd\r\n", b"1\r\nf\r\n"]
        assert it.connections == 1


async def test_chunks_of_a_packed_answer_are_not_taken_as_they_come() -> None:
    packed = gzip.compress(b"abc")
    head = OK + b"Transfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n\r\n"

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(head)
        for part in (packed[:10], packed[10:]):
            await asyncio.sleep(0.01)
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
        writer.write(b"0\r\n\r\n")

    async with engine(script) as (it, client), asyncio.timeout(5):
        response = await client.send("GET", f"{it.url}/x", None, {})
        whole = b""
        while more := await response.read_some(None, lambda data: True):
            whole += more
        assert whole == b"abc"


async def test_who_fails_to_take_a_piece_is_told_so() -> None:
    def take(part: bytes) -> bool:
        raise RuntimeError(part.decode())

    async with engine(pieces(b"a", b"b")) as (it, client), asyncio.timeout(5):
        response = await client.send("GET", f"{it.url}/x", None, {})
        with pytest.raises(RuntimeError, match="a"):
            await response.read_some(take)
        assert await response.read() == b"b"


async def test_a_failed_read_keeps_what_had_come() -> None:
    async with engine(answers(OK + b"Content-Length: 5\r\n\r\nabc")) as (it, client):
        response = await client.send("GET", f"{it.url}/x", None, {})
        assert await response.read_some() == b"abc"
        asyncio.get_running_loop().call_later(0.01, response.fail, TimeoutError("late"))
        with pytest.raises(TimeoutError, match="late"):
            await response.read_some()


async def test_nobody_there_is_an_error() -> None:
    with pytest.raises(ConnectionRefusedError):
        await Client(connect=5).send("GET", "http://127.0.0.1:1/x", None, {})


def test_the_engines_key_takes_the_place_of_the_clients() -> None:
    engines = Engines(RouterLimits(), "ours")
    assert engines.headers({"authorization": "Bearer theirs", "accept": "*/*"}) == {
        "authorization": "Bearer ours",
        "accept": "*/*",
    }
