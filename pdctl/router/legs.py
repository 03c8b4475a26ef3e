"""The bodies of the two legs, and what of decode's answer the client gets. Pure.

Prefill computes the prompt and one token; decode continues from its blocks. Nothing of the
machinery may reach the client: no handle, no ids it did not ask for, no engine address.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from pdctl.base.sse import DONE, SseSplitter, data_of, event_of
from pdctl.base.transfer import for_refusal, for_release, for_renewal
from pdctl.router.eligible import CHAT, Endpoint
from pdctl.router.ids import Ids, cut_out

# Neither engine sees these: the first is the router's own, the second would let a client read
# another's KV or make an engine call an address of its choice (vllm PR#47843).
CLIENT_ONLY = ("conversation_id",)
FORBIDDEN = ("kv_transfer_params", "ec_transfer_params")
# The engine lays what is in here over what it gives to its connectors.
_ARGUMENTS = "vllm_xargs"

# On prefill these would change how its one token ends, or cost work nobody sees.
_NOT_FOR_PREFILL = (
    "stop", "stop_token_ids", "min_tokens", "n", "best_of", "use_beam_search", "logprobs",
    "top_logprobs", "prompt_logprobs", "stream_options", "echo", "max_completion_tokens",
)  # fmt: skip
_FOR_PREFILL_OF_IDS = ("model", "cache_salt", "priority", "request_id", "user", _ARGUMENTS)


def client_body(body: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The request as the engines may see it, and the forbidden fields it carried."""
    dropped = [name for name in FORBIDDEN if name in body]
    hidden = {*CLIENT_ONLY, *FORBIDDEN}
    cleaned = {name: value for name, value in body.items() if name not in hidden}
    arguments = mapping(body.get(_ARGUMENTS))
    if among := [name for name in FORBIDDEN if name in arguments]:
        dropped += among
        cleaned[_ARGUMENTS] = {k: v for k, v in arguments.items() if k not in among}
    return cleaned, dropped


def without_handles(raw: bytes) -> tuple[bytes, list[str]]:
    """A body that the engine shall judge by itself, and the forbidden fields taken out of it.

    It is read as the engine reads it: that parser takes NaN, lone surrogates and UTF-16, which
    orjson does not, and such a body must be no way around the router.

    Raises:
        RecursionError: it is nested deeper than can be looked at.
    """
    for loads in (orjson.loads, json.loads):
        try:
            body = loads(raw)
        except ValueError:
            continue
        cleaned, dropped = client_body(body) if isinstance(body, dict) else (body, [])
        return (json.dumps(cleaned).encode() if dropped else raw), dropped
    return raw, []


def is_true(value: object) -> bool:
    """Whether the engine takes a value for true: it also reads words and numbers."""
    if isinstance(value, str):
        return value.lower() in ("1", "true", "t", "yes", "y", "on")
    return value == 1


