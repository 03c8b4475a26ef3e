"""Clients that send nonsense, leave, or dawdle: a clear answer, no traceback, nothing left."""

import asyncio
import json
import logging
import resource
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from pdctl.router import relay
from pdctl.router.keys import parse_keys
from pdctl.router.memory import MemoryStore
from pdctl.router.serve import allow_many_files, serving
from pdctl.router.server import Router
from pdctl.router.settings import RouterSettings
from pdctl.router.store import Total
from tests.router.fake import FakeEngine, ids_of, running
from tests.router.test_server import LONG, World, answered, user, world

CHAT = "/v1/chat/completions"
LARGE = 2**24
HANDLE = {"do_remote_prefill": True, "remote_host": "10.1.1.1", "remote_port": 1}


@asynccontextmanager
async def calm(caplog: pytest.LogCaptureFixture, **settings: Any) -> AsyncIterator[World]:
    """A world in which nothing is logged with a traceback, and nothing is in flight at the end."""
    async with world(**settings) as w:
        yield w
        gauge = w.router.shared.metrics.in_flight
        await w.until(lambda: gauge._value.get() == 0 and w.router.in_flight.count == 0)
        for engine in w.router.shared.fleet.engines():
            await w.until(lambda engine=engine: engine.outstanding == 0)
    assert [r for r in caplog.records if r.exc_info and r.name != "fake"] == []


async def post(w: World, body: dict[str, Any] | bytes, path: str = CHAT, **headers: str) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | {
        k.replace("_", "-"): headers[k] for k in headers
    }
    async with w.http.post(w.url + path, data=data, headers=headers) as answer:
        raw = await answer.read()
        return answer.status, raw


async def raw_http(w: World, sent: bytes, limit: float = 5.0, end: bytes = b"") -> bytes:
    """What comes back on a connection of its own, to its end or to `end`."""
    port = urlsplit(w.url).port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        async with asyncio.timeout(limit):
            return await (reader.readuntil(end) if end else reader.read())
    finally:
        writer.close()


