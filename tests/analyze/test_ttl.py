"""Hit rate over the TTL, percentiles and the knee."""

from collections import Counter
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from pdctl.analyze.ttl import Gaps, ladder

SECONDS = st.lists(st.one_of(st.integers(0, 5000), st.floats(0, 5000)), min_size=1, max_size=50)


@given(SECONDS, st.integers(0, 6000))
def test_the_curve_is_exact_at_whole_seconds(gaps, ttl) -> None:
    counted = Gaps(Counter(map(ceil, gaps)))
    assert counted.within(ttl) == sum(gap <= ttl for gap in gaps)


@given(SECONDS)
def test_percentiles_and_histogram_count_every_gap(gaps) -> None:
    counted = Gaps(Counter(map(ceil, gaps)))
    assert sum(count for _, count in counted.histogram()) == len(gaps)
    half = counted.percentile(50)
    assert sum(ceil(gap) <= half for gap in gaps) >= len(gaps) / 2
    assert counted.percentile(100) == max(map(ceil, gaps))


def test_nothing_has_no_numbers() -> None:
    nothing = Gaps(Counter())
    assert nothing.share(100) is None
    assert nothing.percentile(50) is None
    assert nothing.knee(3600) is None


def test_the_knee_is_where_gaps_end_to_be_common() -> None:
    gaps = Gaps(Counter({10: 500, 20: 300, 30: 150, 1000: 25, 2000: 15, 3000: 10}))
    assert gaps.knee(3600) == 30
    assert Gaps(Counter({0: 10})).knee(3600) is None


def test_the_ladder_has_what_matters() -> None:
    assert {77.0, 111.0, 480.0} <= set(ladder(77.0, 111))
    assert 0.0 not in ladder(0.0, None)