def mapping(value: object) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def choices_of(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The choices of an answer or a chunk that are objects."""
    choices = answer.get("choices")
    return [c for c in choices if isinstance(c, dict)] if isinstance(choices, list) else []


def count_of(value: object) -> int | None:
    """A number of tokens as an engine says it, None for what is no such number."""
    return value if type(value) is int and value >= 0 else None


def prefill_body(
    endpoint: Endpoint, body: Mapping[str, Any], kv: Mapping[str, Any]
) -> dict[str, Any]:
    """The prefill leg: the same prompt, one token, no stream."""
    leg = {name: value for name, value in body.items() if name not in _NOT_FOR_PREFILL}
    leg |= {"max_tokens": 1, "stream": False, "return_token_ids": True}
    if endpoint == CHAT:
        leg["max_completion_tokens"] = 1
    leg["kv_transfer_params"] = dict(kv)
    return leg


def prefill_of_ids(body: Mapping[str, Any], ids: Ids, kv: Mapping[str, Any]) -> dict[str, Any]:
    """The prefill leg of a prompt that prefill has rendered already: a completion of its ids.

    It has the fields that make a difference to blocks and to when they are computed, and no more.
    The ids are not asked back: a prompt of ids is computed as it is.
    """
    leg = {name: body[name] for name in _FOR_PREFILL_OF_IDS if name in body}
    leg |= {"prompt": ids, "max_tokens": 1, "temperature": 0}
    leg["kv_transfer_params"] = dict(kv)
    return leg


def decode_body(
    endpoint: Endpoint,
    body: Mapping[str, Any],
    kv: Mapping[str, Any] | None,
    *,
    prompt_ids: Ids | None,
    want_ids: bool,
) -> dict[str, Any]:
    """The decode leg: the client's request, with prefill's blocks.

    Args:
        kv: what prefill answered; None when decode is to do the whole request by itself.
        prompt_ids: prefill's own prompt ids, so that decode need not tokenise again (FACTS L5)
            and cannot come to others. Ignored by engines that do not know them.
        want_ids: ask for token ids and usage; only for requests that will be retained.
    """
    leg = dict(body)
    if kv is not None:
        leg["kv_transfer_params"] = dict(kv)
        if prompt_ids is not None:
            _force_ids(endpoint, leg, prompt_ids)
    if want_ids:
        leg["return_token_ids"] = True
        options = leg.get("stream_options")
        # What is no object is for the engine to refuse.
        if is_true(leg.get("stream")) and isinstance(options, Mapping | None):
            leg["stream_options"] = {**(options or {}), "include_usage": True}
    return leg


def _force_ids(endpoint: Endpoint, leg: dict[str, Any], ids: Ids) -> None:
    if endpoint == CHAT:
        leg["kv_transfer_params"]["prompt_token_ids"] = ids
    else:
        # Completions ignore forced ids, and take ids as a prompt.
        leg["prompt"] = ids


def release_by_reading(model: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """A release that every engine knows: a tiny request that pulls nothing (FACTS L3).

    Prefill pins its one block for the lease and steps without work meanwhile.
    """
    return {
        "model": model,
        "prompt": [1, 2, 3],
        "max_tokens": 1,
        "temperature": 0,
        "kv_transfer_params": for_release(params),
    }


def release_by_refusal(model: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """A release that costs prefill nothing: a request that it refuses, and then tells decode so.

    Read in 0.32.0 and 0.33.0 and run on 0.32.0: a rejected request that would have pulled is
    given up with a notification to the other side. It works only once prefill has shaken hands
    with decode, and only if the request is refused inside the handler, as streaming beam search
    is.
    """
    return {
        "model": model,
        "prompt": [1, 2, 3],
        "max_tokens": 1,
        "stream": True,
        "use_beam_search": True,
        "kv_transfer_params": for_refusal(params),
    }


def renewal(model: str, engine_id: str, until: Mapping[str, float]) -> dict[str, Any]:
    """A tiny request that asks decode to keep turns for longer, and keeps nothing itself."""
    return {
        "model": model,
        "prompt": [1, 2, 3],
        "max_tokens": 1,
        "temperature": 0,
        "kv_transfer_params": for_renewal(engine_id, until),
    }


@dataclass
class Harvest:
    """What decode told the router in passing.

    Attributes:
        kv: the handle of the finished turn, if it came.
        generated: ids of the answer, in order.
        usage: the engine's own counts.
        finish_reason: how the turn ended; None when it did not.
        failed: an error event came in the stream.
        done: the stream said that it is over.
        content_seen: something a reader would see was sent on.
    """

    kv: dict[str, Any] | None = None
    generated: list[int] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    finish_reason: str | None = None
    failed: bool = False
    done: bool = False
    content_seen: bool = False

    @property
    def completion_tokens(self) -> int | None:
        """Generated tokens as billed."""
        return count_of(self.usage.get("completion_tokens")) if self.usage else None

    @property
    def calls_tool(self) -> bool:
        """The client has something to do before it can go on."""
        return self.finish_reason in ("tool_calls", "function_call")

    @property
    def over(self) -> bool:
        """A stream that ends now ends as it should, or the client knows that it does not."""
        return self.done or self.failed or self.finish_reason is not None


@dataclass(frozen=True)
class ClientWants:
    """What the client asked for that the router may have to hide otherwise."""

    token_ids: bool
    usage: bool

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> "ClientWants":
        """Read it from the client's own request."""
        return cls(
            token_ids=is_true(body.get("return_token_ids")),
            usage=is_true(mapping(body.get("stream_options")).get("include_usage")),
        )


def true_usage(usage: dict[str, Any], cached_tokens: int | None) -> None:
    """Make `cached_tokens` say what prefill did not compute; decode counts prefill's work too."""
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict) and cached_tokens is not None and "cached_tokens" in details:
        details["cached_tokens"] = cached_tokens


