"""The three numbers of the seed's script, exactly, however the log lies and is cut."""

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.analyze.lines import open_log
from pdctl.analyze.pinned import gaps_of, steps_of
from pdctl.analyze.scan import Scanned, Wanted, scan
from tests.analyze.naive import Naive, reprefill

ROW = st.fixed_dictionaries(
    {
        "conversation_id": st.sampled_from(["a", "b", "ü", "", 7, "7"]),
        "ts": st.one_of(st.integers(0, 3000), st.floats(0, 3000), st.just(1760000000.25)),
        "prompt_tokens": st.integers(0, 50),
    }
)


def numbers(scanned: Scanned) -> Naive:
    sums = scanned.tally.sums
    return Naive(
        sums.follow_ups,
        sums.repeated / sums.prompt if sums.prompt else None,
        sums.late / sums.follow_ups if sums.follow_ups else None,
    )


@settings(max_examples=1000, deadline=None)
@given(st.lists(ROW, max_size=60), st.integers(30, 4000), st.sampled_from([0.0, 100.0, 480.0]))
def test_the_seeds_numbers(tmp_path_factory, rows, part, ttl) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    log = tmp_path_factory.getbasetemp() / "random.jsonl"
    log.write_text(text)
    found = scan([open_log(str(log))], Wanted(ttl, part=part, cores=1))
    assert numbers(found) == reprefill(text, ttl)


def made(seed: int, rows: int, *, shuffled: bool = False, **extra: object) -> str:
    chance = random.Random(seed)
    ts, lengths = 1.76e9, dict.fromkeys(range(40), 0)
    lines = []
    for _ in range(rows):
        ts += chance.expovariate(0.3)
        id = chance.randrange(40)
        lengths[id] += chance.randrange(1, 400)
        row = {"conversation_id": f"c{id}", "ts": round(ts, 3), "prompt_tokens": lengths[id]}
        lines.append(json.dumps(row | extra) + "\n")
    if shuffled:
        chance.shuffle(lines)
    return "".join(lines)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("cores", [1, 2])
def test_on_several_cores_and_in_any_order(tmp_path, shuffled: bool, cores: int) -> None:
    text = made(1, 5000, shuffled=shuffled)
    log = tmp_path / "log"
    log.write_text(text)
    found = scan([open_log(str(log))], Wanted(480, part=50_000, cores=cores))
    assert numbers(found) == reprefill(text)
    assert bool(found.tally.disordered) is shuffled


@pytest.mark.parametrize("piped", [True, False])
def test_standard_input_on_several_cores(tmp_path, piped: bool) -> None:
    text = made(5, 3000)
    (tmp_path / "log").write_text(text)
    code = (
        "from pdctl.analyze.lines import open_log\n"
        "from pdctl.analyze.scan import Wanted, scan\n"
        "print(scan([open_log('-')], Wanted(480, part=9000, cores=2)).tally.sums.repeated)"
    )
    with (tmp_path / "log").open("rb") as file:
        given = {"input": text.encode()} if piped else {"stdin": file}
        argv = [sys.executable, "-c", code]
        done = subprocess.run(argv, capture_output=True, timeout=60, **given)
    found = scan([open_log(str(tmp_path / "log"))], Wanted(480, cores=1))
    assert done.stdout.decode().strip() == str(found.tally.sums.repeated), done.stderr


def test_what_is_out_of_order_can_be_sorted_piece_by_piece(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("pdctl.analyze.scan._AT_ONCE", 100)
    text = made(2, 3000, shuffled=True)
    (tmp_path / "log").write_text(text)
    found = scan([open_log(str(tmp_path / "log"))], Wanted(480, part=9000, cores=1))
    assert numbers(found) == reprefill(text)


@pytest.mark.parametrize("packing", ["plain", "gzip", "zstd"])
def test_several_files_in_the_wrong_order(tmp_path: Path, packing: str) -> None:
    text = made(3, 4000)
    lines = text.splitlines(keepends=True)
    pieces = ["".join(lines[:1500]), "".join(lines[1500:])]
    paths = []
    for number, piece in enumerate(reversed(pieces)):
        path = tmp_path / f"log.{number}"
        path.write_bytes(packed(piece.encode(), packing))
        paths.append(str(path))
    found = scan([open_log(path) for path in paths], Wanted(480, cores=1))
    assert numbers(found) == reprefill(text)
    assert not found.tally.disordered, "files are read in the order of their times"


def packed(data: bytes, packing: str) -> bytes:
    if packing == "gzip":
        return gzip.compress(data)
    if packing == "zstd":
        zstd = pytest.importorskip("backports.zstd")
        return bytes(zstd.compress(data))
    return data


def test_gaps_are_counted_by_whole_seconds_rounded_up(tmp_path) -> None:
    text = "".join(
        json.dumps({"conversation_id": "c", "ts": ts, "prompt_tokens": 1}) + "\n"
        for ts in (0, 480, 960.5, 960.5)
    )
    (tmp_path / "log").write_text(text)
    found = scan([open_log(str(tmp_path / "log"))], Wanted(480, cores=1))
    assert gaps_of(steps_of(found.tally.sample.kept)) == {480: 1, 481: 1, 0: 1}
    assert found.tally.sums.late == 1


def test_a_sample_keeps_whole_conversations(tmp_path) -> None:
    text = made(4, 4000)
    (tmp_path / "log").write_text(text)
    whole = scan([open_log(str(tmp_path / "log"))], Wanted(480, cores=1)).tally.sample
    part = scan(
        [open_log(str(tmp_path / "log"))], Wanted(480, sample=700, part=30_000, cores=1)
    ).tally.sample
    assert whole.rate == 1
    assert whole.rows == 4000
    assert part.rate > 1
    assert 0 < part.rows <= 700
    assert all(whole.kept[id].tobytes() == rows.tobytes() for id, rows in part.kept.items())


def test_tenants_share_no_conversation(tmp_path) -> None:
    rows = [
        {"conversation_id": "c", "ts": n, "prompt_tokens": 5, "tenant": tenant}
        for n, tenant in enumerate(["a", "b", "a", ""])
    ]
    (tmp_path / "log").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tally = scan([open_log(str(tmp_path / "log"))], Wanted(480, cores=1)).tally
    assert (tally.sums.follow_ups, len(tally.last)) == (1, 3)


def test_answers_make_the_share_exact(tmp_path) -> None:
    rows = [
        {
            "conversation_id": "c",
            "ts": 0,
            "prompt_tokens": 100,
            "output_tokens": 50,
            "total_ms": 9e3,
        },
        {"conversation_id": "c", "ts": 10, "prompt_tokens": 200, "completion_tokens": 10},
        {"conversation_id": "c", "ts": 20, "prompt_tokens": 205, "reused_tokens": 205},
        {"conversation_id": "-", "ts": 20, "prompt_tokens": 205},
        {"conversation_id": "c", "ts": 21, "prompt_tokens": None},
    ]
    (tmp_path / "log").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = scan([open_log(str(tmp_path / "log"))], Wanted(480, cores=1))
    sums = found.tally.sums
    assert (sums.answered, sums.answered_prompt, sums.answered_repeated) == (2, 405, 150 + 205)
    assert (sums.counted, sums.reused, sums.hits) == (1, 205, 1)
    assert gaps_of(steps_of(found.tally.sample.kept)) == {1: 1, 10: 1}
    (reading,) = found.readings.values()
    assert reading.bad == 0
    assert sum(reading.left_out.values()) == 2
