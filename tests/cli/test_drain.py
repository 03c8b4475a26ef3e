"""`pdctl drain` and `undrain` on a real router; the engines are tiny servers."""

import json
from pathlib import Path

import pytest

from pdctl.base.exits import ExitCode
from tests.cli.deployed import Deployed
from tests.cli.helpers import run_cli


@pytest.fixture
def routed(deployed: Deployed) -> Deployed:
    """A deployment with pdctl's own router, which runs."""
    deployed.write(router={"port": 0})
    assert run_cli(*deployed.args("up", "--no-verify")).exit_code == 0
    return deployed


def told(deployed: Deployed, command: str, *more: str) -> dict[str, object]:
    result = run_cli(*deployed.args(command, *more, "--json"))
    assert result.exit_code == 0, result.stderr
    value: dict[str, object] = json.loads(result.stdout)
    return value


def test_drained_and_undrained_again(routed: Deployed) -> None:
    refused = run_cli(*routed.args("drain", "decode/0"))
    assert refused.exit_code == ExitCode.USAGE
    assert "no other decode server is left: nothing can be served then" in refused.stderr

    shown = told(routed, "drain", "decode/0", "--dry-run")
    assert shown["routers"] == [
        {"router": "router-0", "engine": "decode-0", "drained": "", "turns": 0, "handles": 0}
    ]
    done = told(routed, "drain", "decode/0", "--yes")
    assert (done["engines"], done["routers"]) == (
        ["decode-0"],
        [
            {
                "router": "router-0",
                "engine": "decode-0",
                "drained": "drained by hand",
                "turns": 0,
                "handles": 0,
            }
        ],
    )
    said = run_cli(*routed.args("status"))
    assert "decode-0 gets nothing new: drained by hand" in said.stderr

    back = told(routed, "undrain", "decode-0")
    assert back["routers"] == shown["routers"]
    assert routed.state().drained == {}
    audit = (Path(routed.state().processes["decode-0"].log).parents[1] / "audit.log").read_text()
    assert "drain decode-0\n" in audit
    assert "undrain decode-0\n" in audit


def test_a_file_of_keys_without_the_tenant_admin_is_told_with_the_line_to_add(
    deployed: Deployed, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("team:a-key-of-theirs\n")
    deployed.write(router={"port": 0, "api_keys_file": str(keys)})
    refused = run_cli(*deployed.args("drain", "decode/0", "--yes"))
    assert refused.exit_code == ExitCode.NO_PERMISSION
    said = " ".join(refused.stderr.split())
    assert str(keys) in said.replace(" ", "")
    assert "a line `admin:KEY`" in said
    assert "a-key-of-theirs" not in said


def test_what_is_no_engine_is_refused(deployed: Deployed) -> None:
    example = run_cli(*deployed.args("drain", "decode/0"))
    assert example.exit_code == ExitCode.USAGE
    assert "the example proxy cannot leave an engine out" in example.stderr
    deployed.write(router={"port": 0})
    for which, message in (
        ("router/0", "`router/0` names no process that this is for"),
        ("decode/x", "`decode/x` names no process that this is for"),
        ("decode/0", "nothing was started"),
    ):
        assert message in run_cli(*deployed.args("drain", which)).stderr
