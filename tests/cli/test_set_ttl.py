"""`pdctl set-ttl` before there is an engine to change; tests/e2e has the rest."""

import errno
import os
from pathlib import Path

import pytest

from pdctl.base.errors import PdctlError, PermissionDeniedError, UsageError
from pdctl.base.exits import ExitCode
from pdctl.cli.set_ttl import _edited, _write, intervals_of
from pdctl.config.model import Config
from pdctl.render.check import load_checked
from pdctl.state.model import Intervals
from tests.cli.helpers import run_cli


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "pd.yaml"
    run_cli("init", "--template", "local-cpu", "-f", str(file))
    return file


@pytest.mark.parametrize("seconds", ["soon", "-5", "1:30", "8.9", "0"])
def test_what_is_no_ttl_is_refused(file: Path, seconds: str) -> None:
    result = run_cli("set-ttl", "-f", str(file), "--", seconds)
    assert result.exit_code == ExitCode.USAGE
    assert "TTL" in result.stderr or "ttl" in result.stderr


def test_nothing_runs(file: Path) -> None:
    before = file.read_text()
    for more in ((), ("--write",), ("--restart",), ("--dry-run",)):
        result = run_cli("set-ttl", "60", "-f", str(file), *more)
        assert result.exit_code == ExitCode.UNREACHABLE
        assert "nothing of `local-cpu` runs" in result.stderr
    assert file.read_text() == before


def test_the_routers_ttl_follows_unless_the_file_wants_a_shorter_one() -> None:
    def config(**router: object) -> Config:
        return Config.model_validate(
            {"name": "x", "model": {"id": "m"}, "target": {"kind": "local"}, "router": router}
        )

    assert intervals_of(config(), "10m") == Intervals(600, 592)
    assert intervals_of(config(ttl=60), "10m") == Intervals(600, 60)
    assert intervals_of(config(ttl=60), "30") == Intervals(30, 22)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_file_is_replaced_whole_and_keeps_its_line_ends(file: Path, end: str) -> None:
    config = load_checked(file).config
    before = file.read_text().replace("\n", end).encode()
    file.write_bytes(before)
    link = file.with_name("link.yaml")
    link.symlink_to(file)
    names = set(file.parent.iterdir())
    _write(link, config, Intervals(1234567.0, 1234000.0))
    assert link.is_symlink()
    assert load_checked(file).config.kv.decoder_ttl == 1234567
    after = file.read_bytes()
    assert after.count(b"\r") == (after.count(b"\n") if end == "\r\n" else 0)
    assert set(file.parent.iterdir()) == names


def test_a_file_that_cannot_be_written_is_told_before_anything_changes(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_checked(file).config
    with pytest.raises(UsageError, match="standard input"):
        _edited(Path("-"), config, Intervals(60, 30))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionDeniedError, match="cannot be written"):
        _edited(file, config, Intervals(60, 30))


def test_a_full_disk_leaves_the_file_as_it_was(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, before = load_checked(file).config, file.read_text()

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(PdctlError, match="No space left"):
        _write(file, config, Intervals(60, 30))
    assert file.read_text() == before
    assert [each.name for each in file.parent.iterdir() if each.name.startswith(".pd")] == []
