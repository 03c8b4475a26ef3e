"""A fake prefill and a fake decode engine that cost next to nothing: what is left is the router.

Tokens are the words of a history, each message tokenised for itself, so that a history that
carries decode's own words back comes to the same ids. A handle is good for one read, for a
prompt that begins with the very tokens it holds, and with as many blocks as its tokens fill; any
other is answered with an error and counted as bad.

usage: python fakes.py
Prints one JSON line, {"prefill": URL, "decode": URL}, and serves until its input ends.
`POST /fake {"words": n, "gap": seconds}` changes the answers; `GET /fake` gives the counts.
"""

import asyncio
import itertools
import sys
import zlib
from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, cast

import orjson

BLOCK = 16
VOCABULARY = 200_003
_IDENTITY = b'{"id":"%s","object":"chat.completion%s","created":1,"model":"m","choices":['


@dataclass(frozen=True)
class Text:
    """Tokens as they are compared, and as JSON shows them."""

    ids: bytes
    shown: bytes

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.ids) // 4

    def __add__(self, other: "Text") -> "Text":
        return Text(self.ids + other.ids, self.shown + b"," + other.shown)


def text_of(ids: list[int]) -> Text:
    """A list of ids as a text."""
    return Text(array("I", ids).tobytes(), orjson.dumps(ids)[1:-1])


def tokenise(role: str, content: str) -> Text:
    """One message. Engines tokenise a whole history each time they are asked, and so does this."""
    words = [f"<{role}>", *content.split()]
    return text_of([zlib.crc32(word.encode()) % VOCABULARY for word in words])


def prompt_of(body: dict[str, Any]) -> Text:
    """The ids of a request's prompt: forced ones, else given ones, else those of its words."""
    forced = (body.get("kv_transfer_params") or {}).get("prompt_token_ids")
    if forced or isinstance(body.get("prompt"), list):
        return text_of(forced or body["prompt"])
    if "prompt" in body:
        return tokenise("prompt", body["prompt"])
    text = tokenise("begin", "")
    for message in body["messages"]:
        text += tokenise(message["role"], message.get("content") or "")
    return text + tokenise("assistant", "")


@dataclass
class Counts:
    """What prefill was asked. `bad` are handles that no engine would have survived."""

    requests: int = 0
    hits: int = 0
    reused_tokens: int = 0
    released: int = 0
    bad: int = 0


