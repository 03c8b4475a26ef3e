import json
from typing import Any

import pytest

from pdctl.base.facts import EngineMetrics, PairFacts, RouterFacts, ServingFacts
from pdctl.observe.outlook import gaps_in, look_out


def facts(*, retained: int | None, blocks: int | None = 100) -> PairFacts:
    metrics = EngineMetrics(num_blocks=blocks, block_size=16)
    decode = ServingFacts("decode-0", "decode", "h", "http://d", metrics=metrics)
    return PairFacts(
        "x", 0.0, engines=(decode,), router=RouterFacts("http://r", retained_tokens=retained)
    )


def look(found: PairFacts, gaps: list[float] | None = None, **changes: float) -> Any:
    usual = {"router_now": 92.0, "router_then": 184.0}
    return look_out(found, gaps or [], **{**usual, "uptime": 1000.0, **changes})


def test_what_one_ttl_retained_is_twice_as_much_with_twice_the_ttl() -> None:
    found = look(facts(retained=400))
    assert (found.expected_tokens, found.capacity_tokens) == (800, 1600)
    assert (found.share, found.starves) == (0.5, False)


def test_a_router_that_has_not_run_for_a_ttl_retained_it_in_less_time() -> None:
    assert look(facts(retained=400), uptime=46.0).expected_tokens == 1600
    assert look(facts(retained=400), uptime=46.0).starves


def test_what_nobody_says_is_not_guessed() -> None:
    assert look(facts(retained=None)).expected_tokens is None
    assert look(facts(retained=400, blocks=None)).share is None
    assert not look(facts(retained=None)).starves
    assert look(facts(retained=1)).late_then is None


def test_turns_that_come_too_late_are_those_after_the_routers_ttl() -> None:
    found = look(facts(retained=1), [10.0, 91.0, 93.0, 500.0])
    assert (found.gaps, found.late_now, found.late_then) == (4, 0.5, 0.25)


def line(ts: float, name: str = "c", total_ms: float = 0.0, tenant: str = "") -> str:
    return json.dumps({"conversation_id": name, "ts": ts, "total_ms": total_ms, "tenant": tenant})


def test_a_pause_begins_with_the_end_of_a_turn() -> None:
    log = [line(10.0, total_ms=2000), line(5.0, "other"), line(30.0), line(20.0, tenant="t")]
    assert gaps_in("\n".join(log).encode()) == [18.0]


@pytest.mark.parametrize(
    "bad", [b"", b"{", b"[]", b"{}", b'{"conversation_id":"c"}', b"\xff", b"3"]
)
def test_lines_that_are_none_are_left_out(bad: bytes) -> None:
    log = b"\n".join([line(1.0).encode(), bad, line(4.0).encode()])
    assert gaps_in(log) == [3.0]


def test_turns_of_no_conversation_have_no_pause_and_overlapping_ones_none_below_zero() -> None:
    assert gaps_in("\n".join([line(1.0, "-"), line(2.0, "-")]).encode()) == []
    assert gaps_in("\n".join([line(1.0, total_ms=9000), line(2.0)]).encode()) == [0.0]
