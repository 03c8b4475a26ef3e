"""Prompt ids as engines write them: tens of thousands, mostly compared and passed on. Pure.

To read, compare and write lists of them would cost a third of what a long prompt costs the router.
"""

import re
from functools import cached_property, lru_cache
from typing import Any

import orjson

from pdctl.router import match

# Stands where the ids were; no engine writes it.
_MARK = "\ue000ids\ue000"


class Ids:
    """A list of ids, as JSON and packed, each made when it is first wanted.

    Two are equal when their ids are, however they are written.
    """

    def __init__(self, value: bytes | list[Any]) -> None:
        self._value = value

    @classmethod
    def of(cls, value: object) -> "Ids | None":
        """Ids out of an answer or a request; None for what is no list."""
        if isinstance(value, list):
            return cls(value)
        return value if isinstance(value, cls) else None

    @cached_property
    def raw(self) -> bytes:
        """The list as JSON."""
        return self._value if isinstance(self._value, bytes) else orjson.dumps(self._value)

    @cached_property
    def packed(self) -> bytes | None:
        """As handles keep them; None when there is something else than ids in the list."""
        try:
            ids = orjson.loads(self._value) if isinstance(self._value, bytes) else self._value
        except orjson.JSONDecodeError:
            return None
        return match.packed(ids)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ids):
            return NotImplemented
        return self.raw == other.raw or (self.packed is not None and self.packed == other.packed)

    __hash__ = None  # type: ignore[assignment]


def dumps(body: object) -> bytes:
    """JSON of what may have ids in it."""
    return orjson.dumps(body, default=_written)


def loads(raw: bytes, name: str) -> Any:
    """A JSON answer; the list of this name, on it or on its first choice, becomes `Ids`.

    Raises:
        orjson.JSONDecodeError: it is no JSON.
    """
    cut = cut_out(raw, name, orjson.dumps(_MARK))
    if cut is None:
        return orjson.loads(raw)
    value = orjson.loads(cut[0])
    for holder in _holders(value):
        if holder.get(name) == _MARK:
            holder[name] = Ids(cut[1])
            return value
    return orjson.loads(raw)  # some other list of that name


def cut_out(raw: bytes, name: str, instead: bytes) -> tuple[bytes, bytes] | None:
    """JSON with something else for its first list of this name, and the list; None without one.

    A quotation mark in a string is escaped, so what stands before a `"` and a `:` is a name; and
    a list without quotation marks and brackets ends at its first bracket.
    """
    found = _beginning(name).search(raw)
    if found is None:
        return None
    begin = found.end() - 1
    end = raw.find(b"]", begin) + 1
    cut = raw[begin:end]
    if not end or b'"' in cut or b"[" in cut[1:]:
        return None
    return b"".join((raw[:begin], instead, raw[end:])), cut


@lru_cache
def _beginning(name: str) -> re.Pattern[bytes]:
    return re.compile(rb'[{,] ?"%b": ?\[' % name.encode())


def _holders(answer: Any) -> list[dict[str, Any]]:
    """Where engines put a prompt's ids: on the answer for chats, on the choice else."""
    if not isinstance(answer, dict):
        return []
    choices = answer.get("choices")
    first = choices[:1] if isinstance(choices, list) else []
    return [answer, *(choice for choice in first if isinstance(choice, dict))]


def _written(value: object) -> orjson.Fragment:
    if isinstance(value, Ids):
        return orjson.Fragment(value.raw)
    raise TypeError