class Pair:
    """Both engines: decode's retained turns, and the switches of the measurement."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.words = 64
        self.gap = 0.0
        self._held: dict[str, Text] = {}
        self._number = itertools.count()

    def handle(self, role: str, name: str, tokens: int, **more: Any) -> dict[str, Any]:
        return {
            "do_remote_prefill": role == "prefill",
            "do_remote_decode": role == "decode",
            "remote_block_ids": [list(range(-(-tokens // BLOCK)))],
            "remote_engine_id": role,
            "remote_request_id": name,
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": tokens,
            "transfer_mode": "pull",
            **more,
        }

    def pull(self, kv: dict[str, Any], prompt: Text) -> int | None:
        """Tokens that prefill reads by this handle, 0 for a release; None when it is bad."""
        tokens = kv.get("remote_num_tokens") or 0
        held = self._held.pop(kv.get("remote_request_id") or "", None)
        if held is None or tokens >= held.length:
            return None
        if tokens == 0:
            return 0
        if len(kv["remote_block_ids"][0]) != -(-tokens // BLOCK):
            return None
        return tokens if held.ids[: 4 * tokens] == prompt.ids[: 4 * tokens] else None

    def prefill(self, connection: "Connection", path: str, body: dict[str, Any]) -> None:
        prompt, kv, pulled = prompt_of(body), body.get("kv_transfer_params") or {}, 0
        self.counts.requests += 1
        if kv.get("remote_block_ids"):
            if body.get("stream") and body.get("use_beam_search"):
                self.counts.released += self._held.pop(kv["remote_request_id"], None) is not None
                return connection.answer(400, b'{"error":{"message":"beam search","code":400}}')
            read = self.pull(kv, prompt)
            if read is None:
                self.counts.bad += 1
                return connection.answer(500, b'{"error":{"message":"bad handle","code":500}}')
            pulled = read
            self.counts.hits += pulled > 0
            self.counts.reused_tokens += pulled
            self.counts.released += pulled == 0
        name = f"p{next(self._number)}"
        kv = self.handle("prefill", name, prompt.length, remote_prefill_cached_tokens=pulled)
        return connection.answer(200, _whole(name, path, body, prompt, text_of([1]), "a", kv))

    def decode(self, connection: "Connection", path: str, body: dict[str, Any]) -> None:
        prompt, name = prompt_of(body), f"d{next(self._number)}"
        count = min(self.words, body["max_tokens"])
        words = [f"tok{number * 7919 + prompt.length}" for number in range(count)]
        made = text_of([zlib.crc32(word.encode()) % VOCABULARY for word in words])
        kv = None
        if body.get("kv_transfer_params"):
            self._held[name] = prompt + made
            kv = self.handle("decode", name, prompt.length + count - 1)
        if body.get("stream"):
            events = _events(name, body, prompt, made, words, kv)
            return connection.stream(events, self.gap)
        return connection.answer(200, _whole(name, path, body, prompt, made, " ".join(words), kv))

    def switch(self, body: dict[str, Any]) -> bytes:
        """Change the answers to come, and start counting anew."""
        self.words = body.get("words", self.words)
        self.gap = body.get("gap", self.gap)
        self.counts = Counts()
        return b"{}"


def _usage(prompt: Text, made: Text) -> dict[str, int]:
    return {
        "prompt_tokens": prompt.length,
        "completion_tokens": made.length,
        "total_tokens": prompt.length + made.length,
    }


def _ids(name: bytes, text: Text, body: dict[str, Any]) -> bytes:
    shown = b"[%s]" % text.shown if body.get("return_token_ids") else b"null"
    return b',"%s":%s' % (name, shown)


def _whole(
    name: str,
    path: str,
    body: dict[str, Any],
    prompt: Text,
    made: Text,
    content: str,
    kv: dict[str, Any] | None,
) -> bytes:
    """An answer that does not stream. Chats tell the prompt's ids on it, completions elsewhere."""
    of_prompt = _ids(b"prompt_token_ids", prompt, body)
    if path.endswith("chat/completions"):
        said = b'"message":{"role":"assistant","content":%s}' % orjson.dumps(content)
        on_choice, on_answer = b"", of_prompt
    else:
        said, on_choice, on_answer = b'"text":%s' % orjson.dumps(content), of_prompt, b""
    return b"".join(
        (
            _IDENTITY % (name.encode(), b""),
            b'{"index":0,%s,"logprobs":null,"finish_reason":"length"' % said,
            _ids(b"token_ids", made, body),
            on_choice,
            b'}],"usage":%s' % orjson.dumps(_usage(prompt, made)),
            on_answer,
            b',"kv_transfer_params":%s}' % orjson.dumps(kv),
        )
    )


def _events(
    name: str,
    body: dict[str, Any],
    prompt: Text,
    made: Text,
    words: list[str],
    kv: dict[str, Any] | None,
) -> list[bytes]:
    """The events of a streamed chat, as vLLM 0.33 writes them: the role, the words, the counts."""
    begin = b"data: " + _IDENTITY % (name.encode(), b".chunk") + b'{"index":0,"delta":{'
    role = b'"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
    events = [begin + role + _ids(b"prompt_token_ids", prompt, body) + b"}\n\n"]
    ids = made.shown.split(b",")
    for place, (word, token) in enumerate(zip(words, ids, strict=True)):
        last = place == len(words) - 1
        parts = [
            begin,
            b'"content":"%s "},"logprobs":null,"finish_reason":' % word.encode(),
            b'"length","stop_reason":null' if last else b"null",
            b',"token_ids":%s' % (b"[%s]" % token if body.get("return_token_ids") else b"null"),
            b'}],"kv_transfer_params":%s}\n\n' % (orjson.dumps(kv) if last else b"null"),
        ]
        events.append(b"".join(parts))
    # The role comes with the first word: both are written when the first token is there.
    events[:2] = [events[0] + events[1]]
    if (body.get("stream_options") or {}).get("include_usage"):
        head = b"data: " + _IDENTITY % (name.encode(), b".chunk")
        events.append(head + b'],"usage":%s}\n\n' % orjson.dumps(_usage(prompt, made)))
    events.append(b"data: [DONE]\n\n")
    return events


