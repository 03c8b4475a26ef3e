"""What each process tells the outside."""

import json
import os
import sys
from pathlib import Path

import pytest

from pdctl.plugin import _status
from pdctl.plugin._guard import Outcome

LEVERS = {"live_ttl": Outcome("applied", "follows a file")}


def test_written_in_one_step(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    _status.write(str(folder), LEVERS)
    _status.write(str(folder), {**LEVERS, "quiet_progress": Outcome("off", "µs unset")})
    (file,) = folder.iterdir()
    assert file.name == f"plugin-{os.getpid()}.json"
    assert json.loads(file.read_text()) == {
        "pid": os.getpid(),
        "levers": {
            "live_ttl": {"state": "applied", "why": "follows a file"},
            "quiet_progress": {"state": "off", "why": "µs unset"},
        },
    }
    assert file.stat().st_mode & 0o777 == 0o644


def test_failure_is_only_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    _status.write(str(tmp_path / "file" / "below"), LEVERS)
    assert "pdctl plugin: cannot write the status file" in caplog.text


def test_nothing_half_written_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", refuse)
    _status.write(str(tmp_path), LEVERS)
    assert list(tmp_path.iterdir()) == []


def test_removed_at_the_end(tmp_path: Path) -> None:
    _status.write(str(tmp_path), LEVERS)
    _status.remove(str(tmp_path))
    _status.remove(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_nothing_is_written() -> None:
    _status.reporter("")(LEVERS)


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_forked_process_has_its_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks: list[object] = []
    monkeypatch.setattr(os, "register_at_fork", lambda after_in_child: hooks.append(after_in_child))
    report = _status.reporter(str(tmp_path))
    report(LEVERS)
    monkeypatch.setattr(os, "getpid", lambda: 4242)
    (hook,) = hooks
    assert callable(hook)
    hook()
    child = json.loads((tmp_path / "plugin-4242.json").read_text())
    assert child["pid"] == 4242
    assert child["levers"]["live_ttl"]["state"] == "applied"
