"""Answers through the router, compared with decode's own, field by field."""

import asyncio
import copy
import json
import uuid
from typing import Any

import aiohttp
import pytest

from tests.e2e.harness import Pair, Routed, Setup, random_ids, routed

THINKING = Setup("thinking", config={"model.reasoning_parser": "deepseek_r1"})
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look something up",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string", "enum": ["Paris", "Rome"]}},
                "required": ["place"],
                "additionalProperties": False,
            },
        },
    }
]
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "look_up", "arguments": '{"place": "Paris"}'},
        }
    ],
}
HISTORY = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "where is it"},
    CALLED,
    {"role": "tool", "tool_call_id": "call_1", "content": "in Paris"},
]
USAGE = {"stream_options": {"include_usage": True}}

CHATS: dict[str, dict[str, Any]] = {
    "plain": {},
    "usage": USAGE,
    "tools in the history": {"messages": HISTORY, "tools": TOOLS},
    "a tool call": {
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "look_up"}},
        "max_tokens": 60,
    },
    "logprobs": {"logprobs": True, "top_logprobs": 3, **USAGE},
    "its own ids": {"return_token_ids": True, **USAGE},
    "a stop token": {"stop_token_ids": list(range(8, 300))},
    "a stop string": {"stop": ["e"]},
    "unknown fields": {"something_new": {"a": 1}},
    "a minimum": {"min_tokens": 10, "max_tokens": 12},
}

REFUSED: dict[str, dict[str, Any]] = {
    "a negative temperature": {"temperature": -1},
    "a wrong type": {"max_tokens": "many"},
    "too long": {"messages": [{"role": "user", "content": "word " * 9000}]},
    "an unknown model": {"model": "nobody"},
    "a broken tool": {"tools": [{"type": "function"}]},
    "no messages": {"messages": []},
    "too many choices": {"n": 0},
}


async def post(
    session: aiohttp.ClientSession, url: str, path: str, body: dict[str, Any]
) -> tuple[int, str, Any]:
    """Status, content type, and the JSON body or the list of events."""
    async with session.post(f"{url}{path}", json=body) as answer:
        text = await answer.text()
        kind = answer.content_type
        if kind != "text/event-stream":
            return answer.status, kind, json.loads(text)
        events = [event.removeprefix("data: ") for event in text.strip().split("\n\n")]
        return answer.status, kind, [e if e == "[DONE]" else json.loads(e) for e in events]


def comparable(answer: Any) -> Any:
    """Without what differs between two runs: ids and times; and what prefill's share changes."""
    if isinstance(answer, list):
        return _merged([comparable(each) for each in answer])
    if not isinstance(answer, dict):
        return answer
    found = copy.deepcopy(answer)
    for name in ("id", "created"):
        found.pop(name, None)
    for choice in found.get("choices", []):
        for call in (choice.get("message") or choice.get("delta") or {}).get("tool_calls") or []:
            call.pop("id", None)
    details = (found.get("usage") or {}).get("prompt_tokens_details")
    if details:
        details.pop("cached_tokens", None)
        details.pop("created_cache_tokens", None)
    return found


def _merged(chunks: list[Any]) -> list[Any]:
    """How tokens are grouped into chunks is the engine's timing; what they say is not."""
    text, arguments = "", ""
    rest: list[Any] = []
    for chunk in chunks:
        choice = (chunk.get("choices") or [{}])[0] if isinstance(chunk, dict) else {}
        if not _only_says(choice):
            rest.append(chunk)
            continue
        delta = choice.get("delta") or {}
        text += delta.get("content") or ""
        arguments += "".join(call["function"]["arguments"] for call in delta.get("tool_calls", []))
    return [text, arguments, *rest]


def _only_says(choice: dict[str, Any]) -> bool:
    """A piece of text, or of a tool call's arguments, and nothing else."""
    delta = choice.get("delta") or {}
    calls = delta.get("tool_calls") or []
    plain = set(delta) <= {"content", "tool_calls"} and all(
        set(call) == {"index", "function"} and set(call["function"]) == {"arguments"}
        for call in calls
    )
    marks = ("finish_reason", "logprobs", "token_ids")
    return bool(choice) and plain and not any(choice.get(name) for name in marks)


async def both(
    pair: Pair,
    router: Routed,
    session: aiohttp.ClientSession,
    body: dict[str, Any],
    path: str = "/v1/chat/completions",
) -> tuple[Any, Any]:
    """The answer through the router, in a conversation, and decode's own."""
    ours = await post(session, router.url, path, body | {"conversation_id": uuid.uuid4().hex})
    direct = await post(session, pair.decode, path, body)
    return ours, direct