class Connection(asyncio.Protocol):
    """As much of an HTTP/1.1 server as the routers need."""

    def __init__(self, serve: "Callable[[Connection, str, str, bytes], None]") -> None:
        self._serve = serve
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._needed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < self._needed:
            return
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._received[:end]).decode("latin-1")
        length = 0
        for line in head.split("\r\n")[1:]:
            name, _, value = line.partition(":")
            if name.lower() == "content-length":
                length = int(value)
        self._needed = end + 4 + length
        if len(self._received) < self._needed:
            return
        body = bytes(self._received[end + 4 : self._needed])
        # No router here sends a request before it has the answer to the one before.
        self._received.clear()
        self._needed = 0
        method, path = head.split(" ", 2)[:2]
        self._serve(self, method, path.split("?")[0], body)

    def answer(self, status: int, body: bytes) -> None:
        head = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._write(head % (status, len(body)) + body)

    def stream(self, events: list[bytes], gap: float) -> None:
        self._write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        self._send(iter(events), gap)

    def _send(self, events: "itertools.chain[bytes] | Any", gap: float) -> None:
        for event in events:
            self._write(b"%x\r\n%s\r\n" % (len(event), event))
            if gap and event != b"data: [DONE]\n\n":
                asyncio.get_running_loop().call_later(gap, self._send, events, gap)
                return
        self._write(b"0\r\n\r\n")

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


def server(pair: Pair, role: str) -> Callable[[Connection, str, str, bytes], None]:
    """The paths of one engine."""
    generate = pair.prefill if role == "prefill" else pair.decode
    fixed = {
        "/health": b"{}",
        "/version": b'{"version":"0.33.0"}',
        "/v1/models": b'{"object":"list","data":[{"id":"m","object":"model"}]}',
        "/metrics": b'vllm:cache_config_info{block_size="%d",num_gpu_blocks="1000000"} 1\n' % BLOCK
        + b"vllm:kv_cache_usage_perc 0.1\nvllm:num_requests_waiting 0\n",
        "/get_server_info": b"{}",
    }

    def serve(connection: Connection, method: str, path: str, raw: bytes) -> None:
        if path == "/fake":
            told = asdict(pair.counts) if method == "GET" else pair.switch(orjson.loads(raw))
            return connection.answer(200, told if isinstance(told, bytes) else orjson.dumps(told))
        if method == "GET":
            known = path in fixed
            return connection.answer(200 if known else 404, fixed.get(path, b"{}"))
        body = orjson.loads(raw)
        if path == "/v1/chat/completions/render":
            shown = b'{"request_id":"r","token_ids":[%s],"model":"m"}'
            return connection.answer(200, shown % prompt_of(body).shown)
        if path == "/tokenize":
            prompt = prompt_of(body)
            shown = b'{"count":%d,"max_model_len":1048576,"tokens":[%s]}'
            return connection.answer(200, shown % (prompt.length, prompt.shown))
        return generate(connection, path, body)

    return serve


async def main() -> None:
    loop = asyncio.get_running_loop()
    pair, urls = Pair(), {}
    for role in ("prefill", "decode"):
        serve = server(pair, role)
        listening = await loop.create_server(lambda s=serve: Connection(s), "127.0.0.1", 0)
        urls[role] = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    print(orjson.dumps(urls).decode(), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    try:
        from uvloop import run
    except ImportError:
        from asyncio import run
    run(main())
