"""`pdctl restart`: what was named, and nothing else."""

from pdctl.base.exits import ExitCode
from tests.cli.deployed import Deployed
from tests.cli.helpers import run_cli


def test_one_process_is_restarted_when_that_is_agreed_to(deployed: Deployed) -> None:
    run_cli(*deployed.args("up", "--no-verify"))
    before = deployed.pids()
    asked = run_cli(*deployed.args("restart", "decode/0"))
    assert asked.exit_code == ExitCode.USAGE
    assert "this replaces decode-0 (a restart of pid" in asked.stderr
    shown = run_cli(*deployed.args("restart", "decode/0", "--dry-run"))
    assert "+ end decode-0: a restart of pid" in shown.stdout
    assert deployed.pids() == before

    done = run_cli(*deployed.args("restart", "decode/0", "--yes", "--no-verify"))
    assert done.exit_code == 0, done.stderr
    after = deployed.pids()
    assert {name for name in after if after[name] != before[name]} == {"decode-0"}


def test_a_changed_file_is_for_up(deployed: Deployed) -> None:
    run_cli(*deployed.args("up", "--no-verify"))
    deployed.write(decode={"EXTRA": "1"})
    result = run_cli(*deployed.args("restart", "prefill", "--yes"))
    assert result.exit_code == ExitCode.USAGE
    assert "the file has changed since these were started" in result.stderr
    assert "EXTRA: not given → 1" in result.stderr
    assert "`pdctl up` applies it" in result.stderr


def test_names_that_are_none(deployed: Deployed) -> None:
    result = run_cli(*deployed.args("restart", "decode"))
    assert result.exit_code == ExitCode.UNREACHABLE
    run_cli(*deployed.args("up", "--no-verify"))
    result = run_cli(*deployed.args("restart", "decode/7"))
    assert result.exit_code == ExitCode.USAGE
    assert "`demo` has no `decode/7`" in result.stderr
