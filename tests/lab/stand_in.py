"""An engine that starts in a second: no weights, but KV that counts and a side channel of its own.

For tests of what is done with engines, where a real one takes most of a minute to start. What it
answers depends on all tokens that its KV holds, as with a real one: whoever pulls another's KV, or
pulls it twice, answers wrong or fails. Tokens are bytes.

Usage: python -m tests.lab.stand_in … with vLLM's own arguments and environment.
"""

import asyncio
import itertools
import json
import os
import sys
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import aiohttp
from aiohttp import web

BLOCK, BLOCKS = 16, 8192
_BYTES = 1000
"""Of a token's KV, for the metrics."""
_LIMIT_S = 3.0
"""For a pull; NIXL gives up after five."""
_BY_KIND = ("--model", "--max-model-len", "--dtype", "--block-size")
"""What two engines must have in common, or their KV does not fit."""

Json = dict[str, Any]


class KvError(Exception):
    """The other side's KV cannot be had."""


class Engine:
    """One server, prefill or decode by its configuration.

    Attributes:
        held: tokens by request id, until they are pulled.
        data_port: where they are pulled from, as the side channel tells once for each start.
    """

    def __init__(self, options: dict[str, str]) -> None:
        self.model = options["--served-model-name"]
        self.kind = "|".join(options.get(name, "") for name in _BY_KIND)
        connector = json.loads(options["--kv-transfer-config"])
        self.engine_id = connector["engine_id"]
        self.side = (
            os.environ["VLLM_NIXL_SIDE_CHANNEL_HOST"],
            int(os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"]),
        )
        self.data_port = 0
        self.held: dict[str, list[int]] = {}
        self._known: dict[str, int] = {}
        self.pulls = self.pulled = self.finished = 0
        self.started = time.time()
        self._numbers = itertools.count()

    def app(self) -> web.Application:
        """What clients see."""
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", self.generate)
        app.router.add_post("/v1/completions", self.generate)
        app.router.add_post("/v1/chat/completions/render", self.render)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_get("/health", self.healthy)
        app.router.add_get("/version", self.version)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/metrics", self.metrics)
        return app

    def side_app(self) -> web.Application:
        """The side channel."""
        app = web.Application()
        app.router.add_get("/hello", self.hello)
        return app

    def data_app(self) -> web.Application:
        """The wire on which KV goes."""
        app = web.Application()
        app.router.add_post("/pull", self.give)
        return app

    async def healthy(self, request: web.Request) -> web.Response:
        return web.Response()

    async def version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.model}]})

    async def render(self, request: web.Request) -> web.Response:
        return web.json_response({"token_ids": ids_of(await request.json())})

    async def tokenize(self, request: web.Request) -> web.Response:
        ids = ids_of(await request.json())
        return web.json_response({"count": len(ids), "max_model_len": 8192, "tokens": ids})

    async def metrics(self, request: web.Request) -> web.Response:
        used = sum(-(-len(tokens) // BLOCK) for tokens in self.held.values()) / BLOCKS
        config = f'block_size="{BLOCK}",num_gpu_blocks="{BLOCKS}",enable_prefix_caching="False"'
        lines = (
            f"vllm:cache_config_info{{{config}}} 1",
            f'vllm:kv_cache_usage_perc{{engine="0"}} {used}',
            "vllm:num_requests_waiting 0",
            "vllm:num_requests_running 0",
            f"vllm:request_success_total {self.finished}",
            f"vllm:nixl_bytes_transferred_sum {self.pulled * _BYTES}",
            f"vllm:nixl_bytes_transferred_count {self.pulls}",
            f'vllm:prompt_tokens_by_source_total{{source="external_kv_transfer"}} {self.pulled}',
            f"process_start_time_seconds {self.started}",
        )
        return web.Response(text="\n".join(lines) + "\n")

    # --- the side channel -------------------------------------------------------------------

    async def hello(self, request: web.Request) -> web.Response:
        """The handshake."""
        return web.json_response(
            {"kind": self.kind, "engine_id": self.engine_id, "port": self.data_port}
        )

    async def give(self, request: web.Request) -> web.Response:
        """Hand over what is held, once."""
        asked = await request.json()
        tokens = self.held.pop(asked["request_id"], None)
        if tokens is None:
            return web.json_response({}, status=404)
        return web.json_response({"tokens": tokens[: asked["count"]]})

    async def pull(self, kv: Json, count: int) -> list[int]:
        """Get the other side's tokens; with none wanted it only lets go of them."""
        limit = aiohttp.ClientTimeout(total=_LIMIT_S)
        asked = {"request_id": kv["remote_request_id"], "count": count}
        try:
            async with aiohttp.ClientSession(timeout=limit) as session:
                url = f"http://{kv['remote_host']}:{await self._port(session, kv)}/pull"
                async with session.post(url, json=asked) as answer:
                    if answer.status != 200:
                        raise KvError(f"status {answer.status}")
                    tokens: list[int] = (await answer.json())["tokens"]
        except (aiohttp.ClientError, TimeoutError) as error:
            raise KvError(str(error)) from error
        if tokens:
            self.pulls, self.pulled = self.pulls + 1, self.pulled + len(tokens)
        return tokens

    async def _port(self, session: aiohttp.ClientSession, kv: Json) -> int:
        """Where the other side's KV is; asked once for each start of it."""
        other = kv["remote_engine_id"]
        if other not in self._known:
            url = f"http://{kv['remote_host']}:{kv['remote_port']}/hello"
            async with session.get(url) as answer:
                told = await answer.json()
            if told["kind"] != self.kind or told["engine_id"] != other:
                raise KvError("it is another, or of another kind")
            self._known[other] = told["port"]
        return self._known[other]

    # --- answers ----------------------------------------------------------------------------

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        kv = body.get("kv_transfer_params") or {}
        if body.get("use_beam_search") and body.get("stream"):
            await self._let_go(kv)
            return failed(400, "Streaming is not currently supported with beam search")
        ids = kv.get("prompt_token_ids") or ids_of(body)
        cached = 0
        held = list(ids)
        try:
            if kv.get("do_remote_prefill"):
                held = await self.pull(kv, len(ids))
                cached = len(held)
            elif kv.get("remote_block_ids"):
                pulled = await self.pull(kv, min(kv["remote_num_tokens"], len(ids)))
                held[: len(pulled)] = pulled
                cached = len(pulled)
        except KvError as error:
            return failed(500, f"KV load failure: {error}")
        made = said(held, body.get("max_completion_tokens") or body.get("max_tokens") or 16)
        rid = f"cmpl-{next(self._numbers)}"
        params = self._offer(rid, kv, held, made, cached) if kv else None
        self.finished += 1
        if body.get("stream"):
            return await self._stream(request, body, ids, made, params, cached)
        return web.json_response(whole(body, ids, made, params, cached))

    async def _let_go(self, kv: Json) -> None:
        with suppress(KvError):
            await self.pull(kv, 0)

    def _offer(self, rid: str, kv: Json, held: list[int], made: list[int], cached: int) -> Json:
        """What the other side may pull: from prefill the prompt, from decode all but the last."""
        decodes = bool(kv.get("do_remote_prefill")) or not kv.get("do_remote_decode")
        tokens = [*held, *made][:-1] if decodes else held
        self.held[rid] = tokens
        return {
            "do_remote_prefill": not decodes,
            "do_remote_decode": decodes,
            "remote_block_ids": [list(range(-(-len(tokens) // BLOCK)))],
            "remote_engine_id": self.engine_id,
            "remote_request_id": rid,
            "remote_host": self.side[0],
            "remote_port": self.side[1],
            "remote_num_tokens": len(tokens),
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            **({} if decodes else {"remote_prefill_cached_tokens": cached}),
        }

    async def _stream(
        self,
        request: web.Request,
        body: Json,
        ids: list[int],
        made: list[int],
        params: Json | None,
        cached: int,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        async for chunk in chunks(body, ids, made, params, cached):
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


def ids_of(body: Json) -> list[int]:
    """A prompt's tokens: its own ids, else its bytes."""
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return list(prompt)
    if isinstance(prompt, str):
        return list(prompt.encode())
    text = json.dumps(body["tools"]) if body.get("tools") else ""
    for message in body["messages"]:
        text += f"\x01{message['role']}\x02{message.get('content') or ''}"
    return list(f"{text}\x01assistant\x02".encode())


def said(held: list[int], count: int) -> list[int]:
    """What a model says that depends on every token before."""
    state = zlib.crc32(b"".join(token.to_bytes(4, "big") for token in held))
    made = []
    for _ in range(count):
        state = zlib.crc32(state.to_bytes(4, "big"))
        made.append(97 + state % 26)
    return made


def _usage(ids: list[int], made: list[int], cached: int) -> Json:
    return {
        "prompt_tokens": len(ids),
        "completion_tokens": len(made),
        "total_tokens": len(ids) + len(made),
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def whole(body: Json, ids: list[int], made: list[int], kv: Json | None, cached: int) -> Json:
    """An answer that does not stream."""
    text, chat = bytes(made).decode(), "messages" in body
    choice: Json = {"index": 0, "finish_reason": "length", "logprobs": None}
    choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    answer: Json = {"id": "x", "object": "x", "created": 1, "model": body["model"]}
    answer |= {"choices": [choice], "usage": _usage(ids, made, cached), "kv_transfer_params": kv}
    if body.get("return_token_ids"):
        choice["token_ids"] = made
        (answer if chat else choice)["prompt_token_ids"] = ids
    return answer


async def chunks(
    body: Json, ids: list[int], made: list[int], kv: Json | None, cached: int
) -> AsyncIterator[Json]:
    """An answer that streams, a chunk a token."""
    chat, want = "messages" in body, body.get("return_token_ids")
    head = {"id": "x", "object": "x", "created": 1, "model": body["model"]}
    if chat:
        first: Json = {"index": 0, "delta": {"role": "assistant", "content": ""}}
        yield {**head, "choices": [first], **({"prompt_token_ids": ids} if want else {})}
    for place, token in enumerate(made):
        last = place == len(made) - 1
        choice: Json = {"index": 0, "logprobs": None, "finish_reason": "length" if last else None}
        choice |= {"delta": {"content": chr(token)}} if chat else {"text": chr(token)}
        if want:
            choice["token_ids"] = [token]
            if not chat and place == 0:
                choice["prompt_token_ids"] = ids
        yield {**head, "choices": [choice], **({"kv_transfer_params": kv} if last and kv else {})}
        await asyncio.sleep(0.005)
    if (body.get("stream_options") or {}).get("include_usage"):
        yield {**head, "choices": [], "usage": _usage(ids, made, cached)}


def failed(status: int, message: str) -> web.Response:
    """An error as vLLM says it."""
    return web.json_response({"error": {"message": message, "code": status}}, status=status)


async def main(argv: list[str]) -> None:
    """Serve until it is ended."""
    options = {name: value for name, value in itertools.pairwise(argv) if name.startswith("--")}
    engine = Engine(options)
    print(f"stand-in for an engine, on port {options['--port']}", flush=True)
    doors = (
        (engine.app(), options["--host"], int(options["--port"])),
        (engine.side_app(), *engine.side),
        (engine.data_app(), engine.side[0], 0),
    )
    for app, host, port in doors:
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, host, port).start()
        engine.data_port = runner.addresses[0][1]  # of the last one
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
