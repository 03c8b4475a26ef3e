"""The shell with fake engines: faults, odd clients, and what must not get out."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from pdctl.config.model import RouterLimits
from pdctl.router.keys import ApiKeys, KeyFile, parse_keys
from pdctl.router.memory import MemoryStore
from pdctl.router.serve import serving
from pdctl.router.server import Router
from pdctl.router.settings import RouterSettings
from tests.router.fake import FakeEngine, error, running

LONG = "one two three four five six seven eight nine ten"


class World:
    """A router between one fake prefill and one fake decode, and a client."""

    def __init__(
        self, url: str, router: Router, p: FakeEngine, d: FakeEngine, http: aiohttp.ClientSession
    ) -> None:
        self.url, self.router, self.p, self.d, self.http = url, router, p, d, http

    async def ask(
        self, messages: list[dict[str, Any]], *, stream: bool = False, **more: Any
    ) -> tuple[int, Any, dict[str, Any]]:
        body = {"model": "m", "messages": messages, "stream": stream, "conversation_id": "c"}
        async with self.http.post(
            f"{self.url}/v1/chat/completions",
            json=body | more,
            headers={"x-pdctl-explain": "1"},
        ) as answer:
            raw = await answer.read()
            told = json.loads(answer.headers.get("x-pdctl-turn", "{}"))
            return answer.status, raw if stream else json.loads(raw), told

    async def until(self, condition: Callable[[], bool], limit: float = 5.0) -> None:
        async with asyncio.timeout(limit):
            while not condition():
                await asyncio.sleep(0.01)


@asynccontextmanager
async def world(
    *,
    limits: dict[str, Any] | None = None,
    p: FakeEngine | None = None,
    d: FakeEngine | None = None,
    api_keys: ApiKeys | None = None,
    key_file: KeyFile | None = None,
    **settings: Any,
) -> AsyncIterator[World]:
    d = d or FakeEngine("decode")
    p = p or FakeEngine("prefill")
    p.peer = d
    async with running(p, d), aiohttp.ClientSession() as http:
        router = Router(
            RouterSettings(
                (p.url,),
                (d.url,),
                port=0,
                threshold=2,
                limits=RouterLimits(**({"drain": 1.0} | (limits or {}))),
                **settings,
            ),
            api_keys=api_keys,
            key_file=key_file,
        )
        async with serving(router) as url:
            await router.watcher.look()
            p.seen.clear()
            p.pulls.clear()
            p.released.clear()
            d.seen.clear()
            d.finished = 0
            yield World(url, router, p, d, http)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answered(answer: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}


async def test_the_second_turn_reuses_the_first_streaming_or_not() -> None:
    async with world() as w:
        _, first, told = await w.ask([user(LONG)])
        assert told["outcome"] == "MISS"
        history = [user(LONG), answered(first), user("more")]
        status, raw, told = await w.ask(history, stream=True)
        assert (status, told["outcome"]) == (200, "HIT")
        assert told["reused_tokens"] == w.p.pulls[0] > 10
        assert b"kv_transfer_params" not in raw
        assert b'token_ids": [' not in raw.replace(b'":[', b'": [')
        assert b"usage" not in raw
        assert raw.endswith(b"data: [DONE]\n\n")


async def test_a_handle_is_known_before_the_client_sees_the_end() -> None:
    """An agent sends its next turn at once; the handle must be there by then."""
    async with world() as w:
        messages = [user(LONG)]
        for turn in range(20):
            _, raw, told = await w.ask(messages, stream=True)
            assert told["outcome"] == ("HIT" if turn else "MISS")
            text = "".join(
                json.loads(event[6:])["choices"][0]["delta"].get("content", "")
                for event in raw.decode().split("\n\n")
                if event.startswith("data: {")
            )
            messages += [{"role": "assistant", "content": text}, user(f"turn {turn}")]


async def test_two_turns_of_a_conversation_at_once_never_share_a_handle() -> None:
    """T5: the fake prefill answers 500 to a handle that was used before."""
    async with world() as w:
        _, first, _ = await w.ask([user(LONG)])
        history = [user(LONG), answered(first)]
        results = await asyncio.gather(*(w.ask([*history, user(f"{i}")]) for i in range(8)))
        assert [status for status, _, _ in results] == [200] * 8
        assert sum(told["outcome"] == "HIT" for _, _, told in results) == 1
        assert all(not told["retries"] for _, _, told in results)


async def test_a_prefill_that_fails_on_a_handle_costs_the_client_nothing() -> None:
    def refuse(request: web.Request, body: dict[str, Any]) -> Any:
        return error(500, "declined") if body["kv_transfer_params"]["remote_block_ids"] else None

    async with world() as w:
        _, first, _ = await w.ask([user(LONG)])
        w.p.fault = refuse
        status, _, told = await w.ask([user(LONG), answered(first), user("more")])
        assert (status, told["outcome"], told["retries"]) == (200, "MISS", ["reuse_status"])


async def test_a_prefill_that_is_silent_on_a_handle_is_done_again_and_not_aborted() -> None:
    """Aborting with a receive and a send pending is the known way to crash the engine."""
    silent = asyncio.Event()

    async def hang(request: web.Request, body: dict[str, Any]) -> Any:
        if body["kv_transfer_params"]["remote_block_ids"]:
            await silent.wait()
        return None

    async with world(limits={"reuse_base": 0.2}) as w:
        _, first, _ = await w.ask([user(LONG)])
        w.p.fault = hang
        status, _, told = await w.ask([user(LONG), answered(first), user("more")])
        assert (status, told["retries"]) == (200, ["reuse_timeout"])
        assert w.p.left == 0
        silent.set()


async def test_a_prefill_that_hangs_costs_one_request_its_limit_and_not_each() -> None:
    """Its API server may say for long that it is healthy when its core is stuck."""
    stuck = asyncio.Event()

    async def hang(request: web.Request, body: dict[str, Any]) -> Any:
        await stuck.wait()

    async with world(limits={"prefill_base": 0.5, "prefill_per_1k_tokens": 0}) as w:
        w.p.fault = hang
        status, _, told = await w.ask([user(LONG)])
        assert (status, told["retries"]) == (200, ["prefill_timeout"])
        asked = len(w.p.seen)
        for _ in range(3):
            status, _, told = await w.ask([user(LONG)])
            assert (status, told["reason"], told["retries"]) == (200, "blocks_lost", [])
        assert [body for body in w.p.seen[asked:] if "messages" in body] == []

        w.p.fault = None
        stuck.set()
        await w.until(lambda: w.router.shared.fleet.ready())
        _, _, told = await w.ask([user(LONG)])
        assert told["prefill"] == w.p.url


async def test_a_client_that_leaves_mid_stream_stops_decode() -> None:
    async with world() as w:
        w.d.words, w.d.gap = 1000, 0.02
        body = {"model": "m", "messages": [user(LONG)], "stream": True}
        async with w.http.post(f"{w.url}/v1/chat/completions", json=body) as answer:
            await answer.content.readany()
        await w.until(lambda: w.d.left == 1)
        assert w.d.finished == 0


async def test_a_client_that_leaves_during_a_reusing_prefill_lets_it_finish() -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request, body: dict[str, Any]) -> Any:
        entered.set()
        await go.wait()
        return None

    async with world() as w:
        _, first, _ = await w.ask([user(LONG)])
        w.p.fault = slow
        finished = w.p.finished
        task = asyncio.create_task(w.ask([user(LONG), answered(first), user("more")]))
        await entered.wait()
        task.cancel()
        await asyncio.sleep(0.1)
        go.set()
        await w.until(lambda: w.p.finished == finished + 1)
        assert w.p.left == 0
        assert len(w.d.seen) == 1


async def test_a_client_that_leaves_during_a_cold_prefill_stops_it() -> None:
    entered = asyncio.Event()

    async def slow(request: web.Request, body: dict[str, Any]) -> Any:
        entered.set()
        await asyncio.sleep(30)

    async with world() as w:
        w.p.fault = slow
        task = asyncio.create_task(w.ask([user(LONG)]))
        await entered.wait()
        task.cancel()
        await w.until(lambda: w.p.left == 1)


async def test_decode_that_breaks_off_ends_in_an_error_event() -> None:
    async def broken(request: web.Request, body: dict[str, Any]) -> Any:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n')
        await asyncio.sleep(0.05)
        assert request.transport is not None
        request.transport.abort()
        return response

    async with world() as w:
        w.d.fault = broken
        status, raw, _ = await w.ask([user(LONG)], stream=True)
        assert status == 200
        last = json.loads(raw.decode().strip().split("\n\n")[-1][6:])
        assert last["error"]["type"] == "decode_interrupted"


async def test_an_error_before_content_is_prefilled_again() -> None:
    async def once(request: web.Request, body: dict[str, Any]) -> Any:
        w.d.fault = None
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
        await response.write(b"data: " + json.dumps(role).encode() + b"\n\n")
        await response.write(b'data: {"error":{"message":"KV load failure","code":500}}\n\n')
        return response

    async with world() as w:
        w.d.fault = once
        status, raw, told = await w.ask([user(LONG)], stream=True)
        assert (status, told["retries"]) == (200, ["decode_failed"])
        assert b"error" not in raw
        assert len(w.p.seen) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engines_400_reaches_the_client_as_it_is(stream: bool) -> None:
    async with world() as w:
        w.p.fault = lambda request, body: error(400, "prefill's words")
        w.d.fault = lambda request, body: error(400, "temperature must be at least 0")
        status, answer, _ = await w.ask([user(LONG)], stream=stream)
        answer = json.loads(answer) if stream else answer
        assert status == 400
        assert answer == {"error": {"message": "temperature must be at least 0", "code": 400}}
        assert "kv_transfer_params" not in w.d.seen[-1]


@pytest.mark.parametrize("raw", [b"{", b"[1]", b"\xff", b""])
async def test_a_body_that_is_no_object_is_for_the_engine_to_judge(raw: bytes) -> None:
    def judged(request: web.Request) -> web.Response:
        return error(422, "not JSON")

    async with world() as w:
        async with w.http.post(f"{w.url}/v1/chat/completions", data=raw) as answer:
            through = answer.status
        async with w.http.post(f"{w.d.url}/v1/chat/completions", data=raw) as answer:
            assert through == answer.status
        assert w.p.seen == []


async def test_a_body_beyond_the_limit_is_refused_in_json() -> None:
    async with world(limits={"body_mib": 0.001}) as w:
        status, answer, _ = await w.ask([user("x" * 5000)])
        assert status == 413
        assert answer["error"]["code"] == 413


async def test_more_requests_than_allowed_are_told_to_come_again() -> None:
    async with world(limits={"concurrent_requests": 1}) as w:
        w.d.words, w.d.gap = 50, 0.02
        task = asyncio.create_task(w.ask([user(LONG)], stream=True))
        await w.until(lambda: len(w.d.seen) == 1)
        status, answer, _ = await w.ask([user(LONG)])
        assert (status, answer["error"]["type"]) == (503, "overloaded")
        async with w.http.post(f"{w.url}/v1/responses", json={"input": LONG}) as passed:
            assert passed.status == 503
        async with w.http.get(f"{w.url}/health") as health:
            assert health.status == 200
        assert (await task)[0] == 200


async def test_unknown_paths_are_404_and_known_ones_pass() -> None:
    async with world() as w:
        async with w.http.get(f"{w.url}/nope") as answer:
            assert answer.status == 404
        async with w.http.get(f"{w.url}/v1/models") as answer:
            assert (await answer.json())["data"][0]["id"] == "m"
        async with w.http.post(f"{w.url}/tokenize", json={"prompt": "a b"}) as answer:
            assert (await answer.json())["count"] == 2


async def test_clients_cannot_send_handles_and_it_is_counted() -> None:
    async with world() as w:
        await w.ask([user(LONG)], kv_transfer_params={"remote_host": "10.1.1.1"})
        assert w.p.seen[0]["kv_transfer_params"].get("remote_host") is None
        async with w.http.get(f"{w.url}/metrics") as answer:
            text = await answer.text()
        assert 'dropped_client_fields_total{field="kv_transfer_params"} 1.0' in text


@pytest.mark.parametrize(("version", "refused"), [("0.33.0", True), ("0.31.0", False)])
async def test_what_cannot_be_reused_is_released_at_once(version: str, refused: bool) -> None:
    p, d = FakeEngine("prefill"), FakeEngine("decode")
    p.version = d.version = version
    async with world(p=p, d=d) as w:
        await w.ask([user(LONG)], n=2)
        await w.until(lambda: not w.d.held)
        assert len(w.p.released) == 1
        assert ("use_beam_search" in w.p.seen[-1]) is refused


async def test_a_conversation_needs_no_name() -> None:
    async with world() as w:
        messages = [user(LONG)]
        for turn in range(3):
            status, answer, told = await w.ask(messages, conversation_id=None)
            assert status == 200
            assert told["outcome"] == ("HIT" if turn else "MISS")
            messages += [answered(answer), user(f"and {turn}")]
        assert len(w.d.held) == 1


async def test_new_requests_find_room_where_old_conversations_were() -> None:
    """T6: what is retained for idle conversations must not keep decode from working."""
    async with world() as w:
        (decode,) = w.router.shared.fleet.decode.values()
        decode.capacity_tokens = 5 * 20  # each turn pins five blocks of four words
        for number in range(12):
            await w.ask([user(f"{LONG} {number}")], conversation_id=f"c{number}", max_tokens=6)
        await w.until(lambda: len(w.p.released) >= 12 - 5)
        assert 3 <= len(w.d.held) <= 6
        async with w.http.get(f"{w.url}/metrics") as answer:
            text = await answer.text()
        assert 'releases_total{reason="pressure"}' in text
        _, answer, told = await w.ask([user(f"{LONG} 11")], conversation_id="c11", max_tokens=6)
        assert told["reused_tokens"] > 10


async def test_deleting_a_conversation_releases_it() -> None:
    async with world() as w:
        await w.ask([user(LONG)])
        async with w.http.delete(f"{w.url}/v1/conversations/c") as answer:
            assert await answer.json() == {"released": 1}
        await w.until(lambda: not w.d.held)


async def test_a_conversation_without_a_name_is_deleted_by_what_the_log_calls_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "requests.jsonl"
    async with world(request_log=path) as w:
        await w.ask([user(LONG)], conversation_id=None)
        await w.until(lambda: bool(path.read_text()))
        name = json.loads(path.read_text())["conversation_id"]
        assert name.startswith("~")
        async with w.http.delete(f"{w.url}/v1/conversations/{name}") as answer:
            assert await answer.json() == {"released": 1}
        await w.until(lambda: not w.d.held)


@pytest.mark.parametrize("own", ["my-id", None])
async def test_answers_tell_the_id_that_the_log_has(
    own: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    headers = {"X-Request-Id": own} if own else {}
    async with world() as w:
        body = {"model": "m", "messages": [user(LONG)]}
        url = f"{w.url}/v1/chat/completions"
        async with w.http.post(url, json=body, headers=headers) as answer:
            told = answer.headers["x-pdctl-request-id"]
    assert own in (told, None)
    assert f"[{told}] conv=" in caplog.text


async def test_handles_of_another_start_are_forgotten() -> None:
    async with world() as w:
        await w.ask([user(LONG)], conversation_id="old")
        w.d.start_id = "start2"
        await w.ask([user(LONG)], conversation_id="new")
        state = await w.router.state()
        assert state["handles"] == 1
        assert state["engines"][1]["engine_start"] == "start2"


async def test_a_late_handle_of_a_start_that_is_over_is_not_kept() -> None:
    """A client may read the end of an answer long after its engine was restarted."""
    async with world() as w:
        for start in ("start1", "start2", "start1"):
            w.d.start_id = start
            await w.ask([user(LONG)], conversation_id=f"{len(w.d.seen)}")
        state = await w.router.state()
        assert state["handles"] == 1
        assert state["engines"][1]["engine_start"] == "start2"


async def test_what_has_to_go_for_a_handle_is_given_back() -> None:
    async with world() as w:
        w.router.shared.store = MemoryStore(max_handles=1)
        for name in ("a", "b"):
            await w.ask([user(f"{LONG} {name}")], conversation_id=name)
        await w.until(lambda: w.router.shared.metrics.releases.labels("evicted")._value.get() == 1)
        assert (len(w.d.held), len(w.p.released)) == (1, 1)


async def test_a_prefill_that_cannot_be_reached_does_not_cost_the_handle() -> None:
    async with world() as w:
        _, first, _ = await w.ask([user(LONG)])
        client = w.router.shared.engines._client
        begin = client.begin

        async def down(method: str, url: str, *args: Any) -> Any:
            if url.startswith(f"{w.p.url}/v1/"):
                raise ConnectionRefusedError
            return await begin(method, url, *args)

        client.begin = down  # type: ignore[method-assign]
        history = [user(LONG), answered(first), user("more")]
        status, _, told = await w.ask(history)
        assert (status, told["retries"][0]) == (200, "reuse_unreachable")
        client.begin = begin  # type: ignore[method-assign]
        status, _, told = await w.ask(history)
        assert (status, told["outcome"]) == (200, "HIT")


async def test_data_parallel_ranks_are_not_restarts() -> None:
    async with world() as w:
        w.d.start_id = "e_dp0"
        await w.ask([user(LONG)], conversation_id="a")
        w.d.start_id = "e_dp1"
        await w.ask([user(LONG)], conversation_id="b")
        assert (await w.router.state())["handles"] == 2


async def test_a_router_that_ends_gives_back_what_only_it_knows() -> None:
    async with world() as w:
        for name in ("a", "b"):
            await w.ask([user(f"{LONG} {name}")], conversation_id=name)
        assert len(w.d.held) == 2
    # The engines of a world end after its router, as they do in a deployment.
    assert w.d.held == {}


async def test_a_handle_that_expires_is_given_back() -> None:
    """Decode's own TTL may be far longer; until then nobody could reach those blocks."""
    async with world(ttl=0.05) as w:
        await w.ask([user(LONG)])
        await w.until(lambda: not w.d.held)
        assert len(w.p.released) == 1
        assert (await w.router.state())["handles"] == 0