def chat(pair: Pair, **more: Any) -> dict[str, Any]:
    words = " ".join(f"w{place}" for place in random_ids(700, 60))
    return {
        "model": pair.model,
        "messages": [{"role": "user", "content": words}],
        "max_tokens": 20,
        "temperature": 0,
        "seed": 1,
    } | more


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", CHATS)
async def test_a_chat_is_what_decode_says(
    pair: Pair, router: Routed, session: aiohttp.ClientSession, name: str, stream: bool
) -> None:
    change = {k: v for k, v in CHATS[name].items() if stream or k != "stream_options"}
    body = chat(pair, **change) | ({"stream": True} if stream else {})
    (status, kind, ours), (direct_status, direct_kind, direct) = await both(
        pair, router, session, body
    )
    assert (status, kind) == (direct_status, direct_kind) == (200, kind)
    assert comparable(ours) == comparable(direct)
    assert "kv_transfer_params" not in json.dumps(ours).replace('"kv_transfer_params": null', "")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("change", [{}, {"logprobs": 2}, {"return_token_ids": True}])
async def test_a_completion_is_what_decode_says(
    pair: Pair,
    router: Routed,
    session: aiohttp.ClientSession,
    change: dict[str, Any],
    stream: bool,
) -> None:
    body = {"model": pair.model, "prompt": "once upon a time " * 20, "max_tokens": 20}
    body |= {"temperature": 0, "stream": stream, **change}
    ours, direct = await both(pair, router, session, body, "/v1/completions")
    assert ours[:2] == direct[:2]
    if stream:
        assert _said(ours[2]) == _said(direct[2])
    else:
        assert comparable(ours[2]) == comparable(direct[2])


def _said(events: list[Any]) -> tuple[str, list[Any], Any]:
    chunks = [event for event in events if event != "[DONE]"]
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"])
    ids = [i for c in chunks if c["choices"] for i in c["choices"][0].get("token_ids") or []]
    return text, ids, events[-1]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", REFUSED)
async def test_what_decode_refuses_is_refused_in_its_words(
    pair: Pair, router: Routed, session: aiohttp.ClientSession, name: str, stream: bool
) -> None:
    body = chat(pair, **REFUSED[name]) | {"stream": stream}
    ours, direct = await both(pair, router, session, body)
    assert direct[0] >= 400
    assert ours == direct


@pytest.mark.engines(THINKING)
@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_is_what_decode_says(
    pair: Pair, router: Routed, session: aiohttp.ClientSession, stream: bool
) -> None:
    ours, direct = await both(pair, router, session, chat(pair) | {"stream": stream})
    assert ours[0] == 200
    assert '"reasoning"' in json.dumps(direct[2])
    assert _reasoning(ours[2]) == _reasoning(direct[2]) != ""
    if not stream:
        assert comparable(ours[2]) == comparable(direct[2])


def _reasoning(answer: Any) -> str:
    events = answer if isinstance(answer, list) else [answer]
    said = ""
    for event in events:
        for choice in event.get("choices", []) if isinstance(event, dict) else []:
            said += (choice.get("delta") or choice.get("message") or {}).get("reasoning") or ""
    return said


async def test_a_client_that_leaves_mid_stream_frees_decode(
    pair: Pair, router: Routed, session: aiohttp.ClientSession
) -> None:
    body = chat(pair, max_tokens=4000, ignore_eos=True, stream=True, conversation_id="leaves")
    async with session.post(f"{router.url}/v1/chat/completions", json=body) as answer:
        await answer.content.readany()
    async with asyncio.timeout(20):
        while (await pair.metrics(session, "decode")).running:
            await asyncio.sleep(0.2)
    assert (await router.send(session, prompt=random_ids(710, 50), max_tokens=4)).ok


async def test_what_is_not_retained_leaves_nothing_pinned(
    pair: Pair, session: aiohttp.ClientSession
) -> None:
    """FACTS T6: without the release they would hold decode's blocks for the whole TTL."""

    async def usage() -> float:
        # The gauge moves with the engine's steps only.
        await pair.cold(session, prompt=[9, 9, 9], max_tokens=1)
        return (await pair.metrics(session, "decode")).kv_usage or 0.0

    async with routed(pair, reuse_share=0.0) as router:
        before = await usage()
        mark = pair.mark()
        for seed in range(720, 725):
            assert (await router.send(session, prompt=random_ids(seed, 600), max_tokens=8)).ok
        async with asyncio.timeout(20):
            while await usage() > before + 0.001:
                await asyncio.sleep(0.2)
    assert "Potentially invalid" not in pair.log_since(mark, "decode")
