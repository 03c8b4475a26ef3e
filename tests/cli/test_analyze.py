import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pdctl.base.exits import ExitCode
from tests.cli.helpers import run_cli


def row(id: str, ts: float, tokens: int, **more: object) -> str:
    return json.dumps({"conversation_id": id, "ts": ts, "prompt_tokens": tokens} | more) + "\n"


LOG = row("a", 0, 100) + row("b", 5, 10) + row("a", 20, 300) + row("a", 600, 200) + row("b", 9, 40)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "requests.jsonl"
    path.write_text(LOG)
    return path


def test_the_three_numbers_come_first(log: Path) -> None:
    told = run_cli("analyze", str(log), "--json").json
    assert list(told)[:3] == ["follow_up_turns", "repeated_share", "late_share"]
    assert told["follow_up_turns"] == 3
    assert told["repeated_share"] == (100 + 200 + 10) / (300 + 200 + 40)
    assert told["late_share"] == 1 / 3


def test_text_begins_as_the_seeds_script_does(log: Path) -> None:
    lines = run_cli("analyze", str(log)).stdout.splitlines()
    assert lines[:3] == [
        "follow-up turns:            3",
        "repeated prompt share (>=): 57.4%",
        "turns after the TTL:        33.3%",
    ]
    assert max(map(len, lines)) <= 80


def test_the_ttl_is_a_duration(log: Path) -> None:
    assert run_cli("analyze", str(log), "--json", "--ttl", "10m").json["late_share"] == 0
    refused = run_cli("analyze", str(log), "--ttl", "1:30")
    assert refused.exit_code == ExitCode.USAGE
    assert "where: --ttl" in refused.stderr


def test_bad_lines_are_shown_and_not_fatal(log: Path) -> None:
    log.write_text(LOG + "nonsense\n" * 7 + '{"ts": 1}\n')
    result = run_cli("analyze", str(log), "--json")
    assert result.exit_code == ExitCode.OK
    assert result.json["follow_up_turns"] == 3
    assert f"{log}: 8 lines of 13 cannot be read and are left out" in result.stderr
    assert f"{log}:6: it is no JSON: nonsense" in result.stderr
    assert "… and 3 more" in result.stderr


def test_bad_lines_are_fatal_when_asked_for(log: Path) -> None:
    log.write_text(LOG + "nonsense\n")
    result = run_cli("analyze", str(log), "--strict")
    assert result.exit_code == ExitCode.BAD_ANSWER
    assert result.stdout == ""
    assert "it is no JSON: nonsense" in result.stderr
    assert run_cli("analyze", str(log), "--strict", "--json").json["exit_code"] == 1


def test_what_is_not_there(tmp_path: Path) -> None:
    result = run_cli("analyze", str(tmp_path / "none.jsonl"))
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "cannot read the request log: No such file" in result.stderr
    assert run_cli("analyze", str(tmp_path)).exit_code == ExitCode.NOT_FOUND
    assert run_cli("analyze").exit_code == ExitCode.USAGE
    (tmp_path / "x").write_text("")
    assert run_cli("analyze", str(tmp_path / "x"), str(tmp_path / "x")).exit_code == 2


def test_a_broken_archive_is_an_error_and_no_bug(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(LOG.encode() * 500)[:-20])
    result = run_cli("analyze", str(path))
    assert result.exit_code == ExitCode.BAD_ANSWER
    assert f"where: {path}" in result.stderr


def test_an_empty_log_has_no_shares(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    told = run_cli("analyze", str(tmp_path / "x"), "--json").json
    assert (told["follow_up_turns"], told["repeated_share"], told["late_share"]) == (0, None, None)
    assert run_cli("analyze", str(tmp_path / "x")).exit_code == ExitCode.OK


@pytest.mark.parametrize("piped", [True, False])
def test_standard_input(log: Path, piped: bool) -> None:
    argv = [sys.executable, "-m", "pdctl", "analyze", "-", "--json"]
    if piped:
        done = subprocess.run(argv, input=LOG.encode(), capture_output=True, timeout=60)
    else:
        with log.open("rb") as file:
            done = subprocess.run(argv, stdin=file, capture_output=True, timeout=60)
    assert json.loads(done.stdout)["follow_up_turns"] == 3, done.stderr


def test_a_reader_of_standard_input_without_a_file(monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(LOG.encode()))))
    assert run_cli("analyze", "-", "--json").json["follow_up_turns"] == 3


