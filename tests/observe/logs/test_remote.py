"""Logs of other machines; the machine is this one, by the interface that all have."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pdctl.base.errors import UnreachableError
from pdctl.observe.logs import remote
from pdctl.observe.logs.remote import brought_here, followed
from pdctl.state.model import ProcessRecord
from pdctl.targets.local import LocalHost

FAKE = """#!/usr/bin/env python3
import json, os, sys
words = sys.argv[1:]
lines = open(os.environ["JOURNAL"]).read().splitlines()
if "--after-cursor" in words:
    cursor = words[words.index("--after-cursor") + 1]
    lines = lines[int(cursor) + 1 :]
if "--since" in words:
    since = int(words[words.index("--since") + 1][1:])
    lines = [l for l in lines if int(json.loads(l)["__REALTIME_TIMESTAMP"]) >= since * 10**6]
print("\\n".join(lines)) if lines else None
"""


class Flaky(LocalHost):
    """Does not answer while there is a file `lost`."""

    def __init__(self, folder: Path) -> None:
        super().__init__("far")
        self.lost = folder / "lost"

    def run(self, *args: object, **options: object) -> object:  # type: ignore[override]
        if self.lost.exists():
            raise UnreachableError("it does not answer", where="far")
        return super().run(*args, **options)  # type: ignore[arg-type]


@pytest.fixture
def host(tmp_path: Path) -> Flaky:
    return Flaky(tmp_path)


def record(log: str, name: str = "decode-0", host: str = "far") -> ProcessRecord:
    return ProcessRecord(
        name, "decode", 0, host, "127.0.0.1", 8200, None, "/health", (), {}, None, log
    )


def text_of(path: str) -> str:
    return Path(path).read_text()


def soon(so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_whole_logs_are_brought_here_and_gone_afterwards(tmp_path: Path, host: Flaky) -> None:
    log = tmp_path / "decode-0.log"
    log.write_text("\n".join(f"line {n} ä" for n in range(50_000)) + "\n")
    with brought_here({"far": host}, [record(str(log))]) as (source,):
        assert text_of(source.paths[0]) == log.read_text()
        assert (source.role, source.problems) == ("decode", [])
    assert not os.path.exists(source.paths[0])


def test_of_a_huge_log_the_end_comes_and_that_is_said(
    tmp_path: Path, host: Flaky, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "MOST_BYTES", 10)
    log = tmp_path / "decode-0.log"
    log.write_text("a" * 100 + "0123456789")
    with brought_here({"far": host}, [record(str(log))]) as (source,):
        assert text_of(source.paths[0]) == "0123456789"
        assert source.problems == [f"far: only the last 10 bytes of {log} were read"]


def test_a_host_that_does_not_answer_costs_its_own_logs_only(tmp_path: Path, host: Flaky) -> None:
    host.lost.touch()
    log = tmp_path / "here.log"
    log.write_text("x\n")
    hosts = {"far": host, "near": LocalHost("near")}
    far, near = record("/l/far.log"), record(str(log), "decode-1", "near")
    with brought_here(hosts, [far, near]) as (lost, found):
        assert text_of(found.paths[0]) == "x\n"
        assert lost.problems == ["decode-0 on far: it does not answer"]
    with pytest.raises(UnreachableError), brought_here(hosts, [far]):
        pass


def test_followed_through_a_new_file_and_a_lost_host(tmp_path: Path, host: Flaky) -> None:
    log, said = tmp_path / "decode-0.log", list[str]()
    log.write_text("old and too long\nold\n")
    with followed({"far": host}, [record(str(log))], said.append, before=4, period=0.01) as (
        source,
    ):
        here = Path(source.paths[0])
        assert here.read_text() == "old\n"
        with log.open("a") as file:
            file.write("one\n")
        soon(lambda: here.read_text() == "old\none\n")
        host.lost.touch()
        soon(lambda: bool(said))
        with log.open("a") as file:
            file.write("two\n")
        host.lost.unlink()
        soon(lambda: here.read_text() == "old\none\ntwo\n")
        log.write_text("3\n")
        soon(lambda: here.read_text() == "old\none\ntwo\n3\n")
    assert said == [
        "decode-0 on far is lost: it does not answer; its log is asked for again and again",
        "decode-0 on far is back, and its log is read on",
    ]


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal for the stand-in that is the first `journalctl` on the path."""
    program, lines = tmp_path / "bin" / "journalctl", tmp_path / "journal"
    program.parent.mkdir()
    program.write_text(FAKE)
    program.chmod(0o755)
    lines.write_text("")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("JOURNAL", str(lines))
    monkeypatch.setattr(remote, "root_words", lambda host: ("env", f"JOURNAL={lines}"))
    return lines


def say(journal: Path, number: int, text: str) -> None:
    line = {"__CURSOR": str(number), "__REALTIME_TIMESTAMP": str(number * 10**6), "MESSAGE": text}
    with journal.open("a") as file:
        file.write(json.dumps(line) + "\n")


def messages(path: Path) -> list[str]:
    return [json.loads(line)["MESSAGE"] for line in path.read_text().splitlines()]


def test_a_units_journal_from_then_on_and_live(journal: Path, host: Flaky) -> None:
    for number in range(5):
        say(journal, number, f"line {number}")
    unit = record("journal:pdctl-demo-decode-0.service")
    with brought_here({"far": host}, [unit], since=3.0) as (source,):
        assert messages(Path(source.paths[0])) == ["line 3", "line 4"]
    with followed({"far": host}, [unit], print, before=120, period=0.01) as (source,):
        here = Path(source.paths[0])
        assert messages(here) == ["line 4"]  # the one before it was cut off
        say(journal, 5, "live")
        soon(lambda: messages(here) == ["line 4", "live"])
