from pathlib import Path

import pytest

from pdctl.base.exits import ExitCode
from pdctl.base.paths import STATE_DIR_ENV, deployment_dir, log_dir
from tests.cli.deployed import NAME, Deployed
from tests.cli.helpers import run_cli


def test_down_ends_all_and_the_second_has_nothing_to_remove(deployed: Deployed) -> None:
    run_cli(*deployed.args("up", "--no-verify"))
    first = run_cli(*deployed.args("down"))
    assert first.exit_code == 0
    assert deployed.running() == []
    assert "`demo` is down: 3 processes ended, nothing is left" in first.stderr
    assert f"logs are in {log_dir(NAME)}" in first.stderr
    second = run_cli(*deployed.args("down"))
    assert (second.exit_code, second.stdout) == (0, "")
    assert "nothing to remove: nothing of `demo` runs" in second.stderr


def test_a_dry_run_shows_what_would_end_and_ends_nothing(deployed: Deployed) -> None:
    run_cli(*deployed.args("up", "--no-verify"))
    pids = deployed.pids()
    shown = run_cli(*deployed.args("down", "--dry-run"))
    assert shown.exit_code == 0, shown.stderr
    for name, pid in pids.items():
        assert f"- end {name} (pid {pid} on localhost)" in shown.stdout
    assert "nothing was changed (`--dry-run`)" in shown.stderr
    told = run_cli("down", "--name", NAME, "--dry-run", "--json").json
    assert {each["name"]: each["pid"] for each in told["would_end"]} == pids
    assert told["would_release"] == []
    refused = run_cli(*deployed.args("down", "--dry-run", "--forget-damaged-state"))
    assert refused.exit_code == ExitCode.USAGE
    assert deployed.pids() == pids
    assert len(deployed.running()) == 3
    run_cli(*deployed.args("down"))
    nothing = run_cli(*deployed.args("down", "--dry-run"))
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "nothing to remove" in nothing.stderr


def test_down_of_what_never_was_makes_nothing(deployed: Deployed) -> None:
    assert run_cli(*deployed.args("down")).exit_code == 0
    assert not deployment_dir(NAME).exists()


def test_down_needs_no_file(deployed: Deployed) -> None:
    run_cli(*deployed.args("up", "--no-verify"))
    deployed.file.write_text("name: [broken")
    broken = run_cli(*deployed.args("down"))
    assert broken.exit_code == ExitCode.CONFIG
    assert "`pdctl down --name NAME` needs no file" in broken.stderr
    assert len(deployed.running()) == 3
    assert run_cli("down", "--name", NAME).exit_code == 0
    assert deployed.running() == []


@pytest.mark.parametrize("name", ["../etc", "a/b", "", "UP"])
def test_a_name_that_could_be_a_path_is_refused(deployed: Deployed, name: str) -> None:
    result = run_cli("down", "--name", name)
    assert result.exit_code == ExitCode.USAGE


def test_json_lists_what_was_ended(deployed: Deployed) -> None:
    run_cli(*deployed.args("up", "--no-verify"))
    pids = deployed.pids()
    value = run_cli(*deployed.args("down", "--json")).json
    assert {each["name"]: each["pid"] for each in value["ended"]} == pids
    assert value["logs"] == str(log_dir(NAME))
    assert run_cli(*deployed.args("down", "--json")).json == {
        "name": NAME,
        "ended": [],
        "leftovers": [],
        "removed": [],
        "logs": None,
    }


def test_a_damaged_state_can_be_forgotten_on_request(deployed: Deployed) -> None:
    run_cli(*deployed.args("up", "--no-verify"))
    (deployment_dir(NAME) / "state.json").write_text("{")
    result = run_cli("down", "--name", NAME, "--forget-damaged-state")
    assert result.exit_code == 0, result.stderr
    assert deployed.running() == []
    (kept,) = deployment_dir(NAME).glob("state.json.damaged-*")
    assert kept.read_text() == "{"
    assert str(kept) in result.stderr.replace("\n", "")


@pytest.mark.parametrize("kind", ["too long", "loop", "a file", "with space é"])
def test_odd_state_folders_are_no_bugs(
    deployed: Deployed, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("x" * 300 if kind == "too long" else kind)
    if kind == "loop":
        folder.symlink_to(folder)
    if kind == "a file":
        folder.write_text("")
    monkeypatch.setenv(STATE_DIR_ENV, str(folder))
    for command in ("status", "down", "up"):
        result = run_cli(*deployed.args(command, *(["--yes"] if command != "status" else [])))
        assert result.exit_code != ExitCode.BUG, result.stderr
        assert "Traceback" not in result.stderr
        if command == "up" and kind != "with space é":
            assert "the state cannot be kept" in result.stderr
    assert run_cli(*deployed.args("down", "--yes")).exit_code == 0
