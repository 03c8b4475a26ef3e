"""Blocks to events: however the bytes are cut, the same events come out."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.observe.logs.event import Event
from tests.observe.logs.helpers import events, ids, stream
from tests.observe.logs.lines import API, CORE, ERR, EXAMPLE, LOAD, POSITIVE

TRACE = """\
ERROR:    Exception in ASGI application
Traceback (most recent call last):
  File "a.py", line 1, in run
    result = await app(
             ^^^^^^^^^^
httpx.HTTPStatusError: Server error '500 Internal Server Error' for url 'http://p:8100/v1/x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "b.py", line 1, in run
    raise ValueError("KV Transfer metrics: none")
ValueError: it failed
2026-11-29 15:29:24 [INFO] disagg_proxy: [x] Prefill done in 93ms
"""
DEAD = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."


def prefixed(prefix: str, *lines: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in lines)


def test_a_traceback_is_one_event_with_its_last_exception() -> None:
    found = events(TRACE)
    assert [event.id for event in found] == ["router.upstream.error", "router.prefill.done"]
    assert found[0].line == "Traceback (most recent call last):"
    assert found[0].fields["exception"] == "ValueError: it failed"
    assert found[0].more[0].startswith("Traceback")
    assert found[0].more[-1] == "ValueError: it failed"


def test_one_in_a_record_of_vllm_is_of_that_record() -> None:
    text = prefixed(
        ERR, "NIXL transfer failure: transfer_setup_failed | Context: {'request_id': 'cmpl-1'}",
        "Traceback (most recent call last):", '  File "a.py", line 1', "    go()",
        "nixl_cu12._bindings.nixlRemoteDisconnectError: NIXL_ERR_REMOTE_DISCONNECT",
    )  # fmt: skip
    text += prefixed(CORE, "Failing 1 request(s) due to KV load failure (failure_policy=fail)")
    found = events(text)
    assert [event.id for event in found] == ["nixl.peer.disconnected", "kv.load.failed"]
    assert found[0].fields["request"] == "cmpl-1"
    assert found[0].fields["exception"].endswith("NIXL_ERR_REMOTE_DISCONNECT")


def test_workers_that_write_between_its_lines_are_not_part_of_it() -> None:
    one, two = (ERR.replace("Worker", f"Worker_TP{n}").replace("12209", str(n)) for n in (0, 1))
    lines = ["Traceback (most recent call last):", '  File "a.py"', "    go()", "KeyError: 3"]
    text = "".join(f"{one}{line}\n{two}{line}\n" for line in lines)
    found = events(text + POSITIVE["kv.read.declined"][0] + "\n")
    assert [event.id for event in found] == ["process.traceback"] * 2 + ["kv.read.declined"]
    assert [event.fields["worker"] for event in found[:2]] == ["0", "1"]
    assert all(event.fields["exception"] == "KeyError: 3" for event in found[:2])


def test_the_line_that_says_most_gives_it_its_name() -> None:
    text = prefixed(
        CORE, "EngineCore encountered a fatal error.", "Traceback (most recent call last):",
        '  File "scheduler.py", line 3224', "    assert req_id in self.requests",
        "           ^^^^^^^", "AssertionError",
    )  # fmt: skip
    (event,) = events(text)
    assert (event.id, event.severity) == ("engine.abort.assertion", "block")
    assert event.fields["exception"] == "AssertionError"


def test_vllms_json_logging_carries_it_in_the_record() -> None:
    record = {"levelname": "ERROR", "message": "oops", "asctime": "2026-11-29 15:29:23,000",
              "exc_info": f"Traceback (most recent call last):\n  File x\n{DEAD}"}  # fmt: skip
    (event,) = events(json.dumps(record) + "\n")
    assert (event.id, event.fields["exception"]) == ("engine.dead", DEAD)


def test_one_that_is_cut_off_is_still_one() -> None:
    assert ids("Traceback (most recent call last):\n  File x") == ["process.traceback"]
    assert ids("Traceback (most recent call last):") == ["process.traceback"]
    endless = "Traceback (most recent call last):\n" + '  File "x"\n' * 5000
    assert ids(endless + POSITIVE["kv.read.declined"][0]) == [
        "process.traceback", "kv.read.declined",
    ]  # fmt: skip


def test_a_line_of_several_signatures_is_the_first_of_the_table() -> None:
    assert ids(API + LOAD.format(0, 1, "CPU", "87.0") + "\n") == ["kv.full"]


MIXED = "".join(
    f"{line}\nordinary line {number}\n" for number, line in enumerate(
        line for lines in POSITIVE.values() for line in lines
    )
) + TRACE  # fmt: skip
WHOLE = [(event.id, event.fields) for event in events(MIXED)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, len(MIXED.encode())), max_size=12))
def test_it_does_not_matter_how_the_bytes_are_cut(cuts: list[int]) -> None:
    data, found = MIXED.encode(), []
    one = stream()
    places = [0, *sorted(cuts), len(data)]
    for start, stop in pairwise(places):
        found += one.feed(data[start:stop])
    found += one.feed(b"", last=True)
    assert [(event.id, event.fields) for event in found] == WHOLE


def test_all_lines_are_given_in_order_when_all_are_wanted() -> None:
    text = f"one\n\n{POSITIVE['kv.read.declined'][0]}\ntwo\n{TRACE}three"
    found = events(text, keep=lambda _: True)
    assert [event.line for event in found if event.signature is None] == [
        "one", "two", "ERROR:    Exception in ASGI application", "three",
    ]  # fmt: skip
    assert [event.id for event in found] == [
        None, "kv.read.declined", None, None, "router.upstream.error", "router.prefill.done", None,
    ]  # fmt: skip


def test_a_line_that_never_ends_is_read_once_and_dropped() -> None:
    one = stream()
    begun = POSITIVE["kv.read.declined"][1].encode() + b" "
    found: list[Event] = []
    for part in (begun, *[b"y" * (1 << 20)] * 4, b"\n" + begun + b"\n"):
        found += one.feed(part)
    found += one.feed(b"", last=True)
    assert [event.id for event in found] == ["kv.read.declined"] * 2


def test_flushing_gives_what_waits_but_no_half_lines() -> None:
    one = stream()
    line = POSITIVE["kv.load.failed"][0]  # an error, which may bring a traceback
    assert list(one.feed(f"{line}\n{EXAMPLE}".encode())) == []
    assert [event.id for event in one.flush()] == ["kv.load.failed"]
    rest = list(one.feed(b"[x] Prefill done in 93ms\n"))
    assert [event.id for event in rest] == ["router.prefill.done"]


WRAPPINGS = {
    "docker": lambda line: json.dumps({"log": f"{line}\n", "time": "2026-11-29T15:29:23Z"}),
    "CRI": lambda line: f"2026-11-29T15:29:23.1Z stderr F {line}",
    "compose": lambda line: f"router-1  | {line}",
    "journald": lambda line: json.dumps({"MESSAGE": line, "_SYSTEMD_UNIT": "x-router.service"}),
    "journald, short": lambda line: f"Nov 29 15:29:23 h1 router[1]: {line}",
}


@pytest.mark.parametrize("kind", WRAPPINGS)
def test_a_traceback_is_one_event_in_every_wrapping(kind: str) -> None:
    found = events("".join(f"{WRAPPINGS[kind](line)}\n" for line in TRACE.splitlines()))
    assert [event.id for event in found] == ["router.upstream.error", "router.prefill.done"]
    assert found[0].fields["exception"] == "ValueError: it failed"
    assert found[0].more == events(TRACE)[0].more
