"""What the client gets of decode's answer: all that a direct call gives, nothing of ours."""

import json
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.base.sse import SseSplitter, data_of, event_of
from pdctl.router.legs import (
    _WORDS,
    ClientWants,
    StreamCleaner,
    clean_answer,
    error_of,
    only_names_role,
    without_prompt_ids,
)

NO_EXTRAS = ClientWants(token_ids=False, usage=False)
KV = {"do_remote_decode": True, "remote_block_ids": [[1]]}


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {"id": "x", "choices": [choice | more.pop("choice", {})], **more}


def through(cleaner: StreamCleaner, *events: bytes) -> tuple[list[Any], list[Any]]:
    """What is sent while decode streams, and what waits for the handle."""
    now = b"".join(cleaner.feed(item) for item in events)
    return _parsed(now), _parsed(cleaner.tail())


def _parsed(raw: bytes) -> list[Any]:
    found = []
    for item in SseSplitter().feed(raw):
        data = data_of(item) or b""
        found.append("[DONE]" if data == b"[DONE]" else json.loads(data))
    return found


def test_a_stream_is_freed_of_ids_handle_and_usage_that_nobody_asked_for() -> None:
    cleaner = StreamCleaner(NO_EXTRAS, None, hold_end=True)
    now, tail = through(
        cleaner,
        event(chunk({"role": "assistant", "content": ""}, prompt_token_ids=[1, 2])),
        event(chunk({"content": "hi"}, choice={"token_ids": [5]})),
        event(chunk({}, choice={"token_ids": [6]})),
        event(chunk({"content": "!"}, "stop", choice={"token_ids": [7]}, kv_transfer_params=KV)),
        event({"id": "x", "choices": [], "usage": {"completion_tokens": 3}}),
        b"data: [DONE]\n\n",
    )
    null = {"token_ids": None}
    assert now == [
        chunk({"role": "assistant", "content": ""}, prompt_token_ids=None),
        chunk({"content": "hi"}, choice=null),
    ]
    assert tail == [chunk({"content": "!"}, "stop", choice=null), "[DONE]"]
    assert cleaner.harvest.generated == [5, 6, 7]
    assert cleaner.harvest.kv == KV
    assert cleaner.harvest.completion_tokens == 3
    assert cleaner.harvest.finish_reason == "stop"


def test_what_the_client_asked_for_stays() -> None:
    cleaner = StreamCleaner(ClientWants(token_ids=True, usage=True), None, hold_end=True)
    usage = {"id": "x", "choices": [], "usage": {"completion_tokens": 2}}
    sent = [
        chunk({"role": "assistant", "content": ""}, prompt_token_ids=[1, 2]),
        chunk({}, choice={"token_ids": [6]}),
        chunk({"content": "!"}, "stop", choice={"token_ids": [7]}),
        usage,
    ]
    now, tail = through(cleaner, *map(event, sent), b"data: [DONE]\n\n")
    assert now + tail == [*sent, "[DONE]"]


def test_a_fingerprint_goes_back_to_where_the_engine_would_have_put_it() -> None:
    cleaner = StreamCleaner(NO_EXTRAS, None, hold_end=True)
    _, tail = through(
        cleaner,
        event(chunk({"content": "!"}, "stop")),
        event({"choices": [], "usage": {"completion_tokens": 1}, "system_fingerprint": "fp"}),
    )
    assert tail == [chunk({"content": "!"}, "stop", system_fingerprint="fp")]


