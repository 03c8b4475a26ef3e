"""The one client for turns of a conversation, with exact times; verify, tests and bench share it.

TTFT runs from just before the request is sent to the arrival of the first event that brings
something generated: text, reasoning, a tool call, or a token whose text is still held back.
A first chunk that only names the role is none.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp

from pdctl.base.errors import TemporaryError, UnreachableError
from pdctl.base.explain import (
    CONVERSATION_HEADER,
    EXPLAIN_HEADER,
    TURN_HEADER,
    TurnExplanation,
    read_explanation,
)
from pdctl.base.sse import DONE, SseSplitter, data_of

Json = dict[str, Any]
_T = TypeVar("_T")


class TurnTimeoutError(TemporaryError):
    """A limit of `TurnLimits` passed; `limit` is its name."""

    def __init__(self, limit: str, seconds: float, where: str) -> None:
        super().__init__(f"no answer within the limit `{limit}` of {seconds:g} s", where=where)
        self.limit = limit
        self.seconds = seconds


@dataclass(frozen=True)
class TurnLimits:
    """Every wait has a name and a number of seconds.

    Attributes:
        connect: to open the connection.
        first_byte: from sending to the first byte of a streamed body (or of the headers).
        idle: between two pieces of a body.
        total: for the whole turn; the only one besides `connect` when the answer is not streamed.
    """

    connect: float = 5.0
    first_byte: float = 120.0
    idle: float = 120.0
    total: float = 600.0


@dataclass(frozen=True)
class TurnRequest:
    """One turn: `messages` makes it a chat, `prompt` (text or token ids) a completion.

    Attributes:
        model: served name.
        stream: streamed turns have exact times, others only `total_s`.
        return_token_ids: ask for the ids of prompt and answer.
        cache_salt: a value nobody else uses makes every prefix cache miss.
        conversation_id: the router's hint, in the header and in the body.
        explain: ask the router what it did (`Turn.explanation`).
        api_key: for `Authorization: Bearer`.
        extra: further fields of the body; they win over the fields made here.
        headers: further headers.
    """

    model: str
    messages: Sequence[Mapping[str, Any]] | None = None
    prompt: str | Sequence[int] | None = None
    max_tokens: int = 16
    stream: bool = True
    temperature: float = 0.0
    ignore_eos: bool = False
    return_token_ids: bool = False
    cache_salt: str | None = None
    conversation_id: str | None = None
    explain: bool = False
    api_key: str | None = field(default=None, repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.messages is None) == (self.prompt is None):
            raise ValueError("a turn has either messages or a prompt")

    @property
    def path(self) -> str:
        """The API path."""
        return "/v1/completions" if self.messages is None else "/v1/chat/completions"

    def body(self) -> Json:
        """The JSON body, keys in a fixed order."""
        body: Json = {"model": self.model}
        if self.messages is not None:
            body["messages"] = [dict(message) for message in self.messages]
        else:
            assert self.prompt is not None
            body["prompt"] = self.prompt if isinstance(self.prompt, str) else list(self.prompt)
        body |= {"max_tokens": self.max_tokens, "temperature": self.temperature}
        body["stream"] = self.stream
        if self.stream:
            body["stream_options"] = {"include_usage": True}
        for name in ("ignore_eos", "return_token_ids", "cache_salt", "conversation_id"):
            if value := getattr(self, name):
                body[name] = value
        return body | dict(self.extra)

    def sent_headers(self) -> dict[str, str]:
        """The headers besides those of HTTP itself."""
        headers = {"content-type": "application/json"}
        if self.conversation_id:
            headers[CONVERSATION_HEADER] = self.conversation_id
        if self.explain:
            headers[EXPLAIN_HEADER] = "1"
        if self.api_key:
            headers["authorization"] = f"Bearer {self.api_key}"
        return headers | dict(self.headers)


@dataclass(frozen=True)
class Turn:
    """An answer, or what came instead of one.

    Attributes:
        status: HTTP status.
        text: the answer's text (without reasoning).
        message: the assistant's message as a client puts it into the next turn's history; for a
            completion `{"role": "assistant", "content": text}`.
        finish_reason: of the first choice.
        usage: as the server sent it.
        token_ids, prompt_token_ids: None unless asked for and sent.
        kv_transfer_params: seen only when an engine is asked directly.
        ttft_s: seconds to the first generated thing; None when not streamed or nothing came.
        itl_s: seconds between the events that brought something generated.
        total_s: seconds to the end of the body.
        chunks: the JSON of every event, or the one JSON body.
        headers: response headers, names in lower case.
        error: the error body, an error event, or `{"error": {"type": "connection_lost", …}}`
            when the connection broke after the status line.
        complete: the body came to its end (`[DONE]` for a stream).
    """

    status: int
    text: str
    message: Json
    finish_reason: str | None
    usage: Json | None
    token_ids: tuple[int, ...] | None
    prompt_token_ids: tuple[int, ...] | None
    kv_transfer_params: Json | None
    ttft_s: float | None
    itl_s: tuple[float, ...]
    total_s: float
    chunks: tuple[Json, ...]
    headers: Mapping[str, str]
    error: Any
    complete: bool

    @property
    def ok(self) -> bool:
        """A whole answer without an error in it."""
        return self.status == 200 and self.error is None and self.complete

    @property
    def tool_calls(self) -> list[Json]:
        """Tool calls of the message, in order; empty when there are none."""
        calls: list[Json] = self.message.get("tool_calls") or []
        return calls

    @property
    def reasoning(self) -> str:
        """Reasoning text of the message; empty when there is none."""
        return self.message.get("reasoning") or self.message.get("reasoning_content") or ""

    @property
    def prompt_tokens(self) -> int | None:
        """`usage.prompt_tokens`."""
        return self._counted("prompt_tokens")

    @property
    def output_tokens(self) -> int | None:
        """`usage.completion_tokens`."""
        return self._counted("completion_tokens")

    @property
    def explanation(self) -> TurnExplanation | None:
        """What the router said about the turn; None when it was not asked or is another router."""
        return read_explanation(self.headers.get(TURN_HEADER))

    @property
    def error_text(self) -> str:
        """The error in one line for people; empty when there is none."""
        if self.error is None:
            return "" if self.complete else "the answer was cut off"
        inner = self.error.get("error", self.error) if isinstance(self.error, dict) else self.error
        text = inner.get("message") if isinstance(inner, dict) else inner
        return " ".join(str(text or inner).split())[:500]

    def _counted(self, name: str) -> int | None:
        value = (self.usage or {}).get(name)
        return value if isinstance(value, int) else None


@dataclass
class TurnReader:
    """Collects a turn from its pieces; no I/O, times are given."""

    started: float
    keep_chunks: bool = True
    done: bool = False
    error: Any = None
    _texts: list[str] = field(default_factory=list)
    _fields: dict[str, list[str]] = field(default_factory=dict)
    _calls: dict[int, Json] = field(default_factory=dict)
    _message: Json | None = None
    _finish: str | None = None
    _usage: Json | None = None
    _ids: list[int] | None = None
    _prompt_ids: list[int] | None = None
    _kv: Json | None = None
    _arrivals: list[float] = field(default_factory=list)
    _chunks: list[Json] = field(default_factory=list)

    def data(self, data: bytes, at: float) -> None:
        """Take one event's data, or the body of an answer that is not streamed."""
        if data == DONE:
            self.done = True
            return
        try:
            chunk = json.loads(data)
        except ValueError:
            chunk = None
        if not isinstance(chunk, dict):
            self.error = {
                "error": {"type": "not_json", "message": data[:200].decode("utf-8", "replace")}
            }
            return
        self._take(chunk, at)

    def _take(self, chunk: Json, at: float) -> None:
        if self.keep_chunks:
            self._chunks.append(chunk)
        if chunk.get("error") is not None:
            self.error = chunk
        self._usage = chunk.get("usage") or self._usage
        self._kv = chunk.get("kv_transfer_params") or self._kv
        if chunk.get("prompt_token_ids") is not None:
            self._prompt_ids = chunk["prompt_token_ids"]
        generated = [self._choice(choice) for choice in _first_choice(chunk)]
        if any(generated):
            self._arrivals.append(at)

    def _choice(self, choice: Json) -> bool:
        self._finish = choice.get("finish_reason") or self._finish
        if choice.get("prompt_token_ids") is not None:
            self._prompt_ids = choice["prompt_token_ids"]
        ids = choice.get("token_ids")
        if ids is not None:
            self._ids = (self._ids or []) + ids
        if isinstance(choice.get("message"), dict):
            self._message = choice["message"]
        text = choice.get("text") or ""
        self._texts.append(text)
        return self._delta(choice.get("delta") or {}) or bool(text or ids)

    def _delta(self, delta: Json) -> bool:
        self._texts.append(delta.get("content") or "")
        for name in ("reasoning", "reasoning_content", "refusal"):
            if delta.get(name):
                self._fields.setdefault(name, []).append(delta[name])
        for call in delta.get("tool_calls") or ():
            _merge_call(self._calls.setdefault(call.get("index", 0), {}), call)
        return any(
            delta.get(name)
            for name in ("content", "reasoning", "reasoning_content", "refusal", "tool_calls")
        )

    def turn(
        self,
        *,
        status: int,
        headers: Mapping[str, str],
        ended: float,
        streamed: bool,
        complete: bool,
    ) -> Turn:
        """The finished turn."""
        message = self._whole_message()
        gaps = zip(self._arrivals, self._arrivals[1:], strict=False)
        return Turn(
            status=status,
            text=message.get("content") or "",
            message=message,
            finish_reason=self._finish,
            usage=self._usage,
            token_ids=None if self._ids is None else tuple(self._ids),
            prompt_token_ids=None if self._prompt_ids is None else tuple(self._prompt_ids),
            kv_transfer_params=self._kv,
            ttft_s=self._arrivals[0] - self.started if streamed and self._arrivals else None,
            itl_s=tuple(later - earlier for earlier, later in gaps) if streamed else (),
            total_s=ended - self.started,
            chunks=tuple(self._chunks),
            headers=headers,
            error=self.error,
            complete=complete,
        )

    def _whole_message(self) -> Json:
        if self._message is not None:
            return self._message
        message: Json = {"role": "assistant", "content": "".join(self._texts)}
        message |= {name: "".join(parts) for name, parts in self._fields.items()}
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        return message


