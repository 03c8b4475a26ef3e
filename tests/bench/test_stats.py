"""Medians and intervals against what is known of them."""

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.bench.stats import Estimate, median, median_of, percentile, ratio_of


@given(st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_the_median_is_the_librarys(values: list[float]) -> None:
    assert median(values) == pytest.approx(statistics.median(values))


def test_percentiles_lie_between_neighbours() -> None:
    assert percentile([4, 1, 2, 3], 0.95) == pytest.approx(3.85)
    assert percentile([7], 0.95) == 7


def test_one_conversation_says_nothing_of_others() -> None:
    assert median_of({"a": [1.0, 3.0]}) == Estimate(2.0, None, None)
    assert median_of({}) is None
    assert ratio_of({"a": [1.0]}, {}) is None


def test_the_interval_covers_as_often_as_it_says() -> None:
    """Conversations that differ: drawn turn by turn, intervals would cover far too seldom."""
    rng = random.Random(1)
    covered = 0
    for _ in range(60):
        clusters = {}
        for number in range(20):
            centre = rng.gauss(100, 10)
            clusters[str(number)] = [rng.gauss(centre, 1) for _ in range(9)]
        found = median_of(clusters)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 100 <= found.high
    assert covered >= 50


def test_a_ratio_and_its_interval() -> None:
    off = {str(n): [100.0 + n, 102.0] for n in range(10)}
    on = {str(n): [10.0, 10.0 + n / 10] for n in range(10)}
    found = ratio_of(off, on)
    assert found is not None
    assert found.value == pytest.approx(102 / 10, rel=0.03)
    assert found.low is not None
    assert found.high is not None
    assert 9 < found.low <= found.value <= found.high < 11
