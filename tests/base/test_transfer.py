"""The handle on the wire."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.base.transfer import FIRST_TURN, for_pull, for_refusal, for_release, is_handle

HANDLE: dict[str, Any] = {
    "do_remote_prefill": False,
    "do_remote_decode": True,
    "remote_block_ids": [[5, 6, 7]],
    "remote_engine_id": "e1",
    "remote_request_id": "d1",
    "remote_host": "10.0.0.2",
    "remote_port": 5601,
    "remote_num_tokens": 40,
    "something_new": "kept",
}


@given(st.integers(1, 200), st.integers(1, 64))
def test_blocks_for_a_pull_are_just_enough(tokens: int, block_size: int) -> None:
    params = HANDLE | {"remote_block_ids": [list(range(1000))]}
    blocks = for_pull(params, tokens, block_size)["remote_block_ids"][0]
    assert (len(blocks) - 1) * block_size < tokens <= len(blocks) * block_size
    assert blocks == list(range(len(blocks)))


def test_what_came_from_decode_is_left_as_it_is() -> None:
    before = {**HANDLE, "remote_block_ids": [[5, 6, 7]]}
    for_pull(HANDLE, 1, 16)
    for_release(HANDLE)
    for_refusal(HANDLE)
    assert before == HANDLE


def test_a_release_pulls_nothing_and_keeps_what_it_does_not_know() -> None:
    assert for_release(HANDLE) == HANDLE | {"remote_num_tokens": 0, "remote_block_ids": [[]]}
    assert for_refusal(HANDLE) == for_release(HANDLE) | {
        "do_remote_decode": False,
        "do_remote_prefill": True,
    }


@pytest.mark.parametrize("odd", [None, 5, [], [1, 2], "x"])
def test_whatever_came_from_decode_can_be_released(odd: object) -> None:
    released = for_release(HANDLE | {"remote_block_ids": odd})["remote_block_ids"]
    assert released
    assert not any(released)


def test_a_handle_points_at_blocks() -> None:
    assert is_handle(HANDLE)
    assert not is_handle(FIRST_TURN)
    assert not is_handle(None)
    for name in ("remote_engine_id", "remote_request_id", "remote_host", "remote_port"):
        assert not is_handle(HANDLE | {name: None})
    assert not is_handle(HANDLE | {"remote_block_ids": []})
    assert not is_handle(HANDLE | {"do_remote_decode": False})
