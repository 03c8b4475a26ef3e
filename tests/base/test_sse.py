"""Events are the same whatever the pieces they come in, and cost is by bytes, not by pieces."""

import itertools
import time

from hypothesis import given
from hypothesis import strategies as st

from pdctl.base.sse import SseSplitter, data_of, event_of

RAW = b"data: one\n\n: a comment\n\ndata: two\r\n\r\nevent: x\ndata: a\ndata: b\n\ndata: [DONE]\n\n"
EVENTS = [
    b"data: one\n\n",
    b": a comment\n\n",
    b"data: two\r\n\r\n",
    b"event: x\ndata: a\ndata: b\n\n",
    b"data: [DONE]\n\n",
]


@given(st.lists(st.integers(0, len(RAW)), max_size=12))
def test_any_cut_gives_the_same_events(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(RAW)]
    splitter = SseSplitter()
    got = [
        event
        for begin, end in itertools.pairwise(places)
        for event in splitter.feed(RAW[begin:end])
    ]
    assert got == EVENTS
    assert splitter.rest() == b""


def test_the_data_of_an_event() -> None:
    assert [data_of(event) for event in EVENTS] == [b"one", None, b"two", b"a\nb", b"[DONE]"]
    assert data_of(event_of(b"x")) == b"x"


def test_what_did_not_end_is_told() -> None:
    splitter = SseSplitter()
    assert splitter.feed(b"data: one\n\ndata: tw") == [b"data: one\n\n"]
    assert splitter.rest() == b"data: tw"


def _seconds(count: int) -> float:
    chunk = event_of(b"x" * 90) * count
    best = 9.0
    for _ in range(3):
        began = time.perf_counter()
        assert len(SseSplitter().feed(chunk)) == count
        best = min(best, time.perf_counter() - began)
    return best


def test_a_chunk_of_many_events_costs_what_its_bytes_do() -> None:
    # Eight times the events is eight times the work; searched to the end each time it was 64.
    assert _seconds(4000) < 24 * _seconds(500)


@given(st.lists(st.integers(0, len(RAW)), max_size=12), st.integers(0, 5))
def test_events_may_be_taken_one_by_one(cuts: list[int], single: int) -> None:
    places = [0, *sorted(cuts), len(RAW)]
    splitter, got = SseSplitter(), []
    for begin, end in itertools.pairwise(places):
        if len(got) < single:
            splitter.push(RAW[begin:end])
            while len(got) < single and (event := splitter.pop()) is not None:
                got.append(event)
        else:
            got += splitter.feed(RAW[begin:end])
    assert got + splitter.feed(b"") == EVENTS
    assert splitter.take_rest() == splitter.rest() == b""
