"""Ids that are passed on as they came, and are none the less what they are."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.router.ids import Ids, dumps, loads
from pdctl.router.match import packed

NAME = "prompt_token_ids"
LISTS = st.lists(st.integers(0, 2**32 - 1), max_size=5)


@given(ids=LISTS)
def test_ids_are_the_same_however_they_are_written(ids: list[int]) -> None:
    tight, wide = Ids(orjson.dumps(ids)), Ids(json.dumps(ids).encode())
    assert tight == wide == Ids(ids)
    assert tight.packed == wide.packed == packed(ids)
    assert tight != Ids([*ids, 1])
    assert tight != ids


@pytest.mark.parametrize("raw", [b"[1,-1]", b"[1,null]", b"[1,,2]", b"[4294967296]", b"[1.5]"])
def test_what_are_no_ids_cannot_be_packed(raw: bytes) -> None:
    assert Ids(raw).packed is None
    assert Ids(raw) != Ids([1, 2])


@given(ids=LISTS, wide=st.booleans(), on_choice=st.booleans())
def test_an_answer_keeps_its_ids_as_they_came(ids: list[int], wide: bool, on_choice: bool) -> None:
    answer: dict[str, Any] = {"id": '","prompt_token_ids":[1]', "choices": [{"index": 0}], "z": [2]}
    (answer["choices"][0] if on_choice else answer)[NAME] = ids
    raw = json.dumps(answer).encode() if wide else orjson.dumps(answer)
    read = loads(raw, NAME)
    held = (read["choices"][0] if on_choice else read)[NAME]
    assert isinstance(held, Ids)
    assert held.raw in raw
    assert held == Ids(ids)
    assert json.loads(dumps(read)) == answer


@pytest.mark.parametrize(
    "answer",
    [
        {NAME: None},
        {NAME: [[1], 2]},
        {NAME: ["]"]},
        {"kv": {NAME: [1]}},
        {"choices": [{"index": 0}, {NAME: [1]}]},
        {"choices": None, "kv": {NAME: [1]}, NAME: [2]},
        [{NAME: [1]}],
    ],
)
def test_other_lists_are_read_as_usual(answer: Any) -> None:
    assert loads(orjson.dumps(answer), NAME) == answer


@pytest.mark.parametrize("raw", [b'{"prompt_token_ids":[1', b'{"prompt_token_ids":[1]', b"", b"x"])
def test_what_is_no_json_is_an_error(raw: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        loads(raw, NAME)


def test_nothing_else_is_written_that_is_no_json() -> None:
    with pytest.raises(TypeError):
        dumps({"x": object()})