async def test_a_handle_is_not_offered_after_the_ttl() -> None:
    async with world(ttl=0.05) as w:
        _, first, _ = await w.ask([user(LONG)])
        await asyncio.sleep(0.06)
        _, _, told = await w.ask([user(LONG), answered(first), user("more")])
        assert (told["outcome"], told["reason"]) == ("MISS", "expired")
        assert w.p.pulls == []


async def test_ready_needs_a_pair_that_moves_blocks() -> None:
    p = FakeEngine("prefill")
    p.bidirectional = False
    async with world(p=p) as w:
        state = await w.router.state()
        assert state["ready"]
        assert not state["pairs"][0]["ok"]
        assert "could not pull" in state["pairs"][0]["reason"]
        _, first, _ = await w.ask([user(LONG)])
        _, _, told = await w.ask([user(LONG), answered(first), user("more")])
        assert told["reason"] == "pair_not_proven"
        assert told["retries"] == []


async def test_ready_says_503_until_the_engines_are_there() -> None:
    router = Router(RouterSettings(("http://127.0.0.1:9",), ("http://127.0.0.1:9/d",), port=0))
    async with serving(router) as url, aiohttp.ClientSession() as http:
        await router.watcher.look()
        async with http.get(f"{url}/ready") as answer:
            assert answer.status == 503
            assert (await answer.json())["engines"][0]["reason"] == "does not answer"
        async with http.get(f"{url}/health") as answer:
            assert answer.status == 200
        body = {"model": "m", "messages": [user("x")]}
        async with http.post(f"{url}/v1/chat/completions", json=body) as answer:
            assert answer.status == 503
            assert "127.0.0.1" not in await answer.text()


