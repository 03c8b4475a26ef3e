"""Engines that answer with garbage, break off or are silent: the client hears something clear."""

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from tests.router.fake import error
from tests.router.test_odd_clients import calm, post, turn
from tests.router.test_server import LONG, answered, user

Fault = Callable[[web.Request, dict[str, Any]], Any]
CHOICE = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
GOOD_KV = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_block_ids": [[1, 2, 3, 4]],
    "remote_engine_id": "start1",
    "remote_request_id": "r1",
    "remote_host": "10.0.0.2",
    "remote_port": 5601,
    "remote_num_tokens": 13,
}


def says(body: Any, status: int = 200, content_type: str = "application/json") -> Fault:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return lambda request, _: web.Response(status=status, body=raw, content_type=content_type)


def streams(
    *pieces: bytes, pause: float = 0.0, abort: bool = False
) -> Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(pause)
        if abort:
            await asyncio.sleep(0.05)
            assert request.transport is not None
            request.transport.abort()
        return response

    return answer


def events(raw: bytes) -> list[Any]:
    found = [e[6:] for e in raw.decode().split("\n\n") if e.startswith("data: ")]
    return [None if e == "[DONE]" else json.loads(e) for e in found]


def chunk(content: str, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": None}
    top = {k: more.pop(k) for k in ("kv_transfer_params", "usage") if k in more}
    return b"data: " + json.dumps({"choices": [choice | more], **top}).encode() + b"\n\n"


NO_ANSWERS: list[Fault] = [
    says(b"not json"),
    says(b""),
    says([1]),
    says({}),
    says({"choices": None}),
    says({"choices": []}),
    says({"choices": {"a": 1}}),
    says({"choices": ["x", None]}),
    says({"choices": [CHOICE | {"finish_reason": "error"}], "kv_transfer_params": GOOD_KV}),
    says(b'{"kv_transfer_params":{"remote_host":"10.0.0.2"},'),
    says({}, 204),
    says({"Location": 1}, 302),
    says(b"", 500),
    says(b"<html>nginx</html>", 502, "text/html"),
    streams(),
    streams(b": ping\n"),
    streams(b'data: {"error":{"message":"x"}}\n\n'),
    streams(chunk("a", finish_reason="error", kv_transfer_params=GOOD_KV)),
]


@pytest.mark.parametrize("fault", NO_ANSWERS)
@pytest.mark.parametrize("stream", [False, True])
async def test_decode_that_gives_no_answer(
    fault: Fault, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with calm(caplog) as w:
        w.d.fault = fault
        status, raw = await post(w, turn(stream=stream))
        assert status >= 500
        if b"nginx" not in raw:
            assert status != 500 or not raw or json.loads(raw)["error"]
            assert not raw or json.loads(raw)["error"]["message"]
        assert b"10.0.0.2" not in raw
        assert b"127.0.0.1" not in raw


@pytest.mark.parametrize("fault", NO_ANSWERS[:-2])
async def test_prefill_that_gives_no_answer(fault: Fault, caplog: pytest.LogCaptureFixture) -> None:
    async with calm(caplog) as w:
        _, first, _ = await w.ask([user(LONG)])
        w.p.fault = fault
        history = [user(LONG), answered(first), user("more")]
        for _ in range(2):
            status, _, told = await w.ask(history)
            assert (status, told["outcome"]) == (200, "MISS")


ODD_USAGE = [None, [], "x", {"prompt_tokens": "x"}, {"prompt_tokens": -5}, {"prompt_tokens": 1.5},
             {"prompt_tokens_details": [1]}, {"prompt_tokens_details": {"cached_tokens": "x"}},
             {"completion_tokens": "x"}, {"completion_tokens": -1}]  # fmt: skip
ODD_IDS = [None, "x", ["a"], [None], [1.5], [-1], [2**40], [[1]], {"a": 1}, [1, "a"]]
ODD_KV = [
    None,
    [],
    "x",
    {},
    *(
        GOOD_KV | {name: value}
        for name, values in {
            "remote_block_ids": [
                None, "x", [], [[]], [None], ["x"], [["a"]], [[None]], [[[1]]], [[-1]], [[1], [2]],
                {"0": [1]}, [[1.5]], 7,
            ],
            "remote_num_tokens": [None, "13", -1, 0, 13.5, [1], 10**6],
            "remote_engine_id": [None, 5, {"a": 1}],
            "remote_request_id": [None, ["r"], {"a": 1}],
            "remote_port": [None, "x"],
            "dcp_size": ["1", [1], 2],
            "transfer_mode": ["push", 5],
        }.items()
        for value in values
    ),
]  # fmt: skip


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("stream", [False, True])
async def test_odd_counts_ids_and_handles(
    role: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer reaches the client, and nothing that is not certain is kept or offered."""

    def shown(field: str, value: Any) -> Fault:
        answer = {"choices": [CHOICE | {"token_ids": [1]}], "usage": {"prompt_tokens": 12}}
        answer |= {"kv_transfer_params": GOOD_KV, "prompt_token_ids": list(range(12))}
        if field == "token_ids":
            answer["choices"] = [CHOICE | {"token_ids": value}]
        elif field == "choice_ids":
            answer["prompt_token_ids"] = None
            answer["choices"] = [CHOICE | {"prompt_token_ids": value}]
        else:
            answer[field] = value
        if role == "prefill" or not stream:
            return says(answer)
        last = {k: v for k, v in answer.items() if k != "choices"}
        end = {"index": 0, "delta": {}, "finish_reason": "stop"}
        end |= {k: v for k, v in answer["choices"][0].items() if k.endswith("ids")}
        event = b"data: " + json.dumps({"choices": [end], **last}).encode() + b"\n\n"
        return streams(chunk("a"), event, b"data: [DONE]\n\n")

    cases = [("usage", v) for v in ODD_USAGE] + [("prompt_token_ids", v) for v in ODD_IDS]
    cases += [("choice_ids", v) for v in ODD_IDS] + [("token_ids", v) for v in ODD_IDS]
    cases += [("kv_transfer_params", v) for v in ODD_KV]
    async with calm(caplog) as w:
        for number, (field, value) in enumerate(cases):
            (w.p if role == "prefill" else w.d).fault = shown(field, value)
            for _ in range(2):
                body = turn(stream=stream, conversation_id=f"c{number}")
                status, raw = await post(w, body)
                assert status == 200, (field, value, raw)
                assert b"10.0.0.2" not in raw, (field, value)
                assert b'token_ids":[' not in raw.replace(b": [", b":["), (field, value)
        w.p.fault = w.d.fault = None
        counted = w.router.shared.metrics.alarms.collect()[0].samples
        assert not [each for each in counted if each.name.endswith("_total") and each.value]


@pytest.mark.parametrize("counted", ["x", None, -1, [], 1.5, 10**9])
async def test_an_odd_count_of_pulled_tokens(
    counted: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with calm(caplog) as w:
        _, first, _ = await w.ask([user(LONG)])
        original = w.p._answer

        def odd(body: Any, ids: Any, out: Any, kv: Any) -> web.Response:
            return original(body, ids, out, kv | {"remote_prefill_cached_tokens": counted})

        w.p._answer = odd  # type: ignore[method-assign]
        status, _, _ = await w.ask([user(LONG), answered(first), user("more")])
        assert status == 200


# Streams in odd shapes.


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("single", [False, True])
async def test_any_cut_and_any_newline_is_the_same_stream(
    newline: str, single: bool, caplog: pytest.LogCaptureFixture
) -> None:
    parts = [
        b": a comment\n\n",
        chunk("a"),
        b": ping\n" + chunk("b", token_ids=[5], kv_transfer_params=GOOD_KV),
        b"id: 7\n" + chunk("c", token_ids=[6]),
        chunk("d", finish_reason="stop", token_ids=[7], kv_transfer_params=GOOD_KV),
        b"data: [DONE]\n\n",
    ]
    whole = b"".join(parts).replace(b"\n", newline.encode())
    pieces = [whole[i : i + 1] for i in range(len(whole))] if single else [whole]
    async with calm(caplog) as w:
        w.d.fault = streams(*pieces)
        status, raw = await post(w, turn(stream=True))
        assert status == 200
        text = raw.replace(b"\r\n", b"\n")
        assert [word for word in (b'"a"', b'"b"', b'"c"', b'"d"') if word not in text] == []
        assert b"[DONE]" in text
        assert b"10.0.0.2" not in text
        assert b'token_ids":[' not in text.replace(b": [", b":[")


@pytest.mark.parametrize("abort", [False, True])
async def test_a_stream_that_ends_too_early_says_so(
    abort: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with calm(caplog) as w:
        w.d.fault = streams(chunk("a"), chunk("b"), abort=abort)
        status, raw = await post(w, turn(stream=True))
        assert status == 200
        assert events(raw)[-1]["error"]["type"] == "decode_interrupted"


async def test_a_stream_that_breaks_behind_its_end_keeps_its_order(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with calm(caplog) as w:
        end = chunk("b", finish_reason="stop", kv_transfer_params=GOOD_KV)
        w.d.fault = streams(chunk("a"), end, abort=True)
        _, raw = await post(w, turn(stream=True))
        assert events(raw)[-2]["choices"][0]["finish_reason"] == "stop"
        assert events(raw)[-1]["error"]["type"] == "decode_interrupted"


async def test_an_error_after_content_reaches_the_client_without_a_handle(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with calm(caplog) as w:
        bad = {"error": {"message": "out of memory"}, "kv_transfer_params": GOOD_KV}
        w.d.fault = streams(chunk("a"), b"data: " + json.dumps(bad).encode() + b"\n\n")
        _, raw = await post(w, turn(stream=True))
        assert events(raw)[-1] == {"error": {"message": "out of memory"}}
        assert (await w.router.state())["handles"] == 0


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"choices":{"a":1}}\n\n',
        b'data: {"choices":[null,"x"]}\n\n',
        b'data: {"choices":[{"delta":"x","token_ids":"x"}]}\n\n',
        b'data: {"choices":[],"usage":"x"}\n\n',
        b"data: [1]\n\n",
        b"data: nonsense\n\n",
        b"data\n\n",
        b"\xff\xfe\n\n",
        b"\n\n\n\n",
    ],
)
async def test_odd_events_do_not_end_a_stream(
    event: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with calm(caplog) as w:
        end = [chunk("b", finish_reason="stop"), b"data: [DONE]\n\n"]
        for pieces in ([chunk("a"), event, *end], [event, chunk("a"), *end]):
            w.d.fault = streams(*pieces)
            status, raw = await post(w, turn(stream=True))
            assert status == 200
            assert raw.endswith(b"data: [DONE]\n\n")
            assert b"error" not in raw


async def test_a_compressed_answer_is_read(caplog: pytest.LogCaptureFixture) -> None:
    async def squeezed(request: web.Request) -> web.Response:
        assert request.headers["Accept-Encoding"] == "identity"
        return web.Response(
            body=gzip.compress(b'{"a": 1}'),
            headers={"Content-Encoding": "gzip", "Content-Type": "application/json"},
        )

    def answer(request: web.Request, body: dict[str, Any]) -> web.Response:
        return web.Response(
            body=gzip.compress(json.dumps({"choices": [CHOICE]}).encode()),
            headers={"Content-Encoding": "gzip", "Content-Type": "application/json"},
        )

    async with calm(caplog) as w:
        w.d.passed = squeezed
        assert await post(w, {}, "/v1/embeddings") == (200, b'{"a": 1}')
        w.d.fault = answer
        status, raw = await post(w, turn())
        assert (status, json.loads(raw)["choices"][0]["finish_reason"]) == (200, "stop")


async def test_a_redirect_of_an_engine_is_not_followed(caplog: pytest.LogCaptureFixture) -> None:
    hit: list[str] = []

    async def other(request: web.Request) -> web.Response:
        hit.append(request.path)
        return web.json_response({"choices": [CHOICE]})

    async with calm(caplog) as w:
        w.d.passed = other
        to = {"Location": f"{w.d.url}/v1/messages"}
        w.p.fault = w.d.fault = lambda request, body: web.Response(status=307, headers=to)
        status, raw = await post(w, turn())
        assert status == 502
        assert json.loads(raw)["error"]["type"] == "engine_unavailable"
        assert hit == []


# What is passed on.


async def test_a_passed_request_has_limits(caplog: pytest.LogCaptureFixture) -> None:
    async def silent(request: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    async with calm(caplog, limits={"total": 0.3, "idle": 0.3}) as w:
        w.d.passed = silent
        status, raw = await post(w, {}, "/v1/embeddings")
        assert (status, json.loads(raw)["error"]["code"]) == (504, 504)


@pytest.mark.parametrize("stops", [False, True])
async def test_a_passed_answer_that_goes_on_for_ever_ends_with_words(
    stops: bool, caplog: pytest.LogCaptureFixture
) -> None:
    begun = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        begun.set()
        while True:
            await response.write(b"data: 1\n\n")
            await asyncio.sleep(0.01)

    async with calm(caplog, limits={"total": 60 if stops else 0.3, "drain": 0.3}) as w:
        w.d.passed = endless
        task = asyncio.create_task(post(w, {}, "/v1/responses"))
        await begun.wait()
        if stops:
            w.router.shared.patience.end()
        async with asyncio.timeout(5):
            status, raw = await task
        assert status == 200
        assert json.loads(raw.strip().split(b"\n\n")[-1][6:])["error"]["type"] == "timeout"


@pytest.mark.parametrize("abort", [False, True])
async def test_a_passed_answer_that_breaks_off(
    abort: bool, caplog: pytest.LogCaptureFixture
) -> None:
    kind = ""

    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": kind})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await asyncio.sleep(0.05 if abort else 30)
        assert request.transport is not None
        request.transport.abort()
        return response

    async with calm(caplog, limits={"total": 0.4, "idle": 0.3}) as w:
        w.d.passed = half
        kind = "text/event-stream"
        status, raw = await post(w, {}, "/v1/responses")
        assert status == 200
        assert json.loads(raw.decode().strip().split("\n\n")[-1][6:])["error"]["code"] == 502
        kind = "application/json"
        status, raw = await post(w, {}, "/v1/responses")
        assert status == (502 if abort else 504)
        assert json.loads(raw)["error"]["message"]


# The watch.


@pytest.mark.parametrize(
    "metrics",
    [
        b"garbage {{{",
        b"\xff\xfe",
        b"",
        b"vllm:cache_config_info{} 1\n",
        b'vllm:cache_config_info{block_size="None"} 1\n',
        b'vllm:cache_config_info{block_size="-4"} 1\n',
        b'vllm:cache_config_info{block_size="4"} x\n',
    ],
)
async def test_metrics_that_say_nothing_leave_the_pair_serving(
    metrics: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with calm(caplog) as w:
        for engine in (w.p, w.d):
            engine.metrics = metrics
        fleet = w.router.shared.fleet
        for engine in fleet.engines():
            fleet.engine_down(engine.url, "test")
            engine.block_size = None
        await w.router.watcher.look()
        assert all(engine.healthy for engine in fleet.engines())
        status, _, _ = await w.ask([user(LONG)])
        assert status == 200
        assert (await w.router.state())["pairs"][0]["reason"]


async def test_an_engine_that_flaps_costs_reuse_not_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with calm(caplog) as w:
        _, first, _ = await w.ask([user(LONG)])
        history = [user(LONG), answered(first), user("more")]
        for up in (False, True, False, True):
            w.d.up = w.p.up = up
            await w.router.watcher.look()
            status, _, told = await w.ask(history)
            assert status == (200 if up else 503)
            assert told.get("retries", []) == []
        assert (await w.router.state())["pairs"][0]["ok"]


async def test_a_probe_of_garbage_gives_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    def odd_tokenize(value: Any) -> Any:
        async def answer(request: web.Request) -> web.Response:
            return web.json_response(value)

        return answer

    async with calm(caplog) as w:
        (pair,) = w.router.shared.fleet.pairs.values()
        for value in ({"tokens": ["a"]}, {"tokens": None}, {"tokens": [1], "max_model_len": "x"}):
            w.p.tokenizes = odd_tokenize(value)
            pair.verdict = "unknown"
            await w.router.watcher.look()
            assert pair.verdict != "unknown"
        w.p.tokenizes = None
        for kv in ODD_KV:
            w.d.fault = says({"choices": [CHOICE], "kv_transfer_params": kv})
            pair.verdict = "unknown"
            await w.router.watcher.look()
            assert pair.verdict == "no_reuse", kv
            assert pair.why
        # What is given back goes as it came, in a request that prefill rejects.
        read = [body for body in w.p.seen if not body.get("use_beam_search")]
        sent = [body.get("kv_transfer_params", {}) for body in read]
        assert all(kv.get("remote_num_tokens", 0) >= 0 for kv in sent)


@pytest.mark.parametrize(
    "fault", [{"tokens": ["a"]}, {"tokens": [2**40]}, {"tokens": {}}, [], "x", 500]
)
async def test_a_tokenizer_that_fails_costs_reuse(
    fault: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return error(500, "x") if fault == 500 else web.json_response(fault)

    async with calm(caplog) as w:
        _, first, _ = await w.ask([user(LONG)])
        w.p.tokenizes = answer
        status, _, told = await w.ask([user(LONG), answered(first), user("more")])
        assert (status, told["reason"]) == (200, "prompt_not_rendered")


async def test_two_turns_that_the_engine_names_alike(caplog: pytest.LogCaptureFixture) -> None:
    async with calm(caplog) as w:
        w.d._count = iter([0] * 100)
        for name in ("a", "b", "a", "b"):
            for _ in range(3):
                status, _, _ = await w.ask([user(LONG)], conversation_id=name)
                assert status == 200
