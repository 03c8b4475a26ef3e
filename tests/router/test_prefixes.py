"""Beginnings of prompts are found again, whatever the body; and nothing in it can do harm."""

import random
import time
from typing import Any

import pytest

from pdctl.router.eligible import CHAT, COMPLETIONS
from pdctl.router.prefixes import PrefixMap, anchor, keys

A, B = "http://a", "http://b"


def chat(*contents: Any, **more: Any) -> dict[str, Any]:
    roles = ("system", "user", "assistant")
    messages = [
        {"role": roles[0] if n == 0 else roles[2 - n % 2], "content": content}
        for n, content in enumerate(contents)
    ]
    return {"model": "m", "messages": messages} | more


def text(length: int, seed: int = 0) -> str:
    return "".join(random.Random(seed).choices("abcdefgh ", k=length))


def known_after(first: dict[str, Any], then: dict[str, Any], endpoint: Any = CHAT) -> float:
    """Share of the first prompt that is known when the second comes."""
    prefixes = PrefixMap()
    begun = keys(endpoint, first)
    prefixes.note(begun, A)
    return prefixes.known(keys(endpoint, then)).get(A, 0) / begun[-1][1]


SYSTEM, QUESTION, ANSWER = text(2000), text(400, 1), text(800, 2)


def test_a_longer_chat_knows_all_of_the_shorter_one() -> None:
    assert known_after(chat(SYSTEM, QUESTION), chat(SYSTEM, QUESTION, ANSWER, "more")) == 1


def test_another_chat_knows_the_shared_messages_only() -> None:
    share = known_after(chat(SYSTEM, QUESTION), chat(SYSTEM, ANSWER))
    assert 0.75 < share < 0.9
    assert known_after(chat(SYSTEM, QUESTION), chat("x" + SYSTEM, QUESTION)) == 0


