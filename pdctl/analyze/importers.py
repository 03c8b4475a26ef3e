"""Logs of others that have the fields: LiteLLM's JSON, and vLLM's own lines of requests."""

import re
from calendar import timegm
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from pdctl.analyze.read import BAD_JSON, NO_TOKENS, UNNAMED_REASON, JsonReader, LineReader
from pdctl.analyze.record import Rich, Row

KINDS = ("requests", "litellm", "vllm")


def kind_of(block: bytes) -> str:
    """Which log it is, by its first lines; what nobody knows is taken for a request log."""
    for line in block.splitlines()[:200]:
        if _VLLM.search(line) or _VLLM_SHORT.search(line):
            return "vllm"
        if not line.lstrip().startswith(b"{"):
            continue
        try:
            found = msgspec.json.decode(line)
        except BAD_JSON:
            continue
        if isinstance(found, dict):
            if "conversation_id" in found:
                return "requests"
            if _PAYLOAD in found or {"startTime", "prompt_tokens"} <= found.keys():
                return "litellm"
    return "requests"


def reader_of(kind: str, *, rich: bool, year: int) -> LineReader:
    """What reads such a log.

    Args:
        kind: one of `KINDS`.
        rich: of a request log, whether it is read in full.
        year: of the first line, where a log does not say.
    """
    if kind == "litellm":
        return LiteLlmReader()
    if kind == "vllm":
        return VllmReader(year)
    return JsonReader(rich=rich)


_PAYLOAD = "standard_logging_object"
_NAMES = ("conversation_id", "session_id", "litellm_session_id")


class LiteLlmReader(LineReader):
    """LiteLLM's `StandardLoggingPayload`, one a line, alone or in what a callback was given.

    The conversation is `conversation_id` or `session_id`, in the request's metadata or beside it,
    else `trace_id`, which LiteLLM makes of the session where a client names one.
    """

    def one(self, line: bytes) -> Row | str | None:
        """A row, why the request is no turn, or None: it is none of such a log."""
        try:
            found = msgspec.json.decode(line)
        except BAD_JSON:
            return None
        if not isinstance(found, dict):
            return None
        payload = found.get(_PAYLOAD) or found
        if not isinstance(payload, dict) or "startTime" not in payload:
            return None
        if payload.get("status") == "failure":
            return "it failed"
        start, end = _moment(payload.get("startTime")), _moment(payload.get("endTime"))
        first = _moment(payload.get("completionStartTime"))
        tokens = payload.get("prompt_tokens")
        name = _named(payload)
        if start is None:
            return None
        if not isinstance(tokens, int) or tokens <= 0:
            return NO_TOKENS
        if name is None:
            return UNNAMED_REASON
        answer = payload.get("completion_tokens")
        return Rich(
            conversation_id=name,
            ts=start,
            prompt_tokens=tokens,
            output_tokens=answer if isinstance(answer, int) else None,
            ttft_ms=None if first is None else max(0.0, first - start) * 1000,
            total_ms=None if end is None else max(0.0, end - start) * 1000,
        )


def _named(payload: Mapping[str, Any]) -> str | int | None:
    metadata = payload.get("metadata")
    places: list[object] = [payload, metadata]
    if isinstance(metadata, Mapping):
        places += [metadata.get("requester_metadata"), metadata.get("spend_logs_metadata")]
    found = _first(name for place in places for name in _in(place, _NAMES))
    return found if found is not None else _first(_in(payload, ("trace_id",)))


def _in(place: object, names: Iterable[str]) -> Iterable[object]:
    return [place.get(name) for name in names] if isinstance(place, Mapping) else []


def _first(values: Iterable[object]) -> str | int | None:
    return next((each for each in values if isinstance(each, str | int) and each != ""), None)


def _moment(value: object) -> float | None:
    """Seconds since the epoch, of a number or of a date and time; without a zone it is UTC."""
    if isinstance(value, int | float):
        return float(value) if abs(value) < 1e15 else None
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return timegm(moment.utctimetuple()) + moment.microsecond / 1e6
    return moment.timestamp()


_VLLM = re.compile(
    rb"(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) .*?(?:Received request|Request) \S+?(?: details)?: "
    rb".*prompt_token_ids: \[([\d, ]*)\]"
)
_VLLM_SHORT = re.compile(rb"Received request \S+: (?:prompt|params): ")
_FACTOR, _MODULUS = 1_000_003, (1 << 61) - 1


class VllmReader(LineReader):
    """vLLM's lines of requests, where they have the prompt's token ids.

    vLLM writes them with `--enable-log-requests` at level DEBUG (before 0.20 at INFO), and must not
    cut them short (`--max-log-len`). It knows no conversations: a prompt that begins with all of an
    earlier one goes on from it.
    """

    alone = True

    def __init__(self, year: int) -> None:
        super().__init__()
        self._year = year
        self._month = 0
        self._known: dict[int, int] = {}
        self._names = 0

    def one(self, line: bytes) -> Row | str | None:
        """A row; lines of other things are passed over."""
        found = _VLLM.search(line)
        if found is None:
            short = _VLLM_SHORT.search(line) is not None
            return "the engine's log has no `prompt_token_ids` (needs DEBUG)" if short else ""
        month, day, hour, minute, second = map(int, found.groups()[:5])
        if month < self._month:
            self._year += 1  # the log goes on after New Year
        self._month = month
        ids = [int(each) for each in found.group(6).split(b",") if each.strip()]
        if not ids:
            return NO_TOKENS
        ts = float(timegm((self._year, month, day, hour, minute, second)))
        return Rich(conversation_id=self._conversation(ids), ts=ts, prompt_tokens=len(ids))

    def _conversation(self, ids: list[int]) -> int:
        """That of the longest earlier prompt that this one begins with; else a new one."""
        name, seen = None, 0
        for id in ids:
            seen = (seen * _FACTOR + id + 1) % _MODULUS
            name = self._known.get(seen, name)
        if name is None:
            self._names += 1
            name = self._names
        self._known[seen] = name
        return name
