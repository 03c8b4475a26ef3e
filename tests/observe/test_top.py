"""What two looks at a deployment show."""

import math
from dataclasses import replace

import pytest

from pdctl.base.facts import EngineMetrics, PairFacts, RouterFacts, RouterMetrics, ServingFacts
from pdctl.observe.metrics import parse_samples
from pdctl.observe.top import Glance, buckets, quantiles, view

INF = math.inf


def look(at: float, *, turns: dict[str, float], moved: int) -> Glance:
    """A pair whose counters stand at these values."""
    metrics = EngineMetrics(
        kv_usage=0.25,
        running=1,
        waiting=0,
        nixl_bytes=moved,
        nixl_transfers=moved // 100,
        nixl_failed=0,
        block_size=16,
        num_blocks=100,
    )
    engines = tuple(
        ServingFacts(f"{role}-0", role, "here", f"http://{role}", version="0.33.0", metrics=metrics)
        for role in ("prefill", "decode")
    )
    tokens = int(sum(turns.values()) * 100)
    router = RouterFacts(
        "http://r",
        ours=True,
        handles=2,
        retained_tokens=300,
        metrics=RouterMetrics(turns=turns, prompt_tokens=tokens, reused_tokens=tokens // 2),
    )
    facts = PairFacts("demo", at, engines=engines, router=router)
    return Glance(facts)


def test_what_changed_in_between() -> None:
    old = look(100, turns={"HIT": 10, "MISS": 5}, moved=1000)
    new = look(130, turns={"HIT": 13, "MISS": 5, "OFF": 4, "PARTIAL": 1}, moved=1600)
    seen = view(old, new)
    assert seen.window_s == 30
    assert seen.turns == {"HIT": 3, "OFF": 4, "PARTIAL": 1}
    assert seen.hit_share == pytest.approx(0.75)
    assert (seen.prompt_tokens, seen.reused_tokens) == (800, 400)
    assert (seen.pulled_bytes, seen.pulls, seen.handed_bytes) == (600, 6, 600)
    assert (seen.failed, seen.expired) == (0, None)
    assert (seen.retained_tokens, seen.room_tokens) == (300, 1600)
    assert [(each.used, each.room) for each in seen.engines] == [(400, 1600), (400, 1600)]
    assert seen.healthy


def test_without_an_earlier_look_it_is_since_the_start() -> None:
    seen = view(None, look(100, turns={"HIT": 10}, moved=1000))
    assert (seen.window_s, seen.turns, seen.pulled_bytes) == (None, {"HIT": 10}, 1000)


def test_an_engine_that_was_restarted_has_not_counted_backwards() -> None:
    seen = view(look(1, turns={}, moved=1000), look(2, turns={}, moved=10))
    assert seen.pulled_bytes is None


def test_what_does_not_answer_is_told() -> None:
    new = look(2, turns={"HIT": 1}, moved=5)
    dead = replace(new.facts.engines[1], error="no answer", metrics=None)
    router = replace(new.facts.router, error="gone", metrics=None)  # type: ignore[type-var]
    facts = replace(new.facts, engines=(new.facts.engines[0], dead), router=router)
    seen = view(None, Glance(facts))
    assert not seen.healthy
    assert seen.engines[1].problem == "no answer"
    assert seen.engines[1].used is None
    assert (seen.router_problem, seen.turns, seen.room_tokens) == ("gone", {}, None)
    assert seen.handed_bytes is None


def test_quantiles_are_those_of_the_window() -> None:
    old = {0.1: 50.0, 1.0: 50.0, INF: 50.0}
    new = {0.1: 60.0, 1.0: 150.0, INF: 151.0}
    found = quantiles(old, new)
    # 101 turns came: 10 below 0.1 s, 90 more below 1 s, one longer.
    assert found[0.5] == pytest.approx(1000 * (0.1 + 0.9 * (50.5 - 10) / 90))
    assert found[0.99] == pytest.approx(1000 * (0.1 + 0.9 * (99.99 - 10) / 90))
    assert quantiles({}, {0.1: 0.0, INF: 5.0})[0.5] == 100
    assert quantiles(new, new) == {}
    assert quantiles(new, old) == {}


def test_a_histogram_is_read_from_a_scrape() -> None:
    text = (
        "# TYPE x_seconds histogram\n"
        'x_seconds_bucket{le="0.5"} 1\nx_seconds_bucket{le="+Inf"} 3\n'
        "x_seconds_sum 4\nx_seconds_count 3\n"
    )
    assert buckets(parse_samples(text), "x_seconds") == {0.5: 1, INF: 3}
