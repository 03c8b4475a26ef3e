"""Fake engines for fault injection: words are tokens, handles count, and a bad handle is refused.

They keep the engine's rules as FACTS has them: a handle is single-use, and prefill never looks at
tokens, so what it pulled is judged here by the test, not by the engine.
"""

import asyncio
import itertools
import json
import logging
import time
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

BLOCK = 4
TTL = 108.0
"""For how long decode keeps a turn."""
AHEAD = 5000.0
"""Decode's clock is so far ahead of the router's."""


def words_of(body: dict[str, Any]) -> list[str]:
    """A prompt's words: a mark for each role, then its content; a generation mark at the end."""
    if isinstance(body.get("prompt"), str):
        return str(body["prompt"]).split()
    words: list[str] = []
    for message in body.get("messages", []):
        words += [f"<{message['role']}>", *str(message.get("content") or "").split()]
    return [*words, "<assistant>"]


def ids_of(body: dict[str, Any]) -> list[int]:
    """Ids of a prompt."""
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return prompt
    return [zlib.crc32(word.encode()) & 0xFFFFFF for word in words_of(body)]


@dataclass
class FakeEngine:
    """One server. Faults are set by the test: each takes the body, and may answer instead.

    Attributes:
        seen: bodies of the generation requests, in order.
        passed: answers the paths that the router passes on as they are.
        tokenizes: answers `/tokenize` instead.
        long_word: is added to each word of a stream, to make it long.
        asked: generation requests, also those that could not be read.
        left: requests whose client went away before they were done.
        held: what decode retains, by request id.
        pulls: tokens that prefill pulled, by turn.
        blocks: how many it has, which it then exports with their use.
        one_sided: prefill with the flag off, as it really is: a handle hangs it (FACTS T7).
        others: requests that others finish between two looks at its metrics.
        started: its process start, if it exports one.
        renews: its plugin lets turns be kept for longer: `kept` are deadlines of its own clock.
        grants: gives what it grants of what it was asked for; None: it does not know the question.
        finish: why its answers end.
    """

    role: str
    fault: Callable[[web.Request, dict[str, Any]], Any] | None = None
    seen: list[dict[str, Any]] = field(default_factory=list)
    asked: int = 0
    left: int = 0
    finished: int = 0
    held: dict[str, list[int]] = field(default_factory=dict)
    released: list[str] = field(default_factory=list)
    pulls: list[int] = field(default_factory=list)
    bidirectional: bool = True
    words: int = 6
    gap: float = 0.0
    url: str = ""
    start_id: str = "start1"
    version: str = "0.33.0"
    peer: "FakeEngine | None" = None
    passed: Callable[[web.Request], Any] | None = None
    long_word: str = ""
    tokenizes: Callable[[web.Request], Any] | None = None
    metrics: bytes = f'vllm:cache_config_info{{block_size="{BLOCK}"}} 1\n'.encode()
    up: bool = True
    blocks: int = 0
    one_sided: bool = False
    others: int = 0
    started: float | None = None
    from_others: int = 0
    renews: bool = False
    kept: dict[str, float] = field(default_factory=dict)
    grants: Callable[[dict[str, float]], dict[str, float]] | None = lambda until: until
    renewals: list[dict[str, Any]] = field(default_factory=list)
    ranks: list[str | None] = field(default_factory=list)
    traces: list[str | None] = field(default_factory=list)
    finish: str = "length"
    _count: Any = field(default_factory=itertools.count)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._generate)
        app.router.add_post("/v1/completions", self._generate)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_get("/health", self._ok)
        app.router.add_get("/version", self._version)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        for path in ("/v1/messages", "/v1/responses", "/v1/embeddings"):
            app.router.add_post(path, self._passed)
        return app

    async def _passed(self, request: web.Request) -> web.StreamResponse:
        assert self.passed is not None
        answer: web.StreamResponse = await self.passed(request)
        return answer

    async def _ok(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.up else 503)

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.version})

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def _metrics(self, request: web.Request) -> web.Response:
        page = self.metrics
        if self.blocks:
            used = sum(-(-len(tokens) // BLOCK) for tokens in self.held.values())
            page += b'vllm:kv_cache_usage_perc{engine="0"} %f\n' % (used / self.blocks)
            self.from_others += self.others
            page += b"vllm:num_requests_running 0\n"
            page += b"vllm:request_success_total %d\n" % (self.asked + self.from_others)
            page += b"vllm:num_requests_waiting 0\n"
            config = b'vllm:cache_config_info{block_size="%d",num_gpu_blocks="%d"} 1\n'
            page += config % (BLOCK, self.blocks)
        if self.started is not None:
            page += b"process_start_time_seconds %f\n" % self.started
        return web.Response(body=page)

    async def _tokenize(self, request: web.Request) -> web.Response:
        if self.tokenizes is not None:
            told: web.Response = await self.tokenizes(request)
            return told
        try:
            ids = ids_of(await request.json())
        except (AttributeError, KeyError, TypeError) as wrong:
            return error(400, f"the request is wrong: {wrong!r}")
        return web.json_response({"count": len(ids), "max_model_len": 100000, "tokens": ids})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        try:
            body = await request.json()
        except (ValueError, RecursionError):
            return error(400, "not JSON")
        self.seen.append(body)
        self.traces.append(request.headers.get("traceparent"))
        try:
            if self.fault is not None:
                answer = self.fault(request, body)
                if asyncio.iscoroutine(answer):
                    answer = await answer
                if answer is not None:
                    return answer
            return await (self._prefill if self.role == "prefill" else self._decode)(request, body)
        except (asyncio.CancelledError, ConnectionError):
            self.left += 1
            raise
        except (AttributeError, KeyError, TypeError) as wrong:
            return error(400, f"the request is wrong: {wrong!r}")

    async def _prefill(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        kv = body["kv_transfer_params"]
        if body.get("use_beam_search") and body.get("stream"):
            assert self.peer is not None
            assert kv["do_remote_prefill"]
            if self.peer.held.pop(kv["remote_request_id"], None) is not None:
                self.released.append(kv["remote_request_id"])
            return error(400, "Streaming is not currently supported with beam search")
        ids = ids_of(body)
        pulled = 0
        if kv.get("remote_block_ids") and self.one_sided:
            if kv["remote_num_tokens"]:
                await asyncio.sleep(3600)
        elif kv.get("remote_block_ids"):
            assert self.peer is not None
            held = self.peer.held.pop(kv["remote_request_id"], None)
            if held is None or not self.bidirectional:
                return error(500, "KV load failure")
            pulled = min(kv["remote_num_tokens"], len(ids))
            assert len(kv["remote_block_ids"][0]) <= -(-len(held) // BLOCK)
            if pulled:
                assert held[:pulled] == ids[:pulled], "wrong tokens were pulled"
                self.pulls.append(pulled)
            else:
                self.released.append(kv["remote_request_id"])
        params = {
            **kv,
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[0]],
            "remote_prefill_cached_tokens": pulled,
        }
        return self._answer(body, ids, ["a"], params)

    async def _decode(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if (asked := (body.get("kv_transfer_params") or {}).get("pdctl_renew")) is not None:
            self.renewals.append(asked)
            self.ranks.append(request.headers.get("X-data-parallel-rank"))
            if self.grants is None:
                return self._answer(body, [1], ["x"], {"do_remote_prefill": True})
            return self._renewed(body, self.grants(asked["until"]))
        rid = f"d{next(self._count)}"
        ids = (body.get("kv_transfer_params") or {}).get("prompt_token_ids") or ids_of(body)
        out = [f"{rid}w{i}" for i in range(self.words)]
        made = [zlib.crc32(word.encode()) & 0xFFFFFF for word in out]
        params = None
        if body.get("kv_transfer_params") and self.bidirectional:
            self.held[rid] = [*ids, *made]
            params = self._params(rid, len(ids) + len(made) - 1)
        if not body.get("stream"):
            return self._answer(body, ids, out, params)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        async for chunk in self._chunks(body, ids, out, made, params):
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        self.finished += 1
        return response

    def _renewed(self, body: dict[str, Any], granted: dict[str, float]) -> web.Response:
        told = {name: each for name, each in granted.items() if name in self.held}
        self.kept |= told
        return self._answer(body, [1], ["x"], {"pdctl_renewed": told})

    async def _chunks(
        self,
        body: dict[str, Any],
        ids: list[int],
        out: list[str],
        made: list[int],
        params: dict[str, Any] | None,
    ) -> AsyncIterator[dict[str, Any]]:
        want = body.get("return_token_ids")
        first: dict[str, Any] = {"delta": {"role": "assistant", "content": ""}}
        yield {
            "id": "x",
            "choices": [{"index": 0, **first}],
            **({"prompt_token_ids": ids} if want else {}),
        }
        for place, (word, token) in enumerate(zip(out, made, strict=True)):
            last = place == len(out) - 1
            choice = {
                "index": 0,
                "delta": {"content": f"{word}{self.long_word} "},
                "finish_reason": self.finish if last else None,
                **({"token_ids": [token]} if want else {}),
            }
            extra = {"kv_transfer_params": params} if last and params else {}
            yield {"id": "x", "choices": [choice], **extra}
            await asyncio.sleep(self.gap)
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": len(ids), "completion_tokens": len(made)}
            yield {"id": "x", "choices": [], "usage": usage}

    def _answer(
        self, body: dict[str, Any], ids: list[int], out: list[str], kv: dict[str, Any] | None
    ) -> web.Response:
        made = [zlib.crc32(word.encode()) & 0xFFFFFF for word in out]
        want = body.get("return_token_ids")
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": " ".join(out)},
            "finish_reason": self.finish,
            **({"token_ids": made, "prompt_token_ids": ids} if want else {}),
        }
        self.finished += 1
        return web.json_response(
            {
                "id": "x",
                "choices": [choice],
                "usage": {"prompt_tokens": len(ids), "completion_tokens": len(made)},
                "kv_transfer_params": kv,
                **({"prompt_token_ids": ids} if want and "messages" in body else {}),
            }
        )

    def _params(self, rid: str, tokens: int) -> dict[str, Any]:
        return {
            "do_remote_prefill": False,
            "do_remote_decode": True,
            "remote_block_ids": [list(range(-(-tokens // BLOCK)))],
            "remote_engine_id": self.start_id,
            "remote_request_id": rid,
            "remote_host": "10.0.0.2",
            "remote_port": 5601,
            "remote_num_tokens": tokens,
            **self._lease(rid),
        }

    def _lease(self, rid: str) -> dict[str, Any]:
        if not self.renews:
            return {}
        self.kept[rid] = time.monotonic() + TTL + AHEAD
        return {"pdctl_renewable": True, "remote_blocks_expiry_time": self.kept[rid]}


def error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "code": status}}, status=status)


@asynccontextmanager
async def running(*engines: FakeEngine) -> AsyncIterator[None]:
    """Serve engines on free ports of loopback."""
    runners = []
    try:
        for engine in engines:
            runner = web.AppRunner(
                engine.app(),
                handler_cancellation=True,
                shutdown_timeout=0.1,
                logger=logging.getLogger("fake"),
            )
            await runner.setup()
            runners.append(runner)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield
    finally:
        for runner in runners:
            await runner.cleanup()
