"""A prefill engine, a decode engine and a router, only as real as faults need to be.

What a real pair does is shown in tests/e2e; these serve to inject what a healthy pair never does.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from pdctl.observe.endpoints import Endpoint, Endpoints

BYTES_A_TOKEN = 1000
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def answer_of(prompt: Iterable[int], count: int) -> list[int]:
    """What the fake model says: a function of the prompt, like greedy decoding."""
    state = sum((at + 1) * token for at, token in enumerate(prompt)) % 9973
    answer = []
    for _ in range(count):
        state = (state * 31 + 7) % 9973
        answer.append(state)
    return answer


def tokenize(text: str) -> list[int]:
    return [sum(map(ord, word)) % 9973 for word in text.split()]


@dataclass
class FakeEngine:
    """One engine. `alive = False` closes every connection without an answer."""

    role: str
    bidirectional: bool = True
    streams_handles: bool = True
    prefix_caching: bool = True
    block_size: int = 16
    max_model_len: int = 4096
    usage: float = 0.0
    lost: float = 0.0
    others: int = 0
    pulled: int | None = 0
    external: int = 0
    alive: bool = True
    version: str = "0.33.0"
    healthy_after: int = 0
    completions: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)
    seen_by_others: int = 0

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._dead_or_alive])
        app.router.add_get("/health", self._ok)
        app.router.add_get("/version", self._version)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/v1/completions", self._completions)
        return app

    @web.middleware
    async def _dead_or_alive(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.keys.add(request.headers.get("authorization"))
        if not self.alive:
            assert request.transport is not None
            request.transport.close()
        return await handler(request)

    async def _ok(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.version})

    async def _models(self, request: web.Request) -> web.Response:
        model = {"id": "tiny", "root": "/models/tiny", "max_model_len": self.max_model_len}
        return web.json_response({"object": "list", "data": [model]})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=self.exposition())

    def _finished(self) -> int:
        """What was asked here, and what others ask between any two looks."""
        self.seen_by_others += self.others
        return len(self.completions) + self.seen_by_others

    def exposition(self) -> str:
        labels = '{engine="0",model_name="tiny"}'
        lines = [
            f'vllm:cache_config_info{{block_size="{self.block_size}",engine="0",'
            f'enable_prefix_caching="{self.prefix_caching}",num_gpu_blocks="512"}} 1.0',
            f"vllm:kv_cache_usage_perc{labels} {self.usage}",
            f"vllm:num_requests_running{labels} 0",
            f'vllm:request_success_total{{finished_reason="stop"}} {self._finished()}',
            f"vllm:num_requests_waiting{labels} 0.0",
            'vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",'
            f'source="external_kv_transfer"}} {self.external}',
            "process_start_time_seconds 1.7e9",
        ]
        if self.pulled is not None:
            lines.append(f"vllm:nixl_bytes_transferred_sum{labels} {self.pulled}")
            lines.append(f"vllm:nixl_bytes_transferred_count{labels} 1.0")
            lines.append(f"vllm:nixl_xfer_time_seconds_sum{labels} {self.pulled / 1e6}")
        lines += [
            f"vllm:{name}_seconds_sum{labels} {len(self.completions) / 100}"
            for name in ("time_to_first_token", "request_prefill_time")
        ]
        return "\n".join(lines) + "\n"

    async def _tokenize(self, request: web.Request) -> web.Response:
        tokens = tokenize((await request.json())["prompt"])
        return web.json_response({"tokens": tokens, "count": len(tokens)})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.completions.append(body)
        kv = body.get("kv_transfer_params") or {}
        answer: dict[str, Any] = {"choices": [{"index": 0, "text": "x", "finish_reason": "length"}]}
        if self.role == "prefill" and kv.get("do_remote_decode") and not kv.get("remote_block_ids"):
            answer["kv_transfer_params"] = {"do_remote_prefill": True, "remote_block_ids": [[7]]}
        if self.role == "decode" and kv and self.bidirectional:
            # Blocks that did not come from prefill are pinned too, and never free again.
            self.lost += 0 if kv.get("do_remote_prefill") else 0.25
            self.usage += 0.25
            answer["kv_transfer_params"] = {
                "do_remote_decode": True,
                "remote_block_ids": [[1, 2]],
                "remote_num_tokens": len(body["prompt"]),
            }
        if body.get("use_beam_search"):
            # A rejected request frees the blocks that it was to pull, whatever the flag.
            PEERS[self].usage = PEERS[self].lost
            return web.json_response({"error": {"message": "no beam search"}}, status=400)
        if kv.get("remote_num_tokens") == 0 and self.bidirectional:
            PEERS[self].usage = PEERS[self].lost
        if not body.get("stream"):
            return web.json_response(answer)
        ids = answer_of(body["prompt"], body["max_tokens"])
        handle = answer.get("kv_transfer_params") if self.streams_handles else None
        return await stream_completion(request, body["prompt"], ids, handle=handle)

    def __hash__(self) -> int:
        return id(self)


PEERS: dict[FakeEngine, FakeEngine] = {}
"""Which decode engine a fake prefill engine notifies."""


@dataclass
class FakeRouter:
    """A router whose every answer can be made wrong."""

    prefill: FakeEngine
    decode: FakeEngine
    ready: bool = True
    secret: bool = False
    ours: bool = True
    example: bool = False
    canary: str = ""
    reason: str = ""
    wrong_when_reusing: bool = False
    wrong_always: bool = False
    metrics_lag: int = 0
    fail: tuple[int, str] | None = None
    fail_from: int = 1
    hang_from: int = 10**9
    bytes_move: bool = True
    loses_handles: bool = False
    external_moves: bool = True
    own_cache: int = 0
    urls: tuple[str, str] = ("", "")
    share: float = 1.0
    tenants: dict[str, float] = field(default_factory=dict)
    switch_sticks: bool = False
    pause: float = 0.0
    keeps: bool = False
    turns: list[dict[str, Any]] = field(default_factory=list)
    held: dict[str, list[int]] = field(default_factory=dict)
    forgotten: list[str] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)
    seen_by_others: int = 0

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._note_key])
        if self.ours:
            app.router.add_get("/pdctl/v1/state", self._state)
            app.router.add_delete("/v1/conversations/{id}", self._forget)
            app.router.add_get("/pdctl/v1/reuse", self._reuse)
            app.router.add_put("/pdctl/v1/reuse", self._switch)
        if self.example:
            app.router.add_get("/health", self._example_health)
        app.router.add_post("/v1/completions", self._turn)
        app.router.add_post("/v1/chat/completions", self._turn)
        return app

    async def _example_health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok", "cached_conversations": 0, "evicted_stale": 0})

    @web.middleware
    async def _note_key(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.keys.add(request.headers.get("authorization"))
        return await handler(request)

    async def _state(self, request: web.Request) -> web.Response:
        if self.secret:
            return web.json_response({"error": {"message": "no admin"}}, status=403)
        prefill, decode = self.urls
        pair = {"prefill": prefill, "decode": decode, "ok": not self.canary, "reason": self.canary}
        state = {"ready": self.ready, "pairs": [pair], "ttl": 450.0, "threshold": 64}
        return web.json_response(state | {"handles": 0, "retained_tokens": 0})

    async def _reuse(self, request: web.Request) -> web.Response:
        return web.json_response({"share": self.share, "tenants": self.tenants})

    async def _switch(self, request: web.Request) -> web.Response:
        setting = await request.json()
        if not self.switch_sticks:
            self.share, self.tenants = setting["share"], setting.get("tenants", {})
        if setting["share"] == 0:
            self.held.clear()
            self.decode.usage = 0.5 if self.keeps else 0.0
        return await self._reuse(request)

    async def _forget(self, request: web.Request) -> web.Response:
        self.forgotten.append(request.match_info["id"])
        return web.json_response({"released": 1})

    async def _turn(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.turns.append(body)
        if len(self.turns) >= self.hang_from:
            await asyncio.sleep(30)
        if self.fail is not None and len(self.turns) >= self.fail_from:
            status, message = self.fail
            return web.json_response({"error": {"message": message}}, status=status)
        await asyncio.sleep(self.pause)
        prompt = _prompt_ids(body)
        reused = self._pull(body, prompt)
        ids = answer_of(prompt, body["max_tokens"])
        if self.wrong_always or (reused and self.wrong_when_reusing):
            ids = [*ids[:3], *(token + 1 for token in ids[3:])]
        if (conversation := body.get("conversation_id")) and self.share:
            self.held[conversation] = [*prompt, *ids]
            self.decode.usage = min(0.9, 0.01 * len(self.held))
        headers = self._headers(request, reused, len(prompt))
        if "messages" in body:
            return await stream_chat(request, ids, headers)
        return await stream_completion(request, prompt, ids, headers)

    def _pull(self, body: dict[str, Any], prompt: list[int]) -> int:
        held = self.held.pop(body.get("conversation_id") or "", None)
        works = self.prefill.bidirectional and self.decode.bidirectional and not self.canary
        if not works or held is None or self.loses_handles or prompt[: len(held)] != held:
            return 0
        reused = len(held) - 1
        if self.bytes_move and self.prefill.pulled is not None:
            self.prefill.pulled += (reused - self.own_cache) * BYTES_A_TOKEN
        if self.external_moves:
            self.prefill.external += reused - self.own_cache
        return reused

    def _headers(self, request: web.Request, reused: int, prompt: int) -> dict[str, str]:
        if not self.ours or request.headers.get("x-pdctl-explain") != "1":
            return {}
        told = {
            "outcome": "HIT" if reused else ("MISS" if self.share else "OFF"),
            "reason": self.reason,
            "reused_tokens": reused,
            "prompt_tokens": prompt,
            "prefill": self.urls[0],
            "decode": self.urls[1],
        }
        return {"x-pdctl-turn": json.dumps(told)}


def _prompt_ids(body: dict[str, Any]) -> list[int]:
    if "prompt" in body:
        return list(body["prompt"])
    return [token for message in body["messages"] for token in tokenize(message["content"])]


async def stream_completion(
    request: web.Request,
    prompt: list[int],
    ids: list[int],
    headers: dict[str, str] | None = None,
    handle: dict[str, Any] | None = None,
) -> web.StreamResponse:
    events: list[dict[str, Any]] = []
    for at, token in enumerate(ids):
        choice: dict[str, Any] = {"index": 0, "text": f" t{token}", "token_ids": [token]}
        if at == 0:
            choice["prompt_token_ids"] = prompt
        event: dict[str, Any] = {"choices": [choice]}
        if at == len(ids) - 1:
            choice["finish_reason"] = "length"
            event |= {"kv_transfer_params": handle} if handle else {}
        events.append(event)
    return await send_events(request, [*events, _usage(prompt, ids)], headers)


async def stream_chat(
    request: web.Request, ids: list[int], headers: dict[str, str]
) -> web.StreamResponse:
    events: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"role": "assistant"}}]}]
    events += [{"choices": [{"index": 0, "delta": {"content": f" t{token}"}}]} for token in ids]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
    return await send_events(request, [*events, _usage([1], ids)], headers)


def _usage(prompt: list[int], ids: list[int]) -> dict[str, Any]:
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
    return {"choices": [], "usage": usage}


async def send_events(
    request: web.Request, events: list[dict[str, Any]], headers: dict[str, str] | None = None
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **(headers or {})})
    await response.prepare(request)
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    await response.write(body + b"data: [DONE]\n\n")
    await response.write_eof()
    return response


@dataclass
class FakePair:
    """Both engines and the router, served; `endpoints` is what verify gets."""

    prefill: FakeEngine
    decode: FakeEngine
    router: FakeRouter
    endpoints: Endpoints


@asynccontextmanager
async def serve_app(app: web.Application) -> AsyncIterator[str]:
    server = TestServer(app)
    await server.start_server()
    try:
        yield str(server.make_url("")).rstrip("/")
    finally:
        await server.close()


@asynccontextmanager
async def fake_pair(
    *,
    dtype: str = "float32",
    bidirectional: bool = True,
    threshold: int = 64,
    prefill: FakeEngine | None = None,
    decode: FakeEngine | None = None,
    **router_faults: Any,
) -> AsyncIterator[FakePair]:
    prefill = prefill or FakeEngine("prefill")
    decode = decode or FakeEngine("decode")
    PEERS[prefill] = decode
    router = FakeRouter(prefill, decode, **router_faults)
    async with (
        serve_app(prefill.app()) as p_url,
        serve_app(decode.app()) as d_url,
        serve_app(router.app()) as r_url,
    ):
        router.urls = (p_url, d_url)
        endpoints = Endpoints(
            name="fake",
            engines=(
                Endpoint("prefill-0", "prefill", "here", p_url),
                Endpoint("decode-0", "decode", "here", d_url),
            ),
            router=Endpoint("router-0", "router", "here", r_url),
            dtype=dtype,
            bidirectional=bidirectional,
            threshold=threshold,
        )
        yield FakePair(prefill, decode, router, endpoints)
    del PEERS[prefill]
