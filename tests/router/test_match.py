"""The arithmetic of reuse."""

from hypothesis import given
from hypothesis import strategies as st

from pdctl.router.match import (
    common_prefix,
    covers,
    release_params,
    retained,
    reusable_tokens,
    trim,
)
from tests.router.playbook import d_params, ids

IDS = st.lists(st.integers(0, 5), max_size=40)


@given(IDS, IDS, IDS)
def test_common_prefix_is_what_a_loop_would_count(head: list[int], a: list[int], b: list[int]):
    left, right = [*head, *a], [*head, *b]
    slow = 0
    for x, y in zip(left, right, strict=False):
        if x != y:
            break
        slow += 1
    assert common_prefix(ids(*left), ids(*right)) == slow


@given(IDS, IDS, IDS, st.integers(0, 100), st.one_of(st.none(), st.integers(0, 50)))
def test_only_equal_tokens_with_certain_kv_are_reused(
    prompt: list[int], generated: list[int], new: list[int], claimed: int, billed: int | None
):
    held = retained(
        ids(*prompt), ids(*generated), completion_tokens=billed, remote_num_tokens=claimed
    )
    count = reusable_tokens(held, ids(*new))
    assert 0 <= count <= max(0, len(new) - 1)
    assert new[:count] == [*prompt, *generated][:count]
    assert count <= claimed
    assert count <= max(len(prompt), len(prompt) + len(generated) - 1)
    if billed != len(generated):
        assert count <= len(prompt)


@given(st.integers(1, 200), st.integers(1, 64))
def test_trimmed_blocks_are_just_enough(tokens: int, block_size: int):
    params = d_params(200) | {"remote_block_ids": [list(range(1000))]}
    blocks = trim(params, tokens, block_size)["remote_block_ids"][0]
    assert (len(blocks) - 1) * block_size < tokens <= len(blocks) * block_size
    assert blocks == list(range(len(blocks)))


def test_trim_leaves_the_original_alone():
    params = d_params(9)
    before = {**params, "remote_block_ids": [list(params["remote_block_ids"][0])]}
    trim(params, 1, 4)
    assert params == before


def test_release_pulls_nothing():
    released = release_params(d_params(9))
    assert released["remote_num_tokens"] == 0
    assert released["remote_request_id"] == "d1"
    assert released["do_remote_decode"] is True


def test_fewer_blocks_than_tokens_need_means_another_block_size():
    assert covers(d_params(9), 4)
    assert not covers(d_params(9), 2)