def request(body: bytes, *headers: bytes, path: bytes = b"/v1/chat/completions") -> bytes:
    lines = [
        b"POST " + path + b" HTTP/1.1",
        b"Host: x",
        b"Connection: close",
        b"Content-Type: application/json",
        b"Content-Length: " + str(len(body)).encode(),
        *headers,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def turn(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [user(LONG)], "conversation_id": "c"} | more


# Nonsense in the body.


@pytest.mark.parametrize(
    "more",
    [
        {"stream_options": "x"},
        {"stream_options": [1], "stream": True},
        {"stream_options": 5, "stream": True},
        {"stream": "true"},
        {"stream": "false"},
        {"n": "2"},
        {"n": [1]},
        {"messages": {"role": "user"}},
        {"messages": [None, 1, "x"]},
        {"messages": [{"role": "tool", "content": None}, user(LONG)]},
        {"model": None},
        {"model": {"a": 1}},
        {"cache_salt": {"a": []}},
        {"conversation_id": None},
        {"conversation_id": 7},
        {"conversation_id": ["c"]},
        {"conversation_id": "x" * 5000},
        {"tools": {"a": 1}},
        {"max_tokens": -1},
        {"kv_transfer_params": 5},
        {"response_format": "text"},
        {"tool_choice": {"type": "function"}},
    ],
    ids=repr,
)
async def test_odd_fields_are_for_the_engine_to_judge(
    more: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with calm(caplog) as w:
        w.d.fault = lambda request, body: (
            web.json_response({"error": {"message": "bad", "code": 400}}, status=400)
            if not isinstance(body.get("messages"), list)
            or None in body["messages"]
            or not isinstance(body.get("stream_options", {}), dict)
            else None
        )
        for _ in range(2):
            status, _ = await post(w, turn(**more))
            assert status in (200, 400)


@pytest.mark.parametrize(
    "prompt",
    [[], [[1]], ["a"], [1.5], [-1] * 20, [2**40] * 20, [2**32] * 20, [True] * 20, None, {}],
    ids=repr,
)
async def test_odd_prompts_are_for_the_engine_to_judge(
    prompt: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with calm(caplog) as w:
        body = {"model": "m", "conversation_id": "c", "max_tokens": 3}
        status, _ = await post(w, body | {"prompt": list(range(20))}, "/v1/completions")
        assert status == 200
        for _ in range(2):
            await post(w, body | {"prompt": prompt}, "/v1/completions")
        assert w.p.pulls == []


@pytest.mark.parametrize("depth", [200, 300, 900, 1010])
async def test_deep_nesting_reaches_the_engine(
    depth: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with calm(caplog) as w:
        deep = f'{{"model":"m","messages":{json.dumps([user(LONG)])},"metadata":'
        sent = (deep + "[" * depth + "]" * depth + "}").encode()
        w.d.fault = lambda request, body: web.json_response({"depth": 1}, status=418)
        status, _ = await post(w, sent)
        assert status in (418, 400)  # the fake's own parser stops somewhere
        assert w.d.asked


async def test_nesting_beyond_all_parsers_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with calm(caplog) as w:
        status, raw = await post(w, b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
        assert (status, json.loads(raw)["error"]["code"]) == (400, 400)
        assert w.d.seen == []


# What orjson refuses and the engine's parser takes must not be a way around the router.
SMUGGLED = [
    b'{"x":NaN,"kv_transfer_params":%s}',
    b'{"x":"\\ud800","kv_transfer_params":%s}',
    b'{"x":1e999,"\\u006bv_transfer_params":%s}',
    b'{"x":-Infinity,"ec_transfer_params":%s}',
    b'{"kv_transfer_params":null,"kv_transfer_params":%s}',
    b'{"x":' + b"[" * 300 + b"]" * 300 + b',"kv_transfer_params":%s}',
]


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize("template", SMUGGLED, ids=lambda t: t[:24].decode())
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-8-sig"])
async def test_no_way_to_an_engine_for_a_clients_handle(
    path: str, template: bytes, encoding: str, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[Any] = []

    async def spy(request: web.Request) -> web.Response:
        got.append(json.loads(await request.read()))
        return web.json_response({"choices": [{"index": 0}]})

    async with calm(caplog) as w:
        body = template.replace(b"%s", json.dumps(HANDLE).encode()).decode().encode(encoding)
        w.d.passed = spy
        w.d.fault = lambda request, body: (
            got.append(body) or web.json_response({"choices": [{"index": 0}]})
        )
        await post(w, body, path)
        assert got
        assert "10.1.1.1" not in json.dumps(got)
        assert "10.1.1.1" not in json.dumps(w.p.seen)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/messages"])
async def test_no_handle_in_the_arguments_of_plugins(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """vLLM copies `vllm_xargs` over what its connector reads; a string there ends the engine."""
    got: list[Any] = []

    async def spy(request: web.Request) -> web.Response:
        got.append(await request.json())
        return web.json_response({})

    async with calm(caplog) as w:
        w.d.passed = spy
        xargs = {"kv_transfer_params": "x", "ec_transfer_params": ["x"], "mine": 1}
        await post(w, turn(prompt="a b", vllm_xargs=xargs), path)
        seen = [body for body in [*got, *w.p.seen, *w.d.seen] if body.get("prompt") != [1, 2, 3]]
        assert seen
        assert all(body["vllm_xargs"] == {"mine": 1} for body in seen)


async def test_ids_are_shown_only_to_who_asked(caplog: pytest.LogCaptureFixture) -> None:
    async with calm(caplog) as w:
        for no in ("false", "0", "off", 0, None):
            _, raw = await post(w, turn(return_token_ids=no, stream=True))
            assert b'"token_ids": [' not in raw.replace(b'":[', b'": [')
            _, raw = await post(w, turn(return_token_ids=no))
            assert json.loads(raw)["choices"][0]["token_ids"] is None
        _, raw = await post(w, turn(return_token_ids="true"))
        assert json.loads(raw)["choices"][0]["token_ids"]


# Nonsense in the headers.


@pytest.mark.parametrize("value", [b"\xff\xfe", "é☃".encode(), b"a\tb", b"%0d%0aX: y", b"x" * 4000])
@pytest.mark.parametrize(
    "name", [b"X-Request-Id", b"X-Conversation-Id", b"X-Session-Id", b"User-Agent", b"Accept"]
)
async def test_odd_header_values(
    name: bytes, value: bytes, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO)
    async with calm(caplog, request_log=tmp_path / "log") as w:
        body = json.dumps({"model": "m", "messages": [user(LONG)], "stream": True}).encode()
        for _ in range(2):
            raw = await raw_http(w, request(body, name + b": " + value))
            assert raw.startswith(b"HTTP/1.1 200")
            assert b"[DONE]" in raw
        raw = await raw_http(w, request(b"{", name + b": " + value))
        assert raw.startswith(b"HTTP/1.1 ")
        assert b'"error"' in raw
    assert all("\n" not in record.getMessage() for record in caplog.records)


async def test_a_key_of_odd_bytes_is_a_wrong_key(caplog: pytest.LogCaptureFixture) -> None:
    async with calm(caplog, api_keys=parse_keys("a:k\nb:schlüssel", "keys")) as w:
        raw = await raw_http(w, request(b"{}", b"Authorization: Bearer \xff\xfe"))
        assert raw.startswith(b"HTTP/1.1 401")
        good = "Authorization: Bearer schlüssel".encode()
        body = json.dumps(turn()).encode()
        assert (await raw_http(w, request(body, good))).startswith(b"HTTP/1.1 200")


async def test_a_conversations_name_stays_on_its_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with calm(caplog, ttl=0.2) as w:
        await post(w, turn(conversation_id="a\nERROR forged\r\n\x1b[31m"))
        await asyncio.sleep(0.25)
        await w.router.watcher.sweep()
    lines = [record.getMessage() for record in caplog.records]
    assert any("expired" in line for line in lines)
    assert all(line.isprintable() for line in lines), lines


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /health HTTP/1.1\r\nHost: x\r\nX-Request-Id: a\x00b\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
        request(b"{}", b"Content-Encoding: gzip"),
        request(b"{}", b"Expect: something"),
    ],
    ids=lambda sent: repr(sent[:40]),
)
async def test_what_is_no_http_is_refused_without_noise(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with calm(caplog) as w:
        raw = await raw_http(w, sent)
        assert raw.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), raw


async def test_methods_and_paths_that_are_not_there(caplog: pytest.LogCaptureFixture) -> None:
    async with calm(caplog) as w:
        for method in ("HEAD", "GET", "PUT", "TRACE"):
            async with w.http.request(method, w.url + CHAT) as answer:
                assert answer.status == 405
        async with w.http.head(w.url + "/health") as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    "target",
    [
        b"/v1/models/../../metrics",
        b"/v1/models/%2e%2e/%2e%2e/metrics",
        b"/v1/models/..%2f..%2fmetrics",
    ],
)
async def test_only_the_listed_paths_of_an_engine_are_open(
    target: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with calm(caplog) as w:
        raw = await raw_http(
            w, b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        assert raw.startswith(b"HTTP/1.1 404")
        assert b"block_size" not in raw


async def test_a_target_with_a_host_of_its_own_goes_nowhere_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with calm(caplog) as w:
        head = b"GET http://10.1.1.1/v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        assert (await raw_http(w, head)).startswith(b"HTTP/1.1 200")


# Time.


async def test_a_body_that_never_ends_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    async with calm(caplog, limits={"idle": 0.2}) as w:
        for path in (b"/v1/completions", b"/tokenize"):
            raw = await raw_http(
                w,
                b"POST "
                + path
                + b" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
                end=b'"code":408',
            )
            assert raw.startswith(b"HTTP/1.1 408")


async def test_the_whole_limit_ends_a_stream_with_an_error_event(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with calm(caplog, limits={"total": 0.3}) as w:
        w.d.words, w.d.gap = 1000, 0.02
        status, raw = await post(w, turn(stream=True))
        assert status == 200
        last = json.loads(raw.decode().strip().split("\n\n")[-1][6:])
        assert last["error"]["type"] == "timeout"
        await w.until(lambda: w.d.left == 1)


async def test_a_client_that_never_reads_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    async with calm(caplog, limits={"idle": 0.3}) as w:
        w.d.words = 20_000
        w.d.long_word = "x" * 1000
        body = json.dumps(turn(stream=True)).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", urlsplit(w.url).port)
        writer.write(request(body))
        await w.until(lambda: w.d.left == 1, 20)
        writer.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("warm", [False, True])
async def test_a_client_may_leave_at_any_moment(
    stream: bool, warm: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever was going on: no handle used twice, none lost but to a leg, all gauges at zero."""
    async with calm(caplog) as w:
        w.d.gap = 0.003
        slow = {"p": 0.02, "d": 0.02}

        async def late(request: web.Request, body: dict[str, Any]) -> None:
            await asyncio.sleep(slow["p"])

        w.p.fault = w.d.fault = late
        history = [user(LONG)]
        if warm:
            _, first, _ = await w.ask(history)
            history += [answered(first), user("more")]
        for step in range(25):
            task = asyncio.create_task(w.ask(history, stream=stream))
            await asyncio.sleep(0.004 * step)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0.2)
        status, _, told = await w.ask(history, stream=stream)
        assert (status, told["retries"]) == (200, [])
        await w.until(lambda: not w.router.shared.background._tasks)


async def test_decode_gets_its_blocks_before_it_is_left(caplog: pytest.LogCaptureFixture) -> None:
    """vLLM sends its head at once, and pulls blocks between that and the first event."""
    head, first = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        head.set()
        await asyncio.sleep(0.3)
        first.set()
        while True:
            await response.write(b'data: {"choices":[]}\n\n')
            await asyncio.sleep(0.01)

    async with calm(caplog) as w:
        w.d.fault = slow
        task = asyncio.create_task(w.ask([user(LONG)], stream=True))
        await head.wait()
        await asyncio.sleep(0.05)
        task.cancel()
        await w.until(lambda: w.d.left == 1)
        assert first.is_set()


async def test_who_leaves_while_a_handle_is_kept_does_not_stop_that(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A store on a network takes a while; decode holds the blocks whoever waits for the end."""
    async with calm(caplog) as w:
        store = w.router.shared.store
        find, asked, go = store.find, asyncio.Event(), asyncio.Event()

        async def slow(*args: Any) -> Any:
            asked.set()
            await go.wait()
            return await find(*args)

        store.find = slow  # type: ignore[method-assign]
        task = asyncio.create_task(w.ask([user(LONG)], stream=True))
        await asked.wait()
        task.cancel()
        await w.until(lambda: w.router.in_flight.count == 0)
        go.set()
        await w.until(lambda: not w.router.shared.background._tasks)
        assert (await store.totals())[w.d.url].handles == len(w.d.held) == 1


async def test_who_leaves_while_room_is_made_leaves_nothing_on_decode(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What a store on a network has given out is nowhere else."""
    async with calm(caplog) as w:
        await w.ask([user(LONG)])
        store = w.router.shared.store
        take_least, taken, go = store.take_least, asyncio.Event(), asyncio.Event()

        async def slow(*args: Any) -> Any:
            handles = await take_least(*args)
            taken.set()
            await go.wait()
            return handles

        store.take_least = slow  # type: ignore[method-assign]
        w.router.shared.fleet.decode[w.d.url].capacity_tokens = 4
        task = asyncio.create_task(w.ask([user("something else")], conversation_id="other"))
        await taken.wait()
        task.cancel()
        await w.until(lambda: w.router.in_flight.count == 0)
        go.set()
        await w.until(lambda: not w.router.shared.background._tasks)
        assert (len(w.d.held), len(w.p.released)) == (0, 1)


async def test_who_leaves_with_a_claimed_handle_leaves_it_to_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with calm(caplog) as w:
        _, first, _ = await w.ask([user(LONG)])
        store = w.router.shared.store
        asked = asyncio.Event()

        async def never() -> Any:
            asked.set()
            await asyncio.sleep(3600)

        totals, store.totals = store.totals, never  # type: ignore[method-assign]
        task = asyncio.create_task(w.ask([user(LONG), answered(first), user("more")]))
        await asked.wait()
        task.cancel()
        await w.until(lambda: w.router.in_flight.count == 0)
        store.totals = totals  # type: ignore[method-assign]
        await w.until(lambda: not w.d.held)
        assert (await totals())[w.d.url].handles == 0


@pytest.mark.parametrize("begun", [False, True])
async def test_the_handle_of_an_answer_that_nobody_read_is_found(
    begun: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decode was done before it heard that its client is gone."""
    begins, blocked, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def never(*args: Any, **kwargs: Any) -> None:
        blocked.set()
        await asyncio.sleep(3600)

    async def at_once(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        begins.set()
        w.d.held["d"], handle = [1], w.d._params("d", 20)
        chunks = [
            chunk async for chunk in w.d._chunks(body, ids_of(body), ["a", "b"], [2, 3], handle)
        ]
        events = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
        if begun:
            await response.write(b"".join(events[:2]))
            events = events[2:]
        await (blocked if begun else left).wait()
        await response.write(b"".join(events))
        ended.set()
        await asyncio.sleep(3600)
        return response

    async with calm(caplog) as w:
        left = asyncio.Event()
        w.d.fault = at_once
        if begun:
            monkeypatch.setattr(relay.StreamRelay, "_write", never)
        task = asyncio.create_task(w.ask([user(LONG)], stream=True))
        await (ended if begun else begins).wait()
        await asyncio.sleep(0.05)
        task.cancel()
        await w.until(lambda: w.router.in_flight.count == 0)
        left.set()
        await w.until(lambda: not w.router.shared.background._tasks)
        kept = (await w.router.shared.store.totals()).get(w.d.url, Total())
        assert len(w.d.held) == kept.handles


async def test_who_reads_slowly_and_leaves_makes_no_handle_younger(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decode ended, and its TTL began, before the client kept the router waiting."""
    blocked = asyncio.Event()

    async def never(*args: Any) -> None:
        blocked.set()
        await asyncio.sleep(3600)

    async def at_once(request: web.Request, body: dict[str, Any]) -> web.Response:
        w.d.held["d"], handle = [1], w.d._params("d", 20)
        chunks = [
            chunk async for chunk in w.d._chunks(body, ids_of(body), ["a", "b"], [2, 3], handle)
        ]
        events = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
        return web.Response(body=b"".join(events), content_type="text/event-stream")

    async with calm(caplog, ttl=100.0) as w:
        w.d.fault = at_once
        monkeypatch.setattr(relay, "_NO_WAIT_BYTES", 0)
        monkeypatch.setattr(relay._Stream, "write", never)
        task = asyncio.create_task(w.ask([user(LONG)], stream=True))
        await blocked.wait()
        ended = time.monotonic()
        await asyncio.sleep(0.5)
        task.cancel()
        store = w.router.shared.store
        assert isinstance(store, MemoryStore)
        await w.until(lambda: len(store) == 1)
        (handle,) = await store.take_all()
        assert handle.deadline <= ended + 100.0 + 0.2


async def test_many_turns_of_one_conversation_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async with calm(caplog) as w:
        _, first, _ = await w.ask([user(LONG)])
        history = [user(LONG), answered(first)]
        results = await asyncio.gather(
            *(w.ask([*history, user(f"t{i}")], stream=bool(i % 2)) for i in range(200))
        )
        assert {status for status, _, _ in results} == {200}
        assert all(not told["retries"] for _, _, told in results)
        assert (await w.router.state())["handles"] <= 4
        async with w.http.delete(f"{w.url}/v1/conversations/c"):
            pass
        await w.until(lambda: not w.d.held)


async def test_requests_in_a_row_on_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with calm(caplog) as w:
        body = json.dumps(turn(stream=True)).encode()
        one = request(body).replace(b"Connection: close\r\n", b"")
        raw = await raw_http(w, one * 4 + request(body))
        assert raw.count(b"HTTP/1.1 200 OK") == 5
        assert raw.count(b"[DONE]") == 5


async def test_an_old_client_gets_a_stream_too(caplog: pytest.LogCaptureFixture) -> None:
    async with calm(caplog) as w:
        body = json.dumps(turn(stream=True)).encode()
        raw = await raw_http(w, request(body).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        assert b"[DONE]" in raw
        assert b"chunked" not in raw


async def test_an_offer_of_another_protocol_is_declined(caplog: pytest.LogCaptureFixture) -> None:
    async with calm(caplog) as w:
        body = json.dumps(turn()).encode()
        upgrade = request(body, b"Upgrade: h2c").replace(
            b"Connection: close", b"Connection: Upgrade, close"
        )
        assert b'"finish_reason"' in await raw_http(w, upgrade)


# The request log.


async def test_a_full_disk_costs_the_log_not_the_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with calm(caplog, request_log=Path("/dev/full")) as w:
        for _ in range(3):
            status, _ = await post(w, turn())
            assert status == 200
    assert sum("request log" in record.getMessage() for record in caplog.records) == 1


# Who does not read.


def deaf(w: World, body: dict[str, Any], path: str = CHAT) -> socket.socket:
    """A client that has asked, and does not read what it gets."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", urlsplit(w.url).port))
    client.sendall(request(json.dumps(body).encode(), path=path.encode()))
    return client


def open_connections(w: World) -> int:
    """The kernel's view of who is connected to the router."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    local = f":{urlsplit(w.url).port:04X}"
    return sum(each[1].endswith(local) and each[3] == "01" for each in fields)


async def large(request: web.Request) -> web.Response:
    return web.Response(body=bytes(LARGE))


@pytest.mark.parametrize("path", [CHAT, "/v1/responses"])
async def test_who_does_not_read_loses_the_connection(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Closed in the usual way it would stay open for as long as something is left to be sent."""
    async with calm(caplog, limits={"idle": 0.5}) as w:
        w.d.words, w.d.long_word, w.d.passed = 4000, "x" * 4000, large
        client = deaf(w, turn(stream=True), path)
        await w.until(lambda: w.router.in_flight.count == 1)
        assert open_connections(w) == 1
        await w.until(lambda: w.router.in_flight.count == open_connections(w) == 0)
        client.close()


# The end of the router.


async def test_a_router_that_stops_waits_until_an_answer_is_read() -> None:
    p, d = FakeEngine("prefill"), FakeEngine("decode", passed=large)
    async with running(p, d), aiohttp.ClientSession() as http, AsyncExitStack() as life:
        router = Router(RouterSettings((p.url,), (d.url,), port=0))
        w = World(await life.enter_async_context(serving(router)), router, p, d, http)
        await router.watcher.look()
        client = deaf(w, {}, "/v1/responses")
        await w.until(lambda: router.in_flight.count == 1)
        await asyncio.sleep(0.1)
        stopping = asyncio.create_task(life.pop_all().aclose())
        done, _ = await asyncio.wait({stopping}, timeout=1.5)
        assert not done
        client.setblocking(False)
        got = 0
        async with asyncio.timeout(10):
            while part := await asyncio.get_running_loop().sock_recv(client, 2**16):
                got += len(part)
            await stopping
        assert got > LARGE
        client.close()


async def test_a_body_that_is_not_there_when_a_router_ends_is_told_so() -> None:
    async with world(limits={"drain": 0.3}) as w:
        sent = request(json.dumps(turn()).encode())[:-9]
        asked = asyncio.create_task(raw_http(w, sent, end=b"\r\n\r\n"))
        await w.until(lambda: w.router.in_flight.count == 1)
        w.router.shared.patience.end()
        assert (await asked).startswith(b"HTTP/1.1 408 ")


async def test_a_router_that_stops_says_so_and_takes_no_more_work() -> None:
    p, d = FakeEngine("prefill"), FakeEngine("decode")
    p.peer, d.words, d.gap = d, 50, 0.02
    async with running(p, d), aiohttp.ClientSession() as http, AsyncExitStack() as life:
        router = Router(RouterSettings((p.url,), (d.url,), port=0))
        w = World(await life.enter_async_context(serving(router)), router, p, d, http)
        await router.watcher.look()
        d.seen.clear()
        turn = asyncio.create_task(w.ask([user(LONG)], stream=True))
        await w.until(lambda: len(d.seen) == 1)

        stopping = asyncio.create_task(life.pop_all().aclose())
        await w.until(lambda: router.shared.patience.ending)
        async with aiohttp.ClientSession() as another, another.get(f"{w.url}/ready") as answer:
            assert answer.status == 503
            assert not (await answer.json())["ready"]
        async with http.post(f"{w.url}/v1/completions", json={"prompt": "x"}) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
            assert answer.headers["Connection"] == "close"
            assert (await answer.json())["error"]["type"] == "stopping"
        assert not stopping.done()

        status, words, _ = await turn
        assert (status, words.count(b"data: ")) == (200, 52)  # the role before, the end after
        async with asyncio.timeout(1):
            await stopping
        with pytest.raises(aiohttp.ClientConnectorError):
            await http.get(f"{w.url}/health")


async def test_an_idle_router_stops_at_once() -> None:
    router = Router(RouterSettings(("http://127.0.0.1:9",), ("http://127.0.0.1:9/d",), port=0))
    async with asyncio.timeout(1), serving(router):
        pass


@pytest.mark.parametrize("stream", [False, True])
async def test_what_runs_too_long_after_a_stop_ends_with_words(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with calm(caplog, limits={"drain": 0.3}) as w:
        w.d.words, w.d.gap = 1000, 0.02
        w.d.fault = (lambda request, body: asyncio.sleep(5)) if not stream else None
        task = asyncio.create_task(w.ask([user(LONG)], stream=stream))
        await w.until(lambda: len(w.d.seen) == 1)
        w.router.shared.patience.end()
        status, answer, _ = await task
        assert status == (200 if stream else 504)
        said = json.loads(answer.decode().strip().split("\n\n")[-1][6:]) if stream else answer
        assert said["error"]["type"] == "timeout"


async def test_a_stop_while_an_answer_that_took_too_long_waits_for_its_client(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its limit has passed and cannot be moved; and who does not read does not hold up the end."""
    blocked = asyncio.Event()

    async def never(*args: Any) -> None:
        blocked.set()
        await asyncio.sleep(3600)

    monkeypatch.setattr(relay, "_NO_WAIT_BYTES", 0)
    monkeypatch.setattr(relay._Stream, "write_eof", never)
    async with calm(caplog, limits={"total": 0.3, "idle": 0.5}) as w:
        w.d.words, w.d.gap = 1000, 0.02
        task = asyncio.create_task(w.ask([user(LONG)], stream=True))
        await blocked.wait()
        w.router.shared.patience.end()
        await w.until(lambda: w.router.in_flight.count == 0)
        await asyncio.gather(task, return_exceptions=True)


def test_the_router_takes_as_many_files_as_it_may(caplog: pytest.LogCaptureFixture) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(1000, hard), hard))
        allow_many_files(hard)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        assert "ulimit -n" in caplog.text
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("said", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"])
async def test_who_does_not_say_what_it_wants_is_not_waited_for(said: bytes) -> None:
    async with world(limits={"idle": 0.2}) as w:
        parts = urlsplit(w.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(said)
        async with asyncio.timeout(5):
            assert b" 200 " not in await reader.read()
        writer.close()