def _take_ids(choice: dict[str, Any], harvest: Harvest, wants: ClientWants) -> None:
    ids = choice.get("token_ids")
    if isinstance(ids, list):
        harvest.generated.extend(ids)
    if not wants.token_ids:
        _blank(choice)


def _blank(holder: dict[str, Any]) -> None:
    """Ids that were not asked for are null, as the engine sends them, not missing."""
    for name in ("token_ids", "prompt_token_ids"):
        if name in holder:
            holder[name] = None


def clean_answer(answer: dict[str, Any], wants: ClientWants, cached_tokens: int | None) -> Harvest:
    """Take the router's part out of a non-streaming answer, in place."""
    harvest = Harvest(content_seen=True)
    kv = answer.get("kv_transfer_params")
    if "kv_transfer_params" in answer:
        # As the engine sends it to a client that has none.
        answer["kv_transfer_params"] = None
    harvest.kv = kv if isinstance(kv, dict) else None
    if not wants.token_ids:
        _blank(answer)
    for choice in choices_of(answer):
        _take_ids(choice, harvest, wants)
        harvest.finish_reason = choice.get("finish_reason") or harvest.finish_reason
    usage = answer.get("usage")
    if isinstance(usage, dict):
        harvest.usage = usage
        true_usage(usage, cached_tokens)
    return harvest


# A word in the middle of an answer, exactly as engines write it. What matches is whole JSON, so
# that it may be cut without being parsed, and says something: it cannot be an end, an error, a
# handle or counts. Parsing and writing such a chunk costs five times as much. A string that is not
# UTF-8 or not escaped as it must be is for the client to judge, as without the router.
_STRING = rb'"(?:[^"\\]|\\.)[^"\\]*(?:\\.[^"\\]*)*"'
_BEFORE_IDS = (
    rb'data: \{"id":"[^"\\]*","object":"[^"\\]*","created":\d+,"model":"[^"\\]*",'
    rb'"choices":\[\{"index":\d+,(?:"delta":\{"(?:content|reasoning)":%b\}|"text":%b),'
    rb'"logprobs":null,"finish_reason":null(?:,"stop_reason":null)?(?:,"prompt_token_ids":null)?'
    % (_STRING, _STRING)
)
_AFTER_IDS = rb'(?:,"weight_versions":null)?\}\](?:,"usage":null)?'
_LIST = rb"(?:\d+(?:,\d+)*)?"
_END = rb'(?:,"kv_transfer_params":null)?\}\n\n'
_WORDS = re.compile(
    rb'(?:%b(?:,"token_ids":(?:null|\[%b\]))?%b%b)+' % (_BEFORE_IDS, _LIST, _AFTER_IDS, _END)
)
# The same, alone in a chunk of HTTP, with what is needed of it.
_CHUNK = re.compile(
    rb'([0-9a-f]+)\r\n(%b)(,"token_ids":(?:null|\[(%b)\]))?(%b)%b\r\n'
    % (_BEFORE_IDS, _LIST, _AFTER_IDS, _END)
)
# Within words these stand where they should: a quotation mark in a string is escaped.
_IDS = re.compile(rb'"token_ids":\[([\d,]*)\]')
# An unfinished event of this length is no word.
_SHORT = 2**14
_NO_IDS = b'"token_ids":null'
_NO_HANDLE = b',"kv_transfer_params":null'


