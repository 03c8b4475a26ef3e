"""What TTLs pin and reuse, against the same counted turn by turn."""

from array import array
from math import ceil, nan

from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.analyze.pinned import INSTANTS, pinned, reusable, steps_of, turns_of
from pdctl.analyze.simulate import Rules, Simulation

ROWS = st.dictionaries(
    st.integers(0, 5),
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 500), st.integers(0, 90)), max_size=8),
    max_size=5,
)


def kept_of(drawn, *, ends: bool = False):
    kept = {}
    for id, rows in drawn.items():
        kept[id] = array("d")
        for start, prompt, answer in rows:
            kept[id].extend((start, prompt, answer, start + 3 if ends else nan, nan, nan))
    return kept


@settings(max_examples=200, deadline=None)
@given(ROWS, st.sampled_from([1.0, 17.0, 100.0]), st.booleans())
def test_pinned_at_each_instant_and_in_the_mean(drawn, ttl, ends) -> None:
    steps = steps_of(kept_of(drawn, ends=ends))
    (found,) = pinned(steps, [ttl], block=16, since=0, until=INSTANTS)
    lives = [(s.end, max(s.end, min(s.end + ttl, s.then)), ceil(s.held / 16)) for s in steps]
    for instant, blocks in enumerate(found.at):
        assert blocks == sum(size for begin, end, size in lives if begin <= instant < end)
    area = sum(size * max(0, min(end, INSTANTS) - begin) for begin, end, size in lives)
    assert abs(found.mean - area / INSTANTS) < 1e-6
    assert found.peak == max(found.at)


@settings(max_examples=100, deadline=None)
@given(ROWS, st.sampled_from([10.0, 60.0, 300.0]))
def test_the_simulation_without_a_bound_reuses_the_same(drawn, ttl) -> None:
    # Where starts are equal the order is anybody's.
    drawn = {id: list({row[0]: row for row in rows}.values()) for id, rows in drawn.items()}
    steps = steps_of(kept_of(drawn))
    done = Simulation(Rules(ttl + 1, ttl, threshold=10), 0.0, 1.0).run(turns_of(steps))
    assert reusable(steps, [ttl], threshold=10) == [done.reused]


def test_steps_know_what_comes_next() -> None:
    first, last = steps_of({"c": array("d", [5, 100, nan, nan, nan, nan, 1, 90, 5, 2, 0, 7])})
    assert (first.start, first.end, first.then, first.held, first.wants) == (1, 2, 5, 95, 100)
    assert (last.start, last.end, last.held, last.then) == (5, 5, 100, float("inf"))
