"""The oracle, on sessions small enough to work out by hand."""

from itertools import permutations

import numpy as np
import pytest

from tests.proofs.oracle import Past, Share, best_plan, common_prefix, peak_tokens, reusable


def past(
    prompt: str, generated: str = "", *, sent: float, ended: float | None = -1.0, **more: object
) -> Past:
    """A turn whose tokens are letters; it takes a second unless said otherwise."""
    fields: dict[str, object] = {"tenant": "a", "ttl": 100.0, **more}
    return Past(
        prompt=tuple(map(ord, prompt)),
        generated=tuple(map(ord, generated)),
        sent=sent,
        ended=sent + 1 if ended == -1.0 else ended,
        **fields,  # type: ignore[arg-type]
    )


def tokens(turns: list[Past], **how: object) -> list[int]:
    return [share.tokens for share in best_plan(turns, threshold=1, **how)]  # type: ignore[arg-type]


def test_a_turn_gets_what_the_one_before_left_but_its_last_token() -> None:
    turns = [past("abcd", "ef", sent=0), past("abcdefgh", sent=2)]
    assert tokens(turns) == [0, 5]


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    assert tokens([past("abcd", "ef", sent=0), past("abcd", sent=2)]) == [0, 3]


def test_a_handle_serves_one_turn_and_the_better_one() -> None:
    turns = [past("abcd", "ef", sent=0), past("abxy", sent=2), past("abcdefg", sent=2.1)]
    assert best_plan(turns, threshold=1)[1:] == [Share(), Share(0, 5, source=0)]


def test_the_plan_as_a_whole_is_best_not_each_step_of_it() -> None:
    # Turn 2 likes turn 0's best, but turn 3 can use nothing else.
    turns = [
        past("abcdef", "g", sent=0),
        past("abcdex", "y", sent=0),
        past("abcdefgh", sent=2),
        past("abcdefg", sent=3, ended=None),
    ]
    assert [share.source for share in best_plan(turns, threshold=1)] == [None, None, 0, 2]


@pytest.mark.parametrize(
    ("second", "reused"),
    [
        ({"sent": 1}, 5),
        ({"sent": 0.9}, 0),  # at the same time
        ({"sent": 101.5}, 0),  # too late
        ({"sent": 99.5}, 5),
        ({"sent": 2, "tenant": "b"}, 0),
        ({"sent": 2, "era": 1}, 0),  # decode was restarted
    ],
)
def test_who_may_use_a_handle(second: dict[str, float], reused: int) -> None:
    turns = [past("abcd", "ef", sent=0, ttl=100.5), past("abcdefgh", **second)]
    assert tokens(turns, slack=0.5)[1] == reused


def test_a_turn_that_was_cut_off_leaves_nothing_but_uses_a_handle() -> None:
    turns = [
        past("abcd", "ef", sent=0),
        past("abcdefgh", sent=2, ended=None),
        past("abcdefgh", sent=3),
    ]
    assert sum(tokens(turns)) == 5


def test_too_little_is_not_pulled() -> None:
    turns = [past("abcd", "ef", sent=0), past("abcx", sent=2)]
    assert [share.tokens for share in best_plan(turns, threshold=4)] == [0, 0]
    assert [share.tokens for share in best_plan(turns, threshold=3)] == [0, 3]


def test_prefills_own_cache_has_whole_blocks_for_everybody() -> None:
    turns = [
        past("abcde", "fg", sent=0),
        past("abcdefgh", sent=2),
        past("abcdxy", sent=3, tenant="b"),
    ]
    plan = best_plan(turns, threshold=1, own_cache_block=2)
    assert plan == [Share(), Share(4, 2, source=0), Share(4)]


def test_what_a_plan_needs_at_once() -> None:
    turns = [
        past("abcd", "ef", sent=0),
        past("wxyz", "u", sent=0),
        past("abcdefg", sent=5),
        past("wxyzu", sent=6),
        past("wxyzuv", "t", sent=8),
    ]
    assert peak_tokens(turns, best_plan(turns, threshold=1)) == 11
    assert peak_tokens(turns, [Share()] * 5) == 0


def test_common_prefix() -> None:
    for left, right, equal in (("", "a", 0), ("ab", "bb", 0), ("abc", "abde", 2), ("ab", "abc", 2)):
        assert common_prefix(np.array([*left]), np.array([*right])) == equal


def test_no_other_assignment_is_better() -> None:
    words = ["aab", "aabb", "aabba", "abab", "ababb", "aabab"]
    turns = [past(word, "b", sent=place * 2) for place, word in enumerate(words)]
    held = [np.array(turn.prompt + turn.generated) for turn in turns]
    best = 0
    for users in permutations(range(len(turns))):
        total = sum(
            reusable(held[source], np.array(turns[user].prompt))
            for source, user in enumerate(users)
            if source < user
        )
        best = max(best, total)
    assert sum(tokens(turns)) == best
