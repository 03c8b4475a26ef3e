"""`pdctl set-ttl` before there is an engine to change; tests/e2e has the rest."""

from pathlib import Path

import pytest

from pdctl.base.exits import ExitCode
from pdctl.cli.set_ttl import intervals_of
from pdctl.config.model import Config
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
