"""What the router says about a turn, from header to value."""

import pytest

from pdctl.base.explain import TurnExplanation, read_explanation

TOLD = TurnExplanation("PARTIAL", "diverged", 12, 40, "http://p", "http://d")


def test_round_trip() -> None:
    assert read_explanation(TOLD.to_header()) == TOLD
    assert "\n" not in TOLD.to_header()


@pytest.mark.parametrize("header", [None, "", "{", "[]", '"HIT"', '{"outcome":"GUESS"}', "{}"])
def test_anything_else_is_no_explanation(header: str | None) -> None:
    assert read_explanation(header) is None


def test_what_is_missing_or_odd_is_empty() -> None:
    odd = '{"outcome":"MISS","reused_tokens":true,"prompt_tokens":"9","extra":{}}'
    assert read_explanation(odd) == TurnExplanation("MISS", "", 0, None, "", "")
