"""The turn client: what it sends, what it makes of every kind of answer, and its times."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from pdctl.base.errors import UnreachableError
from pdctl.base.sse import SseSplitter, data_of
from pdctl.observe.turns import (
    Turn,
    TurnLimits,
    TurnReader,
    TurnRequest,
    TurnTimeoutError,
    send_turn,
)
from tests.observe.fakes import serve_app

CHAT = TurnRequest(model="m", messages=[{"role": "user", "content": "hi"}])
Handler = Callable[[web.Request], Any]


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def app_of(handler: Handler) -> web.Application:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    app.router.add_post("/v1/completions", handler)
    return app


def streaming(*pieces: bytes, cut: bool = False, headers: dict[str, str] | None = None) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", **(headers or {})}
        )
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        if cut:
            assert request.transport is not None
            request.transport.abort()
        return response

    return handle


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def delta(finish: str | None = None, **fields: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": fields, "finish_reason": finish}])


DONE = b"data: [DONE]\n\n"


async def ask(
    session: aiohttp.ClientSession, handler: Handler, request: TurnRequest = CHAT, **options: Any
) -> Turn:
    async with serve_app(app_of(handler)) as url:
        return await send_turn(session, url + "/", request, **options)


# --- what is sent ---------------------------------------------------------------------------


def test_a_chat_asks_for_usage_in_the_stream() -> None:
    assert CHAT.path == "/v1/chat/completions"
    assert CHAT.body() == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 16,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert CHAT.sent_headers() == {"content-type": "application/json"}


def test_every_option_has_its_place_and_extra_wins() -> None:
    request = TurnRequest(
        model="m",
        prompt=(5, 6),
        max_tokens=4,
        stream=False,
        ignore_eos=True,
        return_token_ids=True,
        cache_salt="s",
        conversation_id="c",
        explain=True,
        api_key="secret",
        extra={"temperature": 1, "logprobs": 2},
        headers={"x-a": "b"},
    )
    assert request.path == "/v1/completions"
    assert request.body() == {
        "model": "m",
        "prompt": [5, 6],
        "max_tokens": 4,
        "temperature": 1,
        "stream": False,
        "ignore_eos": True,
        "return_token_ids": True,
        "cache_salt": "s",
        "conversation_id": "c",
        "logprobs": 2,
    }
    assert request.sent_headers() == {
        "content-type": "application/json",
        "x-conversation-id": "c",
        "x-pdctl-explain": "1",
        "authorization": "Bearer secret",
        "x-a": "b",
    }
    assert "secret" not in repr(request)


def test_a_turn_is_a_chat_or_a_completion_never_both() -> None:
    with pytest.raises(ValueError, match="either messages or a prompt"):
        TurnRequest(model="m")
    with pytest.raises(ValueError, match="either messages or a prompt"):
        TurnRequest(model="m", prompt="a", messages=[])


# --- what comes back ------------------------------------------------------------------------


async def test_a_streamed_chat(session: aiohttp.ClientSession) -> None:
    explanation = {"outcome": "HIT", "reused_tokens": 7, "prompt_tokens": 9, "new_field": 1}
    turn = await ask(
        session,
        streaming(
            b": keep-alive\n\n",
            event(prompt_token_ids=[1, 2], choices=[{"index": 0, "delta": {"role": "assistant"}}]),
            event(choices=[{"index": 0, "delta": {"reasoning": "hm"}, "token_ids": [3]}]),
            event(choices=[{"index": 0, "delta": {"content": "he"}, "token_ids": [4]}]),
            event(choices=[{"index": 1, "delta": {"content": "other"}}]),
            delta(finish="stop", content="llo"),
            event(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 3}),
            DONE,
            headers={"X-Pdctl-Turn": json.dumps(explanation)},
        ),
    )
    assert turn.ok
    assert turn.text == "hello"
    assert turn.reasoning == "hm"
    assert turn.message == {"role": "assistant", "content": "hello", "reasoning": "hm"}
    assert turn.finish_reason == "stop"
    assert (turn.prompt_tokens, turn.output_tokens) == (9, 3)
    assert (turn.prompt_token_ids, turn.token_ids) == ((1, 2), (3, 4))
    assert turn.explanation is not None
    assert (turn.explanation.outcome, turn.explanation.reused_tokens) == ("HIT", 7)
    assert len(turn.chunks) == 6
    assert len(turn.itl_s) == 2
    assert turn.ttft_s is not None
    assert 0 < turn.ttft_s <= turn.total_s


async def test_tool_calls_are_put_together(session: aiohttp.ClientSession) -> None:
    def call(index: int, arguments: str, **more: Any) -> dict[str, Any]:
        name = more.pop("name", None)
        return {"index": index, "function": {"name": name, "arguments": arguments}, **more}

    turn = await ask(
        session,
        streaming(
            delta(tool_calls=[call(0, "", id="a", type="function", name="get")]),
            delta(tool_calls=[call(0, '{"x"')]),
            delta(tool_calls=[call(1, "{}", id="b", type="function", name="put")]),
            delta(tool_calls=[call(0, ": 1}")]),
            delta(finish="tool_calls"),
            DONE,
        ),
    )
    assert turn.tool_calls == [
        {"id": "a", "type": "function", "function": {"name": "get", "arguments": '{"x": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "put", "arguments": "{}"}},
    ]
    assert turn.finish_reason == "tool_calls"
    assert turn.ttft_s is not None


async def test_an_answer_that_is_not_streamed(session: aiohttp.ClientSession) -> None:
    message = {"role": "assistant", "content": "hi", "annotations": None}
    answer = {
        "prompt_token_ids": [1],
        "choices": [{"index": 0, "message": message, "finish_reason": "length", "token_ids": [2]}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1},
        "kv_transfer_params": {"remote_engine_id": "e"},
    }

    async def handle(request: web.Request) -> web.Response:
        return web.json_response(answer)

    turn = await ask(session, handle, TurnRequest(model="m", prompt="x", stream=False))
    assert turn.ok
    assert turn.message == message
    assert (turn.text, turn.token_ids, turn.prompt_token_ids) == ("hi", (2,), (1,))
    assert turn.kv_transfer_params == {"remote_engine_id": "e"}
    assert turn.chunks == (answer,)
    assert (turn.ttft_s, turn.itl_s) == (None, ())


async def test_a_token_whose_text_is_held_back_is_the_first_thing(
    session: aiohttp.ClientSession,
) -> None:
    ticks: Iterator[float] = iter(range(100))
    turn = await ask(
        session,
        streaming(
            event(choices=[{"index": 0, "text": "", "token_ids": [1], "prompt_token_ids": [9]}]),
            event(choices=[{"index": 0, "text": "é", "token_ids": [2], "finish_reason": "length"}]),
            DONE,
        ),
        TurnRequest(model="m", prompt=[9], return_token_ids=True),
        clock=lambda: next(ticks),
    )
    assert turn.ttft_s == 1
    assert (turn.text, turn.token_ids, turn.prompt_token_ids) == ("é", (1, 2), (9,))
    assert turn.message == {"role": "assistant", "content": "é"}


async def test_times_are_those_of_the_events_not_of_the_role(
    session: aiohttp.ClientSession,
) -> None:
    reader = TurnReader(started=10.0)
    role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    reader.data(json.dumps(role).encode(), 11.0)
    for at in (12.0, 12.5, 14.0):
        reader.data(data_of(delta(content="x")) or b"", at)
    turn = reader.turn(status=200, headers={}, ended=15.0, streamed=True, complete=True)
    assert (turn.ttft_s, turn.itl_s, turn.total_s) == (2.0, (0.5, 1.5), 5.0)


# --- what goes wrong ------------------------------------------------------------------------


async def test_an_http_error_is_in_the_turn(session: aiohttp.ClientSession) -> None:
    async def handle(request: web.Request) -> web.Response:
        body = {"error": {"message": "too\n long", "code": 400}}
        return web.json_response(body, status=400, headers={"x-pdctl-request-id": "r"})

    turn = await ask(session, handle)
    assert not turn.ok
    assert turn.status == 400
    assert turn.error == {"error": {"message": "too\n long", "code": 400}}
    assert turn.error_text == "too long"
    assert turn.headers["x-pdctl-request-id"] == "r"
    assert turn.complete


async def test_an_error_that_is_not_json_is_kept_as_text(session: aiohttp.ClientSession) -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(status=502, text="Bad Gateway\n")

    turn = await ask(session, handle)
    assert turn.error_text == "Bad Gateway"


async def test_an_error_event_is_an_error(session: aiohttp.ClientSession) -> None:
    turn = await ask(session, streaming(delta(content="a"), event(error={"message": "gone"}), DONE))
    assert (turn.status, turn.ok, turn.text, turn.error_text) == (200, False, "a", "gone")


async def test_a_stream_without_its_end_is_not_ok(session: aiohttp.ClientSession) -> None:
    turn = await ask(session, streaming(delta(content="a")))
    assert (turn.status, turn.complete, turn.ok) == (200, False, False)
    assert turn.error_text == "the answer was cut off"


async def test_a_connection_that_breaks_in_the_stream_is_in_the_turn(
    session: aiohttp.ClientSession,
) -> None:
    turn = await ask(session, streaming(delta(content="a"), cut=True))
    assert turn.text == "a"
    assert (turn.ok, turn.complete) == (False, False)
    assert turn.error["error"]["type"] == "connection_lost"


async def test_a_chunk_that_is_not_json_is_an_error(session: aiohttp.ClientSession) -> None:
    turn = await ask(session, streaming(b"data: {oops\n\n", DONE))
    assert turn.error == {"error": {"type": "not_json", "message": "{oops"}}


async def test_nobody_there_is_unreachable(session: aiohttp.ClientSession) -> None:
    with pytest.raises(UnreachableError) as caught:
        await send_turn(session, "http://127.0.0.1:9", CHAT)
    assert caught.value.where == "http://127.0.0.1:9/v1/chat/completions"


async def test_a_connection_closed_before_the_status_is_unreachable(
    session: aiohttp.ClientSession,
) -> None:
    async def handle(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    with pytest.raises(UnreachableError):
        await ask(session, handle)


async def _silent(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(5)
    return web.Response()


async def _starts_and_stops(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(delta(content="a"))
    await asyncio.sleep(5)
    return response


async def _only_headers(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await asyncio.sleep(5)
    return response


@pytest.mark.parametrize(
    ("handler", "limits", "limit"),
    [
        (_silent, TurnLimits(first_byte=0.05), "first_byte"),
        (_only_headers, TurnLimits(first_byte=0.05), "first_byte"),
        (_starts_and_stops, TurnLimits(idle=0.05), "idle"),
        (_starts_and_stops, TurnLimits(total=0.05), "total"),
    ],
)
async def test_every_wait_has_a_limit_with_a_name(
    session: aiohttp.ClientSession, handler: Handler, limits: TurnLimits, limit: str
) -> None:
    with pytest.raises(TurnTimeoutError) as caught:
        await ask(session, handler, limits=limits)
    assert (caught.value.limit, caught.value.seconds) == (limit, 0.05)


async def test_without_a_stream_only_the_total_limits(session: aiohttp.ClientSession) -> None:
    async def handle(request: web.Request) -> web.Response:
        await asyncio.sleep(0.1)
        return web.json_response({"choices": []})

    request = TurnRequest(model="m", prompt="x", stream=False)
    turn = await ask(session, handle, request, limits=TurnLimits(first_byte=0.01))
    assert turn.ok


@given(cuts=st.lists(st.integers(min_value=1, max_value=30), max_size=40))
def test_any_chunking_gives_the_same_turn(cuts: list[int]) -> None:
    raw = delta(content="né ") + delta(content="b") + delta(finish="stop", content="c") + DONE
    reader, splitter = TurnReader(started=0.0), SseSplitter()
    rest = raw
    for cut in [*cuts, len(raw)]:
        piece, rest = rest[:cut], rest[cut:]
        for whole in splitter.feed(piece):
            reader.data(data_of(whole) or b"", 1.0)
    turn = reader.turn(status=200, headers={}, ended=2.0, streamed=True, complete=reader.done)
    assert (turn.text, turn.finish_reason, turn.complete) == ("né bc", "stop", True)
