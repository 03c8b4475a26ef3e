"""The workload as values: lengths, content, traces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.base.errors import BadAnswerError
from pdctl.bench.workload import (
    POST_LENGTHS,
    SPARE,
    Shape,
    Step,
    capped,
    content,
    fresh_tokens,
    next_prompt,
    parse_lengths,
    scripts,
    traced,
)


def test_the_defaults_are_those_of_the_published_measurements() -> None:
    shape = Shape()
    assert (shape.conversations, shape.turns, shape.question, shape.answer) == (10, 10, 150, 300)
    assert shape.clients == 2
    assert parse_lengths("2k,4k,8k,12k,16k,20k,24k") == shape.lengths == POST_LENGTHS


def test_lengths_are_capped_by_the_context_and_a_word_is_said() -> None:
    lengths, words = capped(Shape(), 8192)
    room = 8192 - 4500 - SPARE
    assert lengths == (2000, room)
    assert words == [
        "the model's context has 8,192 tokens, and a conversation grows by 4,500: "
        f"lengths above {room:,} become {room:,}"
    ]
    assert capped(Shape(), 40000) == (POST_LENGTHS, [])
    assert capped(Shape(), None) == (POST_LENGTHS, [])


def test_a_context_without_room_for_the_turns_is_refused() -> None:
    with pytest.raises(BadAnswerError, match="do not fit a context of 4,096 tokens"):
        capped(Shape(), 4096)


def test_the_longest_prompt_and_its_answer_fit_the_context() -> None:
    shape = Shape(turns=3, question=20, answer=30, lengths=(9999,))
    (length,), _ = capped(shape, 1000)
    history: list[int] = []
    for step in scripts(shape, length, "s")[0].steps:
        history = next_prompt(history, step, range(10**5)) + [0] * step.answer
    assert len(history) == 1000 - SPARE


def test_content_is_the_seeds_alone_and_no_two_cells_share_it() -> None:
    pool = range(500)
    assert content(pool, "a", 1, 50) == content(pool, "a", 1, 50)
    assert content(pool, "a", 1, 50) != content(pool, "a", 2, 50)
    keys = {each.key for seed in "ab" for each in scripts(Shape(), 2000, seed)}
    assert len(keys) == 20


def test_open_arrivals_are_spread_by_the_rate() -> None:
    starts = [each.steps[0].due_s for each in scripts(Shape(conversations=400, rate=4), 10, "s")]
    assert starts[0] == 0
    assert starts == sorted(starts)
    assert 80 < (starts[-1] or 0) < 120
    assert all(each.steps[1].due_s is None for each in scripts(Shape(rate=4), 10, "s"))


@given(st.integers(0, 300), st.integers(1, 300))
def test_a_prompt_of_a_trace_has_its_length_and_keeps_what_it_can(
    history: int, prompt: int
) -> None:
    step = Step(0, 5, prompt=prompt)
    old, fresh = list(range(history)), list(range(1000, 2000))
    made = next_prompt(old, step, fresh)
    assert len(made) == prompt
    kept = prompt - fresh_tokens(history, step)
    assert made[:kept] == old[:kept]
    assert kept == min(history, prompt - 1)


def test_a_trace_keeps_its_gaps() -> None:
    rows = [
        {"conversation_id": "b", "ts": 14, "prompt_tokens": 40},
        {"conversation_id": "a", "ts": 10, "prompt_tokens": 30, "output_tokens": 7},
        {"conversation_id": "a", "ts": 20.5, "prompt_tokens": 60, "output_tokens": 0},
        {"conversation_id": "c", "ts": 21, "prompt_tokens": 5000},
    ]
    plan, words = traced(rows, seed="s", context=4096, speed=2, answer=9)
    assert [[(s.due_s, s.prompt, s.answer) for s in each.steps] for each in plan] == [
        [(0, 30, 7), (5.25, 60, 1)],
        [(2, 40, 9)],
    ]
    assert words == ["1 requests of the trace exceed the context and are left out"]
    assert len(traced(rows, seed="s", context=None, limit=1)[0]) == 1


def test_a_trace_that_lacks_a_field_says_where() -> None:
    with pytest.raises(BadAnswerError, match=r"request 2 of the trace .* 'ts'"):
        traced(
            [{"conversation_id": 1, "ts": 1, "prompt_tokens": 1}, {"conversation_id": 1}],
            seed="",
            context=None,
        )


@pytest.mark.parametrize("text", ["", "2k,x", "0", "-1", "1.5"])
def test_what_is_no_length(text: str) -> None:
    with pytest.raises(ValueError, match=r"length|float"):
        parse_lengths(text)
