"""Whatever stands in a log, reading it ends, and ends well."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.observe.logs.summary import Summary
from tests.observe.logs.helpers import events
from tests.observe.logs.lines import POSITIVE

LINES = [line for lines in POSITIVE.values() for line in lines]
WRAPPINGS = [
    "", "prefill-0  | ", "2026-11-29T15:29:23Z stderr F ", "[pod/decode-0/vllm] ",
    "Nov 29 15:29:23 h1 router[1]: ", "(Worker_TP1 pid=1) ERROR 11-29 15:29:23 [a.py:1] ",
    "9999-12-31 23:59:59 [INFO] demo pdctl.router: ", "0001-01-01 00:00:00 [INFO] x: ", "\x1b[31m",
]  # fmt: skip


@st.composite
def mangled(draw: st.DrawFn) -> bytes:
    """A line of ours in some wrapping, with digits multiplied, and bytes cut out or put in."""
    line = draw(st.sampled_from(WRAPPINGS)) + draw(st.sampled_from(LINES))
    if draw(st.booleans()):
        digit = draw(st.sampled_from("0123456789."))
        line = line.replace(digit, digit * draw(st.integers(1, 5000)), 3)
    if draw(st.booleans()):
        line = json.dumps({draw(st.sampled_from(["MESSAGE", "log", "message"])): line,
                           "__REALTIME_TIMESTAMP": "9" * draw(st.integers(0, 400))})  # fmt: skip
    raw = line.encode()
    place = draw(st.integers(0, len(raw)))
    cut = draw(st.integers(0, 5))
    return raw[:place] + draw(st.binary(max_size=5)) + raw[place + cut :]


@settings(max_examples=150, deadline=None)
@given(st.lists(mangled(), max_size=8), st.booleans())
def test_nothing_in_a_log_breaks_reading_it(lines: list[bytes], every: bool) -> None:
    keep = (lambda _: True) if every else None
    summary = Summary()
    for event, _ in summary.of(events(b"\n".join(lines), keep=keep)):
        json.dumps(event.as_dict())
    summary.close()
    json.dumps(summary.as_dict())