@pytest.mark.parametrize(
    "field",
    [
        {"model": "lora"},
        {"cache_salt": "s"},
        {"tools": [{"type": "function"}]},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_what_stands_before_the_messages_keeps_prompts_apart(field: dict[str, Any]) -> None:
    assert known_after(chat(SYSTEM), chat(SYSTEM, **field)) == 0
    assert known_after(chat(SYSTEM, **field), chat(SYSTEM, QUESTION, **field)) == 1


def test_what_does_not_make_the_prompt_does_not() -> None:
    other = {"temperature": 1, "stream": True, "max_tokens": 5, "conversation_id": "c"}
    assert known_after(chat(SYSTEM), chat(SYSTEM, **other)) == 1


def test_roles_names_and_tool_calls_are_part_of_a_message() -> None:
    message = {"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}
    for other in (
        message | {"role": "user"},
        message | {"name": "n"},
        message | {"tool_calls": [{"id": "2"}]},
        {"role": "assistant", "content": "x"},
    ):
        first = {"messages": [message]}
        assert known_after(first, {"messages": [other]}) < 0.1
        assert known_after(first, {"messages": [dict(reversed(message.items()))]}) == 1


def test_content_in_parts_is_found_again() -> None:
    parts = [{"type": "text", "text": SYSTEM}]
    assert known_after(chat(parts), chat(parts, QUESTION)) == 1


def test_a_long_text_is_found_by_its_beginning() -> None:
    document = text(400_000)
    assert known_after(chat(document + "one"), chat(document + "another")) > 0.85
    assert known_after({"prompt": document}, {"prompt": document + "x"}, COMPLETIONS) > 0.85
    half = {"prompt": document[:200_000] + "y" * 200_000}
    assert 0.4 < known_after({"prompt": document}, half, COMPLETIONS) <= 0.5


def test_ids_are_found_by_their_beginning() -> None:
    ids = [n * 7919 % 50_000 for n in range(60_000)]
    assert known_after({"prompt": ids}, {"prompt": [*ids, 1]}, COMPLETIONS) > 0.85
    assert known_after({"prompt": ids}, {"prompt": [1, *ids]}, COMPLETIONS) == 0
    assert known_after({"prompt": ids}, {"prompt": [ids]}, COMPLETIONS) == 1
    assert known_after({"prompt": SYSTEM}, {"prompt": [SYSTEM]}, COMPLETIONS) == 1


def test_estimates_are_scaled_to_what_the_prompt_really_has() -> None:
    prefixes = PrefixMap()
    prefixes.note(keys(CHAT, chat(SYSTEM)), A)
    later = keys(CHAT, chat(SYSTEM, SYSTEM))
    assert prefixes.known(later, 3000)[A] == pytest.approx(1500, abs=50)
    assert prefixes.known(keys(CHAT, chat(SYSTEM)), 777) == {A: 777}


def test_each_server_is_known_by_its_own_longest_beginning() -> None:
    prefixes = PrefixMap()
    short, long = keys(CHAT, chat(SYSTEM)), keys(CHAT, chat(SYSTEM, QUESTION, ANSWER))
    prefixes.note(short, A)
    prefixes.note(long, B)
    assert prefixes.known(long) == {A: short[-1][1], B: long[-1][1]}
    prefixes.forget(B)
    assert prefixes.known(long) == {A: short[-1][1]}
    prefixes.forget(A)
    assert prefixes.known(long) == {}
    assert len(prefixes) == 0


def test_what_was_not_used_for_longest_is_forgotten_and_ends_first() -> None:
    prefixes = PrefixMap(max_keys=4)
    first, second = keys(CHAT, chat("a", "b", "c")), keys(CHAT, chat("d", "e"))
    prefixes.note(first, A)
    prefixes.note(second, A)
    assert len(prefixes) == 4
    assert prefixes.known(second) == {A: second[-1][1]}
    assert prefixes.known(first) == {A: first[1][1]}


def test_a_server_has_no_more_than_fits_into_its_cache() -> None:
    prefixes = PrefixMap()
    prefixes.room[A] = 1100
    old, new = keys(CHAT, chat(text(2000), text(1000))), keys(CHAT, chat(text(2000, 7)))
    prefixes.note(old, A)
    prefixes.note(old, B)
    prefixes.note(new, A)
    prefixes.note(new, B)
    # 750 tokens, then 500: the end of the old ones had to go, the beginning is there.
    assert prefixes.known(old) == {A: old[0][1], B: old[-1][1]}
    for _ in range(5):
        prefixes.note(new, A)  # computes nothing new
    assert A in prefixes.known(old)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": None, "prompt": None},
        {"messages": {}, "prompt": {}},
        {"messages": ["x", None], "prompt": ["a", "b"]},
        {"messages": [{"role": 5, "content": "x"}], "prompt": [[1], [2]]},
        {"messages": [{"role": ["x"], "content": 7}], "prompt": [1, [2]]},
        {"messages": [{}], "prompt": [None]},
        {"messages": [{"content": None}], "prompt": [1, "a", None]},
        {"messages": [[]], "prompt": 7, "tools": object()},
    ],
)
def test_odd_bodies_have_no_beginnings_or_harmless_ones(body: dict[str, Any]) -> None:
    prefixes = PrefixMap()
    for endpoint in (CHAT, COMPLETIONS):
        found = keys(endpoint, body)
        prefixes.note(found, A)
        assert all(size >= 0 for size in prefixes.known(found).values())
        assert (
            anchor(endpoint, body) is None or endpoint == CHAT or isinstance(body["prompt"], list)
        )


# Anchors.


def test_all_turns_of_a_chat_have_one_anchor() -> None:
    name = anchor(CHAT, chat(SYSTEM, QUESTION))
    assert name is not None
    assert name == anchor(CHAT, chat(SYSTEM, QUESTION, ANSWER, "more", model="other", tools=[{}]))
    assert name != anchor(CHAT, chat(SYSTEM, ANSWER))
    assert name != anchor(CHAT, chat(QUESTION, QUESTION))


def test_an_anchor_does_not_depend_on_the_process() -> None:
    """Routers with one store must agree, so it is no hash of Python's."""
    assert anchor(CHAT, chat("s", "u")) == "4be68d8a526aa1a9096c082a2fc7736c"
    assert anchor(COMPLETIONS, {"prompt": "hello"}) == "c43e359c7ec8b8a7f0f55c595888d066"


def test_an_anchor_reaches_to_the_first_word_of_the_user() -> None:
    greeting = {"role": "assistant", "content": "hi"}
    first = {"messages": [greeting, {"role": "user", "content": "a"}]}
    second = {"messages": [greeting, {"role": "user", "content": "b"}]}
    assert anchor(CHAT, first) != anchor(CHAT, second)
    noted = {"messages": [greeting | {"id": "x"}, *first["messages"][1:]]}
    assert anchor(CHAT, noted) == anchor(CHAT, first)


def test_an_anchor_of_a_completion_is_its_beginning() -> None:
    words = text(64)
    assert anchor(COMPLETIONS, {"prompt": words}) == anchor(COMPLETIONS, {"prompt": words + "x"})
    assert anchor(COMPLETIONS, {"prompt": [*range(16)]}) == anchor(
        COMPLETIONS, {"prompt": [[*range(20)]]}
    )
    assert anchor(COMPLETIONS, {"prompt": "x" + words}) != anchor(COMPLETIONS, {"prompt": words})
    assert anchor(COMPLETIONS, {"prompt": ""}) is None
    assert anchor(CHAT, {"messages": []}) is None


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (CHAT, chat(*(text(4000, n) for n in range(100)))),
        (CHAT, chat(text(400_000))),
        (CHAT, chat(*([{"type": "text", "text": text(4000, n)}] for n in range(100)))),
        (COMPLETIONS, {"prompt": text(400_000)}),
        (COMPLETIONS, {"prompt": list(range(60_000))}),
    ],
)
def test_400_kb_take_less_than_a_millisecond(endpoint: Any, body: dict[str, Any]) -> None:
    prefixes = PrefixMap()

    def cost() -> float:
        began = time.perf_counter()
        anchor(endpoint, body)
        found = keys(endpoint, body)
        prefixes.known(found)
        prefixes.note(found, A)
        return time.perf_counter() - began

    # The least of many: a busy machine makes some slow, never all fast.
    assert min(cost() for _ in range(40)) < 0.001