def without_prompt_ids(event: bytes) -> bytes:
    """The event with null for the prompt's ids: a long list that nobody needs to parse."""
    cut = cut_out(event, "prompt_token_ids", b"null")
    return event if cut is None else cut[0]


class StreamCleaner:
    """Passes a decode stream on, event by event, without the router's part.

    With `hold_end`, everything from the chunk with `finish_reason` on is kept back in `tail`
    until the caller has stored the handle: a client may send its next turn as soon as it sees
    the end. It is a matter of a millisecond, and it lets the usage chunk, which the router asked
    for and the client perhaps did not, be taken out after its `system_fingerprint` was moved to
    where the engine would otherwise have put it.
    """

    def __init__(
        self,
        wants: ClientWants,
        cached_tokens: int | None,
        *,
        hold_end: bool,
        splitter: SseSplitter | None = None,
    ) -> None:
        self.harvest = Harvest()
        self.splitter = splitter or SseSplitter()
        self._wants = wants
        self._cached_tokens = cached_tokens
        self._hold_end = hold_end
        self._tail: list[bytes | dict[str, Any]] = []

    def feed_some(self, data: bytes) -> bytes:
        """The bytes to send now for what has come, which may end in mid-event."""
        begin = b""
        if not self._tail and len(rest := self.splitter.rest()) < _SHORT:
            if rest:
                data = self.splitter.take_rest() + data
            if words := _WORDS.match(data):
                begin, data = self._words(words[0]), data[words.end() :]
                if not data:
                    return begin
        # Whole events may be waiting in there also when nothing new has come.
        return begin + self.feed_all(self.splitter.feed(data))

    def feed_chunk(self, data: bytes) -> bytes:
        """The bytes to send for one word that is a whole chunk of HTTP; nothing for all else.

        Most of a stream is such words. To take them as they come costs half of the long way.
        """
        if self._tail or self._wants.token_ids or self.splitter.rest():
            return b""
        word = _CHUNK.fullmatch(data)
        if word is None:
            return b""
        size, before, named, ids, after = word.groups()
        if int(size, 16) != len(data) - len(size) - 4:
            return b""
        self.harvest.content_seen = True
        if ids:
            self.harvest.generated.extend(map(int, ids.split(b",")))
        return b"".join((before, b"," + _NO_IDS if named else b"", after, b"}\n\n"))

    def feed_all(self, events: Iterable[bytes]) -> bytes:
        """The bytes to send for these events now."""
        return b"".join(map(self.feed, events))

    def feed(self, event: bytes) -> bytes:
        """The bytes to send for this event now."""
        if not self._tail and _WORDS.fullmatch(event):
            return self._words(event)
        out = self._clean(event)
        if not self._holding(out):
            return _bytes(out)
        self._tail.append(out)
        return b""

    def tail(self) -> bytes:
        """What was held back, to be sent when the handle is stored."""
        tail, self._tail = self._tail, []
        return b"".join(_bytes(part) for part in tail)

    def _words(self, words: bytes) -> bytes:
        self.harvest.content_seen = True
        between = _IDS.split(words)
        ids = b",".join(filter(None, between[1::2]))
        if ids:
            self.harvest.generated.extend(map(int, ids.split(b",")))
        if not self._wants.token_ids:
            words = _NO_IDS.join(between[::2])
        return words.replace(_NO_HANDLE, b"")

    def _holding(self, out: bytes | dict[str, Any]) -> bool:
        if self._tail:
            return True
        return self._hold_end and isinstance(out, dict) and _finished(out)

    def _clean(self, event: bytes) -> bytes | dict[str, Any]:
        if not self._wants.token_ids:
            event = without_prompt_ids(event)
        data = data_of(event)
        if data == DONE:
            self.harvest.done = True
        # Engines name no events; one that has a name is not a chunk.
        if data is None or data == DONE or not (event.startswith(b"data:") or _tells(event)):
            return event
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            return b"" if _tells(event) else event
        if not isinstance(chunk, dict):
            return event
        if "error" in chunk:
            self.harvest.failed = True
            return {"error": chunk["error"]} if _tells(event) else event
        return self._chunk(chunk)

    def _chunk(self, chunk: dict[str, Any]) -> bytes | dict[str, Any]:
        kv = chunk.pop("kv_transfer_params", None)
        if isinstance(kv, dict):
            self.harvest.kv = kv
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self.harvest.usage = usage
            true_usage(usage, self._cached_tokens)
        if choices := choices_of(chunk):
            return self._choices(chunk, choices)
        if self._hold_end and isinstance(usage, dict) and not self._wants.usage:
            self._move_fingerprint(chunk)
            return b""
        return chunk

    def _move_fingerprint(self, chunk: Mapping[str, Any]) -> None:
        last = self._tail[0] if self._tail else None
        if isinstance(last, dict) and "system_fingerprint" in chunk:
            last["system_fingerprint"] = chunk["system_fingerprint"]

    def _choices(
        self, chunk: dict[str, Any], choices: list[dict[str, Any]]
    ) -> bytes | dict[str, Any]:
        if not self._wants.token_ids:
            _blank(chunk)
        for choice in choices:
            carried_ids = bool(choice.get("token_ids"))
            _take_ids(choice, self.harvest, self._wants)
            if choice.get("finish_reason"):
                self.harvest.finish_reason = choice["finish_reason"]
            elif carried_ids and not self._wants.token_ids and _says_nothing(choice):
                # Without ids the engine would not have sent this chunk at all.
                return b""
            self.harvest.content_seen |= _shows(choice)
        return chunk