def _first_choice(chunk: Json) -> list[Json]:
    choices = chunk.get("choices")
    if not isinstance(choices, list):
        return []
    return [c for c in choices if isinstance(c, dict) and c.get("index", 0) == 0]


def _merge_call(whole: Json, part: Json) -> None:
    for key in ("id", "type"):
        if part.get(key):
            whole[key] = part[key]
    function = whole.setdefault("function", {"name": "", "arguments": ""})
    for key in ("name", "arguments"):
        function[key] += (part.get("function") or {}).get(key) or ""


def base_url(url: str) -> str:
    """A base URL without a slash at its end."""
    return url.rstrip("/")


async def send_turn(
    session: aiohttp.ClientSession,
    url: str,
    request: TurnRequest,
    *,
    limits: TurnLimits | None = None,
    keep_chunks: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> Turn:
    """Send one turn to a router or an engine and read its answer to the end.

    An HTTP error, an error event and a connection that breaks after the status line are in the
    `Turn`, not raised.

    Args:
        url: base URL, without the API path.
        keep_chunks: False saves memory where only text and times matter.

    Raises:
        UnreachableError: no connection, or it broke before the status line.
        TurnTimeoutError: a limit passed.
    """
    limits = limits or TurnLimits()
    where = base_url(url) + request.path
    payload = json.dumps(request.body(), ensure_ascii=False).encode()
    reader = TurnReader(started=clock(), keep_chunks=keep_chunks)
    first = limits.first_byte if request.stream else limits.total
    try:
        async with asyncio.timeout(limits.total):
            response = await _within(
                session.post(
                    where,
                    data=payload,
                    headers=request.sent_headers(),
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.connect),
                ),
                "first_byte" if request.stream else "total",
                first,
                where,
            )
            async with response:
                return await _read(response, reader, request, limits, clock)
    except TimeoutError as error:
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            raise UnreachableError(
                f"no connection within {limits.connect:g} s", where=where
            ) from error
        raise TurnTimeoutError("total", limits.total, where) from error
    except aiohttp.ClientError as error:
        raise UnreachableError(f"cannot reach the server: {error}", where=where) from error