@pytest.fixture
def busy(tmp_path: Path) -> Path:
    """Forty conversations of twelve turns, ten seconds apart, 4000 tokens more each."""
    rows = [
        row(f"c{c}", turn * 10 + c / 8, 4000 * (turn + 1), output_tokens=200, total_ms=2000)
        for turn in range(12)
        for c in range(40)
    ]
    path = tmp_path / "busy.jsonl"
    path.write_text("".join(rows))
    return path


def test_a_log_that_is_worth_it(busy: Path) -> None:
    told = run_cli("analyze", str(busy), "--json", "--capacity", "5000000").json
    assert told["gaps"]["from"] == "end"
    assert told["gaps"]["percentiles_s"]["p50"] == 8
    assert told["exact_share"] > told["repeated_share"]
    assert told["recommended_ttl_s"] == 30
    assert told["simulated"]["hit_share"] == 1
    assert told["simulated"]["pinned_tokens_peak"] > 1_000_000
    assert told["verdict"]["decision"] == "do"
    text = run_cli(
        "analyze", str(busy), "--capacity", "5000000", "--model", "Qwen/Qwen3-32B"
    ).stdout
    assert "30s <-" in text
    assert "GiB" in text
    assert "Do it: a TTL of 30s" in text
    assert max(map(len, text.splitlines())) <= 80


def test_without_room_blocks_must_go(busy: Path) -> None:
    told = run_cli("analyze", str(busy), "--json", "--capacity", "300000").json
    assert told["recommended_ttl_s"] is None
    assert told["simulated"]["evicted_share"] > 0.3
    assert told["verdict"]["decision"] == "measure first"
    assert "more than decode has room for" in told["verdict"]["text"]


def test_room_as_the_engine_says_it(busy: Path, tmp_path: Path) -> None:
    log = Path(__file__).parents[1] / "data/logs/decode.log"
    two = ["--engine-log", str(log), "--engine-log", str(log)]
    assert run_cli("analyze", str(busy), "--json", *two).json["capacity_tokens"] == 2 * 262_144
    assert run_cli("analyze", str(busy), *two, "--capacity", "5").exit_code == ExitCode.USAGE
    silent = tmp_path / "silent.log"
    silent.write_text("nothing")
    refused = run_cli("analyze", str(busy), "--engine-log", str(silent))
    assert refused.exit_code == ExitCode.NOT_FOUND
    assert "KV cache size: N tokens" in refused.stderr


def test_a_model_that_nobody_knows(busy: Path) -> None:
    refused = run_cli("analyze", str(busy), "--model", "nobody/none")
    assert refused.exit_code == ExitCode.NOT_FOUND
    assert "Qwen/Qwen3-32B" in refused.stderr


def test_a_sample_is_said_to_be_one(busy: Path) -> None:
    text = run_cli("analyze", str(busy), "--replay", "100").stdout
    assert "scaled up" in text


def test_the_report_does_not_replace_a_log(log: Path) -> None:
    result = run_cli("analyze", str(log), "--out", str(log))
    assert result.exit_code == ExitCode.USAGE
    assert "would replace the log" in result.stderr
    assert log.read_text() == LOG


def test_a_log_under_two_names_is_counted_once(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "link.jsonl"
    other.symlink_to(log)
    result = run_cli("analyze", str(log), str(other))
    assert result.exit_code == ExitCode.USAGE
    assert "named twice" in result.stderr


def test_lines_that_nest_too_deep_or_never_end_are_bad_lines(tmp_path: Path) -> None:
    log = tmp_path / "odd.jsonl"
    long = '{"conversation_id": "' + "x" * 30_000_000 + '"}\n'
    log.write_text("[" * 100_000 + "\n" + '{"a":' * 100_000 + "\n" + LOG + long)
    result = run_cli("analyze", str(log))
    assert result.exit_code == ExitCode.OK
    assert "3 lines of 8 cannot be read" in result.stderr


def test_a_reader_who_leaves_is_no_bad_answer(log: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as gone:
        done = subprocess.run(
            [sys.executable, "-m", "pdctl", "analyze", str(log)],
            stdout=gone,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == ExitCode.BROKEN_PIPE
    assert done.stderr == b""
