"""Tables from rows."""

from dataclasses import replace
from pathlib import Path

import pytest

from pdctl.base.errors import NotFoundError, UsageError
from pdctl.bench import files
from pdctl.bench.rows import Leg, TurnRow
from pdctl.bench.summary import summarise
from tests.bench import rows


def test_a_run_as_tables(tmp_path: Path) -> None:
    summary = summarise(files.read(rows.write(tmp_path / "r")))
    assert [(each.length, each.leg.label) for each in summary.lines] == [
        (2000, "off-cache"),
        (2000, "on-cache"),
        (8000, "off-cache"),
        (8000, "on-cache"),
    ]
    off, on = summary.lines[2:]
    assert off.ttft is not None
    assert on.ttft is not None
    assert off.ttft.value == pytest.approx(800 + 0.5 + 1.5 + 2.5 / 8)
    assert on.ttft.value == pytest.approx(58 + 0.5 + 1.5 + 2.5 / 8)
    assert on.ttft.low is not None
    assert on.ttft.low < on.ttft.value
    assert on.turns == 8
    assert (on.hits, off.hits) == (1.0, 0.0)
    assert on.outcomes == {"HIT": 8}
    assert on.reasons == {"HIT continued": 8}
    assert on.reused == 2000
    # Both cells together: 0.8 s of prefill and 8 later turns.
    assert (on.prefill_ms, on.transfer_ms, on.compute_ms) == pytest.approx((100, 20, 25))
    assert (on.pulled_tokens, on.pulled_bytes) == (2000, 2e6)
    assert (on.handed_bytes, on.handed_ms) == pytest.approx((1e6, 10))
    assert on.pinned_tokens == 9000
    ratio = summary.ratios[1]
    assert (ratio.length, ratio.caching) == (8000, False)
    assert ratio.value.value == pytest.approx(off.ttft.value / on.ttft.value)


def test_first_turns_and_failed_ones_are_kept_apart(tmp_path: Path) -> None:
    path = rows.write(tmp_path / "r", lengths=(2000,))
    folder = files.reopen(path)
    folder.add_turn(rows.turn("on-cache/2000/1", 1, 3, None, error="HTTP 500"))
    line = summarise(files.read(path)).lines[1]
    assert line.errors == 1
    assert line.turns == 8
    assert line.first_ttft is not None
    assert line.first_ttft.value > 200


def test_only_the_last_attempt_of_a_cell_counts(tmp_path: Path) -> None:
    path = rows.write(tmp_path / "r", lengths=(2000,))
    folder = files.reopen(path)
    key = "on-cache/2000/1"
    assert folder.attempt(key) == 2
    folder.add_turn(replace(rows.turn(key, 0, 2, 7.0), attempt=2))
    folder.add_cell(replace(rows.cell(Leg("on", False), 2000, 1), attempt=2, complete=False))
    run = files.read(path)
    assert [row.ttft_ms for row in run.turns if row.cell == key] == [7.0]
    line = summarise(run).lines[1]
    assert (line.turns, line.incomplete) == (5, 1)
    # Its counters are not whole, so they say nothing.
    assert line.prefill_ms == pytest.approx(100)
    assert key not in files.reopen(path).done()
    assert "off-cache/2000/1" in files.reopen(path).done()


def test_half_a_line_at_the_end_is_left_out(tmp_path: Path) -> None:
    path = rows.write(tmp_path / "r", lengths=(2000,))
    whole = files.read(path)
    with (path / files.TURNS).open("a") as turns:
        turns.write('{"cell": "on-ca')
    assert files.read(path) == whole


def test_engines_that_do_not_count_leave_gaps_not_zeros(tmp_path: Path) -> None:
    path = rows.write(tmp_path / "r", lengths=(2000,))
    folder = files.reopen(path)
    silent = {"later": {"prefill": {"ttft_s": None}, "decode": {"bytes": None}}}
    row = rows.cell(Leg("on", False), 2000, 2, counted=silent, attempt=1)
    folder.add_cell(row)
    line = summarise(files.read(path)).lines[1]
    assert line.prefill_ms is None
    assert line.pulled_bytes is None


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    row = rows.turn("on/1/1", 0, 1, 1.5, retries=["reuse_failed"])
    assert TurnRow.from_dict({**row.as_dict(), "newer": 1}) == row


def test_a_folder_that_has_a_run_is_not_written_over(tmp_path: Path) -> None:
    path = rows.write(tmp_path / "r", lengths=(2000,))
    with pytest.raises(UsageError, match="has a run already"):
        files.create(path, {})
    with pytest.raises(NotFoundError, match="there is no run"):
        files.read(tmp_path)
