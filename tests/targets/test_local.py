"""What only this machine, reached directly, can show; the rest is in test_hosts."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from pdctl.base.command import command
from pdctl.base.errors import PermissionDeniedError, TemporaryError
from pdctl.targets.local import LocalHost


@pytest.fixture
def host() -> Iterator[LocalHost]:
    local = LocalHost()
    yield local
    local.close()


def test_the_environment_is_the_allow_list_and_the_commands_own(
    host: LocalHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_SOMETHING", "stray")
    monkeypatch.setenv("PYTHONPATH", "/stray")
    monkeypatch.setenv("PIP_INDEX_URL", "for installers")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    installers = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    result = host.run(command("env", "-0", env={"OWN": "1"}), timeout=20)
    assert dict(line.split("=", 1) for line in result.stdout.split("\0")[:-1]) == {
        **host.inherited_env(),
        **installers,
        "OWN": "1",
    }
    assert "PIP_INDEX_URL" not in host.inherited_env()
    assert "PATH" in host.inherited_env()


def test_write_file_replaces_whole_and_keeps_the_old_on_failure(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = PurePosixPath(tmp_path / "a" / "b" / "file")
    host.write_file(path, b"one", mode=0o600)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pdctl.targets.local.os.fsync", full)
    with pytest.raises(TemporaryError, match="no space left for"):
        host.write_file(path, b"two")
    assert host.read_file(path) == b"one"
    assert os.listdir(tmp_path / "a" / "b") == ["file"]


def test_a_file_that_may_not_be_read_is_no_permission(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object, mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(PermissionDeniedError, match=r"no permission for `.*secret`"):
        host.read_file(PurePosixPath(tmp_path / "secret"))
