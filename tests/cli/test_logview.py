"""What a terminal is shown while logs are followed."""

import io
import sys

import pytest

from pdctl.cli.logview import EventView, LiveView
from pdctl.observe.logs.summary import Summary
from tests.observe.logs.helpers import events
from tests.observe.logs.lines import API, EXAMPLE, LOAD, POSITIVE


def test_what_a_line_holds_does_not_command_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdout", out := io.StringIO())
    (event,) = events(POSITIVE["kv.read.declined"][0] + " \x1b]0;title\x07 \x1b[31mred\tx\n")
    for every in (True, False):
        EventView(every=every).show(event, ())
    assert out.getvalue().count("�]0;title� red\tx\n") == 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def summary() -> Summary:
    summary = Summary()
    lines = [EXAMPLE + "[r] conv=a: cache MISS", EXAMPLE + "conv=a: cache HIT (age=0.1s)",
             API + LOAD.format(2, 3, "GPU", "40.0"), *POSITIVE["kv.read.declined"]]  # fmt: skip
    for _ in summary.of(events("\n".join(lines))):
        pass
    return summary


STATUS = "last minute: 50% HIT of 2 turns | expired reads 2 | failed loads 0 | waiting 3"


def test_a_terminal_has_one_line_that_is_written_anew(
    summary: Summary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    live = LiveView(summary)
    now = summary.first or 0.0
    live.tick(now)
    live.tick(now)  # nothing new, nothing written
    assert screen.getvalue() == f"\r\x1b[K{STATUS}"
    live.clear()
    assert screen.getvalue().endswith("\r\x1b[K")
    live.tick(now + 3600)
    assert screen.getvalue().endswith("last minute: no turns | expired reads 2 | failed loads 0 "
                                      "| waiting 3")  # fmt: skip


def test_elsewhere_there_is_a_line_now_and_then(
    summary: Summary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", out := io.StringIO())
    live = LiveView(summary)
    now = summary.first or 0.0
    for seconds in range(5):
        live.tick(now + seconds)
    assert out.getvalue() == f"{STATUS}\n"
    live.tick(now + 61)
    assert len(out.getvalue().splitlines()) == 2
    live.clear()
    assert "\x1b" not in out.getvalue()


def test_a_cause_is_told_once_with_its_fix_and_a_consequence_in_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", out := io.StringIO())
    summary = Summary()
    live = LiveView(summary)
    text = "\n".join([*POSITIVE["kv.read.declined"], *POSITIVE["kv.load.failed"]])
    for _ in summary.of(events(text)):
        live.alert()
    told = out.getvalue()
    assert told.count("alert kv.read.declined: prefill declined to read blocks") == 1
    assert told.count("fix: ") == 1
    assert told.endswith("alert kv.load.failed: requests failed because their KV could not be "
                         "loaded\n")  # fmt: skip