def _bytes(out: bytes | dict[str, Any]) -> bytes:
    return out if isinstance(out, bytes) else event_of(orjson.dumps(out))


def _finished(chunk: Mapping[str, Any]) -> bool:
    return any(choice.get("finish_reason") for choice in choices_of(chunk))


def _tells(event: bytes) -> bool:
    """Whether there is something in it that clients must not see."""
    return b"kv_transfer_params" in event or b"token_ids" in event


def _says_nothing(choice: Mapping[str, Any]) -> bool:
    return choice.get("delta") == {} and not choice.get("logprobs")


def _shows(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta")
    if isinstance(delta, Mapping):
        return any(value for name, value in delta.items() if name != "role")
    return bool(choice.get("text"))


def only_names_role(event: bytes) -> bool:
    """True for the chunk that a chat begins with, before anything is generated."""
    data = data_of(without_prompt_ids(event))
    if data is None or not data.startswith(b"{"):
        return data is None  # a comment says no more
    try:
        chunk = orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    choices = chunk.get("choices")
    if not isinstance(choices, list) or not choices:
        return False
    return all(
        isinstance(choice, dict)
        and isinstance(choice.get("delta"), dict)
        and "role" in choice["delta"]
        and not choice.get("finish_reason")
        and not _shows(choice)
        for choice in choices
    )


def error_of(event: bytes) -> dict[str, Any] | None:
    """The error that an SSE event carries, None for any other event."""
    if _WORDS.fullmatch(event):
        return None
    data = data_of(event)
    if data is None or not data.startswith(b"{"):
        return None
    try:
        chunk = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(chunk, dict):
        return None
    if "error" in chunk:
        return chunk
    reasons = [choice.get("finish_reason") for choice in choices_of(chunk)]
    return chunk if "error" in reasons else None


def error_body(message: str, kind: str, code: int, request_id: str) -> bytes:
    """An error of the router's own, in the engines' shape."""
    return orjson.dumps(
        {"error": {"message": message, "type": kind, "code": code, "request_id": request_id}}
    )