async def test_the_request_log_has_one_line_a_request_and_no_contents(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "requests.jsonl"
    async with world(request_log=path) as w:
        await w.ask([user(LONG)])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["conversation_id"], line["outcome"], line["status"]) for line in lines] == [
        ("c", "MISS", 200)
    ]
    assert lines[0]["prompt_tokens"] == 12
    assert "one two" not in path.read_text()


async def test_api_keys_bind_conversations_to_tenants_and_stay_with_the_router() -> None:
    seen: list[str | None] = []

    def spy(request: web.Request, body: dict[str, Any]) -> None:
        seen.append(request.headers.get("Authorization"))

    async with world(api_keys=parse_keys("alice:k1\nbob: k2 # old\n", "keys")) as w:
        w.p.fault = spy
        w.http.headers["Authorization"] = "Bearer k1"
        _, first, _ = await w.ask([user(LONG)])
        history = [user(LONG), answered(first), user("more")]
        w.http.headers["Authorization"] = "Bearer k2"
        _, _, told = await w.ask(history)
        assert told["outcome"] == "MISS"
        w.http.headers["Authorization"] = "Bearer k1"
        _, _, told = await w.ask(history)
        assert told["reused_tokens"] > 10
        assert set(seen) == {None}
        for wrong in ("Bearer k3", "k1", "Basic k1", "Bearer "):
            w.http.headers["Authorization"] = wrong
            status, answer, _ = await w.ask(history)
            assert (status, answer["error"]["code"]) == (401, 401)
        async with w.http.get(f"{w.url}/health") as answer:
            assert answer.status == 200


