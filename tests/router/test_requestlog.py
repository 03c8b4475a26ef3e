"""The request log: no line lost, none cut, whoever moves the file."""

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pdctl.base.errors import NotFoundError
from pdctl.base.requestlog import RequestRecord
from pdctl.router.requestlog import RequestLog


def record(conversation: str) -> RequestRecord:
    return RequestRecord(
        conversation_id=conversation,
        ts=1.5,
        prompt_tokens=12,
        output_tokens=None,
        reused_tokens=8,
        outcome="HIT",
        reason="continued",
        ttft_ms=3.25,
        status=200,
        total_ms=40.0,
        prefill_ms=2.0,
        tenant="acme",
        decode="http://d:8200",
    )


SIZE = len(json.dumps(record("c0").__dict__, separators=(",", ":"))) + 1


def names(path: Path) -> list[str]:
    return [json.loads(line)["conversation_id"] for line in path.read_text().splitlines()]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "requests.jsonl"


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_line_is_the_record_and_nobody_else_may_read_it(path: Path, umask: None) -> None:
    log = RequestLog(path)
    log.write(record("c0"))
    log.close()
    assert path.read_text() == (
        '{"conversation_id":"c0","ts":1.5,"prompt_tokens":12,"output_tokens":null,'
        '"reused_tokens":8,"outcome":"HIT","reason":"continued","ttft_ms":3.25,"status":200,'
        '"total_ms":40.0,"prefill_ms":2.0,"tenant":"acme","decode":"http://d:8200"}\n'
    )
    assert mode(path) == 0o600


def test_a_full_file_is_put_aside_and_the_oldest_goes(path: Path) -> None:
    log = RequestLog(path, max_bytes=2 * SIZE, keep=2)
    for number in range(9):
        log.write(record(f"c{number}"))
    log.close()
    kept = {file.name: names(file) for file in path.parent.iterdir()}
    assert kept == {
        "requests.jsonl": ["c8"],
        "requests.jsonl.1": ["c6", "c7"],
        "requests.jsonl.2": ["c4", "c5"],
    }


def test_the_size_counts_what_an_earlier_router_wrote(path: Path) -> None:
    for number in range(3):
        log = RequestLog(path, max_bytes=2 * SIZE)
        log.write(record(f"c{number}"))
        log.close()
    assert names(path.with_name("requests.jsonl.1")) == ["c0", "c1"]
    assert names(path) == ["c2"]


def test_the_mode_that_the_user_chose_stays(path: Path, umask: None) -> None:
    path.parent.mkdir()
    path.touch()
    path.chmod(0o660)
    log = RequestLog(path, max_bytes=SIZE)
    log.write(record("c0"))
    assert mode(path) == mode(path.with_name("requests.jsonl.1")) == 0o660
    log.close()


def test_routers_that_share_a_file_lose_nothing(path: Path) -> None:
    logs = [RequestLog(path, max_bytes=3 * SIZE, keep=50) for _ in range(3)]
    written = []
    for number in range(60):
        # Unequal shares, so that each in turn finds the file moved by another.
        written.append(f"{number:02}")
        logs[number % 7 % 3].write(record(written[-1]))
    for log in logs:
        log.close()
    kept = {file: names(file) for file in path.parent.iterdir()}
    assert sorted(name for found in kept.values() for name in found) == written
    # None was put aside by one that found it already new.
    assert all(len(found) >= 3 for file, found in kept.items() if file != path)


def test_after_logrotate_lines_go_to_the_new_file(path: Path) -> None:
    log = RequestLog(path)
    log.write(record("c0"))
    moved = path.rename(path.with_name("old"))
    log.write(record("c1"))
    log.reopen()
    log.write(record("c2"))
    log.close()
    assert (names(moved), names(path)) == (["c0", "c1"], ["c2"])


def test_what_cannot_be_reopened_goes_on_in_the_old_file(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = RequestLog(path)
    moved = path.rename(path.with_name("old"))
    path.mkdir()
    log.reopen()
    log.write(record("c0"))
    log.close()
    assert names(moved) == ["c0"]
    assert "is not reopened: Is a directory" in caplog.text


def test_what_cannot_be_put_aside_grows_on_and_says_so_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = RequestLog(path, max_bytes=SIZE, keep=1)
    # A folder that is not empty stands where the file should go.
    path.with_name("requests.jsonl.1").mkdir()
    (path.parent / "requests.jsonl.1" / "x").touch()
    for number in range(3):
        log.write(record(f"c{number}"))
    log.close()
    assert names(path) == ["c0", "c1", "c2"]
    assert [r.getMessage().partition(": ")[0] for r in caplog.records] == [
        f"the request log {path} grows on"
    ]


def test_a_line_that_a_crash_cut_spoils_no_other(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"conversation_id":"cut')
    log = RequestLog(path)
    log.write(record("c0"))
    log.close()
    cut, whole = path.read_text().splitlines()
    assert (cut, json.loads(whole)["conversation_id"]) == ('{"conversation_id":"cut', "c0")


def test_a_disk_that_fills_up_costs_whole_lines_and_is_said_once(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = SIZE + 30
    write = os.write

    def scarce(fd: int, data: bytes) -> int:
        left = room - os.fstat(fd).st_size
        if left <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[:left])

    log = RequestLog(path)
    monkeypatch.setattr(os, "write", scarce)
    for number in range(4):
        log.write(record(f"c{number}"))
    assert names(path) == ["c0"]
    room = 100 * SIZE
    log.write(record("c4"))
    log.close()
    assert names(path) == ["c0", "c4"]
    assert [r.getMessage() for r in caplog.records] == [
        f"the request log {path} loses lines: No space left on device",
        f"the request log {path} goes on; 3 lines are lost",
    ]


def test_a_device_is_written_to_and_never_moved(tmp_path: Path) -> None:
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    log = RequestLog(link, max_bytes=1)
    log.write(record("c0"))
    log.close()
    assert [file.name for file in tmp_path.iterdir()] == ["null"]


def test_without_a_file_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = RequestLog(None)
    log.write(record("c0"))
    log.reopen()
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_opened_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="cannot be opened: Is a directory"):
        RequestLog(tmp_path)


def test_sighup_reopens_the_file_of_a_running_router(path: Path, tmp_path: Path) -> None:
    said = tmp_path / "said"
    command = [sys.executable, "-m", "pdctl", "router", "--port", "0"]
    command += ["--prefill", "http://127.0.0.1:9", "--decode", "http://127.0.0.1:19"]
    command += ["--request-log", str(path)]
    with (
        said.open("w") as errors,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=errors) as router,
    ):
        try:
            until(lambda: "listens on" in said.read_text())
            path.unlink()
            router.send_signal(signal.SIGHUP)
            until(path.exists)
            router.terminate()
            assert router.wait(10) == 0
        finally:
            router.kill()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
