"""Which prefill server lately computed which beginnings of prompts. Pure; no tokens needed.

A prompt's beginnings are named by hashes chained over its messages, and over growing pieces of long
texts. They are hints for placement only: a wrong one costs time, never an answer. So Python's own
hash will do, which is many times faster than a digest, keyed anew in each process.
"""

import hashlib
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from pdctl.router.eligible import CHAT, Endpoint

Key = tuple[int, int]
"""Names a beginning of a prompt: its hash, and its size in estimated tokens."""

# Everything outside the messages that stands at the prompt's beginning, or keeps caches apart.
_HEAD = (
    "model", "cache_salt", "tools", "documents", "reasoning_effort", "chat_template",
    "chat_template_kwargs", "add_special_tokens",
)  # fmt: skip
_CHARS_A_TOKEN = 4
# Pieces of a long text: small ones first, then an eighth of what was before.
_SMALLEST_PIECE = 1024
_SMALLEST_OF_CHAT = 4096
_GROWTH = 8

_ANCHOR_CHARS = 64
_ANCHOR_IDS = 16


class PrefixMap:
    """Beginnings of prompts and where they were computed last, least lately used forgotten first.

    Attributes:
        room: tokens that a server's prefix cache can hold, where known. What was pushed out by
            that many later ones is taken for evicted.
    """

    def __init__(self, *, max_keys: int = 50_000) -> None:
        self.room: dict[str, int] = {}
        self._max_keys = max_keys
        # By hash: at which count of computed tokens each server had it last.
        self._seen: OrderedDict[int, dict[str, int]] = OrderedDict()
        self._computed: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def known(self, keys: Sequence[Key], tokens: int | None = None) -> dict[str, int]:
        """By server: tokens of the prompt's beginning that it may still have.

        Args:
            tokens: the prompt's true length where known; the estimates are scaled to it.
        """
        found: dict[str, int] = {}
        for name, size in reversed(keys):
            for url, at in self._seen.get(name, {}).items():
                since = self._computed[url] - at
                # Engines evict ends first, so a shorter beginning may still be there.
                if url not in found and since + size <= self.room.get(url, math.inf):
                    found[url] = size
            if len(found) == len(self._computed):
                break
        if tokens is None or not keys:
            return found
        whole = max(1, keys[-1][1])
        return {url: size * tokens // whole for url, size in found.items()}

    def note(self, keys: Sequence[Key], url: str) -> None:
        """A server has computed a prompt, and so all its beginnings."""
        if not keys:
            return
        new = keys[-1][1] - self.known(keys).get(url, 0)
        now = self._computed[url] = self._computed.get(url, 0) + new
        # The end first, so that it is forgotten first, as engines do.
        for name, _ in reversed(keys):
            self._seen.setdefault(name, {})[url] = now
            self._seen.move_to_end(name)
        while len(self._seen) > self._max_keys:
            self._seen.popitem(last=False)

    def forget(self, url: str) -> None:
        """A server has restarted: it has nothing."""
        if self._computed.pop(url, None) is None:
            return
        for name, servers in list(self._seen.items()):
            servers.pop(url, None)
            if not servers:
                del self._seen[name]


def keys(endpoint: Endpoint, body: Mapping[str, Any]) -> list[Key]:
    """The beginnings of a request's prompt, shortest first; none where it cannot be read."""
    try:
        pieces = _chat(body) if endpoint == CHAT else _completion(body)
        return list(_chained(_head(body), pieces))
    except (TypeError, orjson.JSONEncodeError):
        # Not what it should be; the engine will say so.
        return []


def anchor(endpoint: Endpoint, body: Mapping[str, Any]) -> str | None:
    """Names a conversation that its client does not: by what all its turns begin with.

    That is a chat's messages up to the first of the user, or the first words of a completion.
    Two chats that begin alike are one by this. The same in all routers, whatever the model.
    """
    try:
        begin = _beginning(endpoint, body)
        if not begin:
            return None
        return hashlib.blake2b(orjson.dumps([endpoint, begin]), digest_size=16).hexdigest()
    except (TypeError, orjson.JSONEncodeError):
        return None


def _beginning(endpoint: Endpoint, body: Mapping[str, Any]) -> Any:
    if endpoint != CHAT:
        prompt = _single(body.get("prompt"))
        return prompt[: _ANCHOR_CHARS if isinstance(prompt, str) else _ANCHOR_IDS]
    begin = []
    for message in _messages(body):
        # Clients keep notes of their own in messages; these two make the prompt.
        begin.append([message.get("role"), message.get("content")])
        if message.get("role") == "user":
            break
    return begin


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(type(message) is dict for message in messages):
        raise TypeError("no messages")
    return messages


def _single(prompt: Any) -> str | list[int]:
    """A completion's one prompt; a list of one is the same as the one."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list) or (prompt and type(prompt[0]) is not int):
        raise TypeError("several prompts, or none")
    return prompt


def _head(body: Mapping[str, Any]) -> Key:
    head = [(name, body[name]) for name in _HEAD if body.get(name) is not None]
    text = orjson.dumps(head, option=orjson.OPT_SORT_KEYS)
    return hash(text), len(text) // _CHARS_A_TOKEN


def _chained(head: Key, pieces: Iterator[Key]) -> Iterator[Key]:
    chain, size = head
    for name, tokens in pieces:
        chain = hash((chain, name))
        size += tokens
        yield chain, size


def _chat(body: Mapping[str, Any]) -> Iterator[Key]:
    for message in _messages(body):
        content = message.get("content")
        if not isinstance(content, str):
            content, rest = "", _rest(message)
        elif len(message) == 2 and "role" in message:  # what most are, in less time
            rest = message["role"]
        else:
            rest = _rest({name: value for name, value in message.items() if name != "content"})
        around = len(rest) // _CHARS_A_TOKEN
        if len(content) <= _SMALLEST_OF_CHAT:
            yield hash((rest, content)), around + len(content) // _CHARS_A_TOKEN
        else:
            yield hash(rest), around
            yield from _text(content, _SMALLEST_OF_CHAT)


def _rest(message: Mapping[str, Any]) -> bytes:
    return orjson.dumps(message, option=orjson.OPT_SORT_KEYS)


def _completion(body: Mapping[str, Any]) -> Iterator[Key]:
    prompt = _single(body.get("prompt"))
    return _text(prompt, _SMALLEST_PIECE) if isinstance(prompt, str) else _ids(prompt)


def _text(text: str, smallest: int) -> Iterator[Key]:
    for begin, end in _cuts(len(text), smallest):
        yield hash(text[begin:end]), (end - begin) // _CHARS_A_TOKEN


def _ids(ids: list[int]) -> Iterator[Key]:
    for begin, end in _cuts(len(ids), _SMALLEST_PIECE // _CHARS_A_TOKEN):
        yield hash(tuple(ids[begin:end])), end - begin


def _cuts(length: int, smallest: int) -> Iterator[tuple[int, int]]:
    """The same cuts for every text, as far as it goes, so that a longer one finds them."""
    begin = 0
    while begin < length:
        end = min(length, begin + max(smallest, begin // _GROWTH))
        yield begin, end
        begin = end
