"""Published curves and speeds that a log shows."""

import random
from math import inf, nan

import pytest

from pdctl.analyze.pinned import Step
from pdctl.analyze.speed import BEST_RATIO, CURVES, HEALTHY_RATIO, measured, savings


def test_the_curves_go_through_what_was_published() -> None:
    qwen, glm = CURVES
    assert (qwen.off(2000), qwen.off(24000), qwen.on(24000)) == pytest.approx((158, 778, 460))
    assert (glm.off(2000), glm.off(20000), glm.on(20000)) == pytest.approx((500, 2334, 702))
    assert round(HEALTHY_RATIO, 1) == 1.4
    assert round(BEST_RATIO, 1) == 3.3


def test_the_range_is_honest() -> None:
    _, glm = savings([(20000, 19900)] * 10)
    assert glm.low_ratio == HEALTHY_RATIO
    assert glm.high_ratio == pytest.approx(3.3, abs=0.1)
    assert 0 < glm.low_ms < glm.high_ms < glm.cold_ms
    qwen, _ = savings([(2000, 1000)])
    assert qwen.low_ratio == qwen.high_ratio < HEALTHY_RATIO
    assert savings([]) == []
    none, _ = savings([(2000, 0)])
    assert (none.low_ms, none.high_ms, none.high_ratio) == (0, 0, 1)


def step(prompt: int, reused: float, ttft: float) -> Step:
    return Step(0.0, 1.0, inf, prompt, prompt, 0, 0, reused, ttft)


def test_speeds_and_threshold_are_found_again() -> None:
    chance = random.Random(0)
    steps = []
    for _ in range(500):
        prompt = chance.randrange(500, 20000)
        reused = chance.choice([0, int(prompt * chance.random())])
        ttft = 20 + (prompt - reused) * 0.08 + (reused > 0) * 12 + reused * 0.02
        steps.append(step(prompt, reused, ttft + chance.gauss(0, 1)))
    found = measured(steps)
    assert found is not None
    assert found.compute_ms_per_1k == pytest.approx(80, rel=0.02)
    assert found.pull_ms_per_1k == pytest.approx(20, rel=0.05)
    assert found.threshold == pytest.approx(200, rel=0.1)


def test_too_little_shows_nothing() -> None:
    assert measured([step(100, 0, 5.0)] * 100) is None
    assert measured([step(100, nan, 5.0), step(100, 0, nan)] * 100) is None
    assert measured([step(100, 0, 5.0), step(100, 50, 5.0)] * 100) is None
