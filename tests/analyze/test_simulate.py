"""The simulation against memory that is counted instant by instant, and against what is known."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.analyze.simulate import Rules, Simulation, Traffic, Turn, made_up, simulate

TIME = st.integers(0, 40)
TURN = st.tuples(TIME, st.integers(1, 5), st.integers(0, 4), st.integers(1, 200))


def turns_of(drawn: list[tuple[int, int, int, int]]) -> list[Turn]:
    """One turn of a conversation after the other."""
    turns, free = [], {}
    for start, seconds, id, tokens in sorted(drawn):
        if start >= free.get(id, -1):
            turns.append(Turn(start, start + seconds, id, tokens, tokens + 7))
            free[id] = start + seconds
    return turns


def retained_at(turns: list[Turn], moment: float, rules: Rules) -> int:
    """Counted from scratch: what has ended, is not expired and not taken by the next turn."""
    total = 0
    for number, turn in enumerate(turns):
        later = [t.start for t in turns[number + 1 :] if t.conversation == turn.conversation]
        gone = min([turn.end + rules.ttl, *later])
        if turn.end <= moment < gone:
            total += math.ceil(turn.held / rules.block)
    return total


@settings(max_examples=200, deadline=None)
@given(st.lists(TURN, max_size=25), st.integers(1, 30))
def test_retained_blocks_at_every_instant(drawn, ttl) -> None:
    turns, rules = turns_of(drawn), Rules(ttl, ttl - 0.5, threshold=1)
    until = 60.0
    outcome = Simulation(rules, 0.0, 1.0).run(turns, until=until)
    # All times are whole seconds, so that nothing changes within a bin.
    assert outcome.mean == [retained_at(turns, second, rules) for second in range(int(until))]
    pairs = [
        (old, new)
        for number, new in enumerate(turns)
        for old in [[t for t in turns[:number] if t.conversation == new.conversation]]
        if old
    ]
    assert outcome.follow_ups == len(pairs)
    hits = [(old[-1], new) for old, new in pairs if new.start - old[-1].end <= rules.usable]
    hits = [(old, new) for old, new in hits if new.prompt > 1]
    assert outcome.hits == len(hits)
    assert outcome.reused == sum(min(old.held, new.prompt - 1) for old, new in hits)


def test_when_the_room_is_gone_the_oldest_goes() -> None:
    turns = [Turn(n, n + 0.5, f"c{n}", 100, 160) for n in range(6)]
    turns += [Turn(n + 10, n + 10.5, f"c{n}", 400, 480) for n in range(6)]
    rules = Rules(ttl=100, usable=92, capacity=50)
    outcome = Simulation(rules, 0.0, 1.0).run(turns, until=20)
    assert max(outcome.peak) <= 50
    # Room for five: c0 went when c5 came. A follow-up then takes 30 blocks and pushes out more.
    assert outcome.evicted > 0
    assert outcome.hits + outcome.evicted == outcome.follow_ups == 6
    assert outcome.waited == 0
    tight = Simulation(Rules(100, 92, capacity=9), 0.0, 1.0).run(turns, until=20)
    assert tight.waited == 12
    assert tight.hits == 0


def test_a_turn_below_the_threshold_is_no_reuse() -> None:
    turns = [Turn(0, 1, "a", 10, 20), Turn(2, 3, "a", 30, 40)]
    assert Simulation(Rules(60, 52, threshold=64), 0.0, 1.0).run(turns).hits == 0
    assert Simulation(Rules(60, 52, threshold=20), 0.0, 1.0).run(turns).hits == 1


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0])
def test_made_up_traffic_agrees_with_the_formula(spread: float) -> None:
    """Little's law: sessions in their gap, each with a context, for at most the TTL."""
    traffic = Traffic(2000, 60.0, 8000, seconds=10.0, spread=spread)
    ttl = 90.0
    rules = Rules(ttl, ttl - 8)
    outcome = simulate(made_up(traffic, 900.0), rules, until=900.0)
    alone = 60.0 * (1 - spread)
    held = alone + (60.0 - alone) * (1 - math.exp(-(ttl - alone) / (60.0 - alone or 1)))
    expected = 2000 * held / 70.0 * 8000 / 16
    assert outcome.average(300.0) == pytest.approx(expected, rel=0.03)
    assert outcome.turns == pytest.approx(2000 * 900 / 70, rel=0.05)