async def _within(action: Awaitable[_T], limit: str, seconds: float, where: str) -> _T:
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            return await action
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise TurnTimeoutError(limit, seconds, where) from error


async def _read(
    response: aiohttp.ClientResponse,
    reader: TurnReader,
    request: TurnRequest,
    limits: TurnLimits,
    clock: Callable[[], float],
) -> Turn:
    streamed = response.status == 200 and response.content_type == "text/event-stream"
    try:
        if streamed:
            await _read_events(response, reader, request, limits, clock)
        else:
            await _read_body(response, reader, request, limits, clock)
        complete = reader.done or not streamed
    except aiohttp.ClientError as error:
        complete = False
        reader.error = {
            "error": {"type": "connection_lost", "message": str(error) or type(error).__name__}
        }
    headers = {name.lower(): value for name, value in response.headers.items()}
    return reader.turn(
        status=response.status, headers=headers, ended=clock(), streamed=streamed, complete=complete
    )


async def _read_events(
    response: aiohttp.ClientResponse,
    reader: TurnReader,
    request: TurnRequest,
    limits: TurnLimits,
    clock: Callable[[], float],
) -> None:
    splitter = SseSplitter()
    limit, seconds = "first_byte", limits.first_byte
    where = f"{response.url}"
    while piece := await _within(response.content.readany(), limit, seconds, where):
        at = clock()
        limit, seconds = "idle", limits.idle
        for event in splitter.feed(piece):
            data = data_of(event)
            if data is not None:
                reader.data(data, at)


async def _read_body(
    response: aiohttp.ClientResponse,
    reader: TurnReader,
    request: TurnRequest,
    limits: TurnLimits,
    clock: Callable[[], float],
) -> None:
    body = await _within(response.read(), "idle", limits.idle, f"{response.url}")
    if response.status == 200:
        reader.data(body, clock())
        return
    try:
        reader.error = json.loads(body)
    except ValueError:
        reader.error = {"error": {"message": body.decode("utf-8", "replace").strip()}}
