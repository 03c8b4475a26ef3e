"""The arithmetic of reuse."""

from hypothesis import given
from hypothesis import strategies as st

from pdctl.router.match import (
    common_prefix,
    covers,
    retained,
    reusable_tokens,
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


@given(IDS, IDS, IDS, st.integers(0, 100))
def test_what_goes_on_from_a_turn_reuses_all_that_is_certain_and_no_more(
    prompt: list[int], generated: list[int], more: list[int], claimed: int
):
    """`remote_num_tokens` may be too high, and the last generated token has no KV (FACTS 10)."""
    held = retained(
        ids(*prompt),
        ids(*generated),
        completion_tokens=len(generated),
        remote_num_tokens=claimed,
    )
    new = [*prompt, *generated, *more]
    certain = min(len(prompt) + len(generated) - 1, claimed, len(new) - 1)
    assert reusable_tokens(held, ids(*new)) == max(0, certain)


def test_fewer_blocks_than_tokens_need_means_another_block_size():
    assert covers(d_params(9), 4)
    assert not covers(d_params(9), 2)
