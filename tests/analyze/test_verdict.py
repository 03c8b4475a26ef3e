"""Two sentences for each case, with the reason."""

import pytest

from pdctl.analyze.verdict import Grounds, judge

GOOD = {
    "follow_ups": 5000,
    "repeated": 0.9,
    "longest": 0.88,
    "ttl": 240.0,
    "reused": 0.85,
    "room_known": True,
    "none_fits": False,
    "saved_ms": (90.0, 800.0),
    "ratios": (1.4, 2.6),
}


@pytest.mark.parametrize(
    ("change", "decision", "words"),
    [
        ({}, "do", "a TTL of 4m would reuse 85%"),
        ({}, "do", "1.4 times as fast where prefill's own prefix cache is healthy, and up to 2.6"),
        ({"room_known": False}, "do", "Do it if decode has the room"),
        ({"repeated": 0.04}, "do not", "only 4% of the prompts"),
        ({"longest": 0.1}, "do not", "turns come too late"),
        ({"saved_ms": (0.0, 12.0)}, "do not", "12 ms at best"),
        ({"follow_ups": 1}, "measure first", "only 1 follow-up turn,"),
        ({"none_fits": True, "reused": 0.3}, "measure first", "more than decode has room for"),
        ({"reused": 0.3}, "measure first", "would reuse 30%"),
    ],
)
def test_verdicts(change: dict[str, object], decision: str, words: str) -> None:
    verdict = judge(Grounds(**(GOOD | change)))  # type: ignore[arg-type]
    assert verdict.decision == decision
    assert words in verdict.text
    assert verdict.text.count(". ") + verdict.text.endswith(".") == 2, "two sentences"