def test_cached_tokens_tell_what_prefill_did_not_compute() -> None:
    usage = {"completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 100}}
    cleaner = StreamCleaner(ClientWants(False, usage=True), 40, hold_end=True)
    _, tail = through(cleaner, event(chunk({}, "stop")), event({"choices": [], "usage": usage}))
    assert tail[1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 40}


def test_an_answer_without_details_gets_none() -> None:
    answer = {"choices": [{"message": {"content": "x"}}], "usage": {"completion_tokens": 1}}
    clean_answer(answer, NO_EXTRAS, 40)
    assert "prompt_tokens_details" not in answer["usage"]


def test_without_hold_everything_goes_at_once() -> None:
    cleaner = StreamCleaner(NO_EXTRAS, None, hold_end=False)
    now, tail = through(cleaner, event(chunk({"content": "!"}, "stop", kv_transfer_params=KV)))
    assert now == [chunk({"content": "!"}, "stop")]
    assert tail == []


@pytest.mark.parametrize(
    "raw",
    [b": ping\n\n", b"event: x\ndata: {}\n\n", b"data: not json\n\n", b"data: [1]\n\n"],
)
def test_what_is_not_a_chunk_passes_as_it_is(raw: bytes) -> None:
    cleaner = StreamCleaner(NO_EXTRAS, None, hold_end=True)
    assert cleaner.feed(raw) + cleaner.tail() == raw


def test_tool_calls_reasoning_logprobs_and_unknown_fields_pass() -> None:
    delta = {
        "reasoning": "hm",
        "tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}],
        "odd": [1.5e-7, -0.0001, "é\u2028"],
    }
    logprobs = {"content": [{"token": "a", "logprob": -0.12345678901234567}]}
    sent = chunk(delta, choice={"logprobs": logprobs, "stop_reason": 5}, service_tier="x")
    cleaner = StreamCleaner(NO_EXTRAS, None, hold_end=True)
    now, _ = through(cleaner, event(sent))
    assert now == [sent]


def test_a_non_streaming_answer_is_decodes_own_without_our_part() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    answer = {
        "id": "x",
        "choices": [{"index": 0, "message": message, "token_ids": [5, 6], "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 2},
        "prompt_token_ids": [1, 2],
        "kv_transfer_params": KV,
        "unknown": {"kept": True},
    }
    harvest = clean_answer(answer, NO_EXTRAS, None)
    assert answer == {
        "id": "x",
        "choices": [{"index": 0, "message": message, "token_ids": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 2},
        "prompt_token_ids": None,
        "kv_transfer_params": None,
        "unknown": {"kept": True},
    }
    assert (harvest.kv, harvest.generated) == (KV, [5, 6])


def test_a_chunk_that_only_names_the_role_is_known() -> None:
    assert only_names_role(event(chunk({"role": "assistant", "content": ""})))
    assert only_names_role(b": ping\n\n")
    assert not only_names_role(event(chunk({"role": "assistant", "content": "a"})))
    assert not only_names_role(event(chunk({"content": ""})))
    assert not only_names_role(event(chunk({}, "stop")))
    assert not only_names_role(event({"choices": [{"index": 0, "text": ""}]}))
    assert not only_names_role(b"data: [DONE]\n\n")


def test_errors_in_the_first_event_are_seen() -> None:
    assert error_of(event({"error": {"code": 500}})) == {"error": {"code": 500}}
    assert error_of(event(chunk({}, "error"))) is not None
    assert error_of(event(chunk({"content": "error"}))) is None
    assert error_of(b"data: [DONE]\n\n") is None
    assert error_of(b": ping\n\n") is None


WORD = {"index": 0, "delta": {"content": "a"}, "logprobs": None, "finish_reason": None}


def as_engines_write(value: Any) -> bytes:
    return event_of(orjson.dumps(value))


def in_a_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


STRINGS = st.text(min_size=1, max_size=8) | st.sampled_from(
    ['"', "\\", '"token_ids":[1]', "é\n", "]}"]
)


@given(
    content=STRINGS,
    ids=st.none() | st.lists(st.integers(0, 2**31), max_size=3),
    with_ids=st.booleans(),
    more=st.sampled_from([{}, {"kv_transfer_params": None}, {"usage": None}]),
    kind=st.sampled_from(["content", "reasoning", "text", "unknown"]),
    wants_ids=st.booleans(),
)
def test_a_word_that_is_cut_is_as_if_it_had_been_parsed(
    content: str,
    ids: list[int] | None,
    with_ids: bool,
    more: dict[str, Any],
    kind: str,
    wants_ids: bool,
) -> None:
    says = {"text": content} if kind == "text" else {"delta": {kind: content}}
    choice = {"index": 0, **says, "logprobs": None, "finish_reason": None}
    if with_ids:
        choice["token_ids"] = ids
    sent = {"id": "x", "object": "o", "created": 1, "model": "m", "choices": [choice], **more}
    raw = as_engines_write(sent)
    assert bool(_WORDS.fullmatch(raw)) == (kind != "unknown")
    wants = ClientWants(token_ids=wants_ids, usage=False)
    cut, some, parsed = (StreamCleaner(wants, None, hold_end=True) for _ in range(3))
    whole = event_of(orjson.dumps(parsed._clean(raw)))
    assert cut.feed(raw) == whole
    assert cut.harvest == parsed.harvest
    parsed._clean(raw)
    assert some.feed_some(raw * 2 + raw[:9]) + some.feed_some(raw[9:]) == whole * 3
    parsed._clean(raw)
    assert some.harvest == parsed.harvest
    chunks = StreamCleaner(wants, None, hold_end=True)
    taken = chunks.feed_chunk(in_a_chunk(raw))
    assert taken == (b"" if wants_ids or kind == "unknown" else whole)
    if taken:
        assert chunks.harvest == cut.harvest


@pytest.mark.parametrize(
    "choice",
    [
        {"index": 0, "delta": {"content": ""}, "logprobs": None, "finish_reason": None},
        {"index": 0, "delta": {"content": "a"}, "logprobs": None, "finish_reason": "stop"},
        {"index": 0, "delta": {"content": "a"}, "logprobs": {}, "finish_reason": None},
        {"index": 0, "delta": {"role": "a"}, "logprobs": None, "finish_reason": None},
    ],
)
def test_what_is_more_or_less_than_a_word_is_parsed(choice: dict[str, Any]) -> None:
    head = {"id": "x", "object": "o", "created": 1, "model": "m"}
    assert not _WORDS.fullmatch(as_engines_write(head | {"choices": [choice]}))


SENT = {"id": "x", "object": "o", "created": 1, "model": "m", "choices": [WORD]}
LAST = SENT | {"choices": [WORD | {"finish_reason": "stop"}], "kv_transfer_params": KV}


@pytest.mark.parametrize(
    "chunk_of_http",
    [
        in_a_chunk(as_engines_write(LAST)),
        in_a_chunk(as_engines_write(SENT) * 2),
        in_a_chunk(as_engines_write(SENT)) * 2,
        in_a_chunk(as_engines_write(SENT))[:-1],
        in_a_chunk(as_engines_write(SENT)).replace(b"\r\n", b";more\r\n", 1),
        b"1" + in_a_chunk(as_engines_write(SENT)),
        in_a_chunk(as_engines_write(SENT)).partition(b"\r\n")[2],
        in_a_chunk(b"data: [DONE]\n\n"),
        b"0\r\n\r\n",
    ],
)
def test_a_chunk_that_is_not_one_word_goes_the_long_way(chunk_of_http: bytes) -> None:
    cleaner = StreamCleaner(NO_EXTRAS, None, hold_end=True)
    assert cleaner.feed_chunk(in_a_chunk(as_engines_write(SENT))) == as_engines_write(SENT)
    known = replace(cleaner.harvest, generated=[*cleaner.harvest.generated])
    assert cleaner.feed_chunk(chunk_of_http) == b""
    assert cleaner.harvest == known


def test_no_chunk_overtakes_what_waits() -> None:
    word = in_a_chunk(as_engines_write(SENT))
    begun = StreamCleaner(NO_EXTRAS, None, hold_end=True)
    begun.feed_some(b"data: {")
    assert begun.feed_chunk(word) == b""
    ended = StreamCleaner(NO_EXTRAS, None, hold_end=True)
    ended.feed(as_engines_write(LAST))
    assert ended.feed_chunk(word) == b""


def test_long_lists_of_prompt_ids_are_cut_out() -> None:
    role = chunk({"role": "assistant", "content": '"prompt_token_ids":[1]'})
    assert without_prompt_ids(
        as_engines_write(role | {"prompt_token_ids": [1, 2]})
    ) == as_engines_write(role | {"prompt_token_ids": None})
    for odd in ([[1], 2], ["]"], None):
        raw = as_engines_write(role | {"prompt_token_ids": odd})
        assert without_prompt_ids(raw) == raw


def test_words_behind_the_end_wait_with_it() -> None:
    cleaner = StreamCleaner(NO_EXTRAS, None, hold_end=True)
    word = as_engines_write(
        {"id": "x", "object": "o", "created": 1, "model": "m", "choices": [WORD]}
    )
    assert _WORDS.fullmatch(word)
    assert cleaner.feed_all([word, event(chunk({"content": "!"}, "stop")), word]) == word
    assert cleaner.tail().endswith(word)


def test_a_stream_that_came_whole_with_its_first_words_is_passed_on_whole() -> None:
    """So much that it is not taken for a piece, and nothing comes after it."""
    word = event_of(orjson.dumps({"choices": [{"index": 0, "delta": {"content": "x" * 100}}]}))
    splitter = SseSplitter()
    splitter.push(word * 300)
    first = splitter.pop()
    assert first is not None
    cleaner = StreamCleaner(ClientWants(False, False), None, hold_end=False, splitter=splitter)
    assert cleaner.feed_all([first]) + cleaner.feed_some(b"") == word * 300
    assert splitter.rest() == b""