async def test_a_turn_whose_client_left_is_in_the_log_too(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    async with world(request_log=path) as w:
        w.d.words, w.d.gap = 1000, 0.02
        body = {"model": "m", "messages": [user(LONG)], "stream": True, "conversation_id": "gone"}
        async with w.http.post(f"{w.url}/v1/chat/completions", json=body) as answer:
            await answer.content.readany()
        await w.until(path.exists)
    line = json.loads(path.read_text())
    assert (line["conversation_id"], line["status"]) == ("gone", 499)


async def test_a_turn_that_fails_by_a_bug_is_in_the_log_as_such(tmp_path: Path) -> None:
    def broken(*args: Any) -> None:
        raise ZeroDivisionError

    path = tmp_path / "requests.jsonl"
    async with world(request_log=path) as w:
        w.router.shared.store.knows = broken  # type: ignore[method-assign]
        status, _, _ = await w.ask([user(LONG)])
    assert status == json.loads(path.read_text())["status"] == 500


async def test_a_running_answer_survives_the_stop_of_the_router() -> None:
    async with world(limits={"drain": 5.0}) as w:
        w.d.words, w.d.gap = 20, 0.01
        task = asyncio.create_task(w.ask([user(LONG)], stream=True))
        await w.until(lambda: len(w.d.seen) == 1)
    status, raw, _ = await task
    assert status == 200
    assert raw.endswith(b"data: [DONE]\n\n")
