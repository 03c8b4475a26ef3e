import json
from dataclasses import replace

import pytest

from pdctl.base.exits import ExitCode
from pdctl.cli.status import _show
from pdctl.engine.example import LIMITS
from pdctl.observe.status import RoleStatus, Status
from tests.cli.deployed import NAME, Deployed
from tests.cli.helpers import run_cli


def test_json_has_the_shape_of_the_contract(deployed: Deployed) -> None:
    run_cli(*deployed.args("up", "--no-verify"))
    result = run_cli(*deployed.args("status", "--json"))
    assert result.exit_code == 0
    records, pids = deployed.state().processes, deployed.pids()
    assert result.json == {
        "name": NAME,
        "target": "local",
        "roles": [
            {
                "role": role,
                "index": 0,
                "host": "localhost",
                "pid": pids[f"{role}-0"],
                "port": records[f"{role}-0"].port,
                "healthy": True,
                # the tiny router knows nothing of pdctl's own state
                "version": "0.0.1" if role != "router" else None,
                "engine_id": records[f"{role}-0"].engine_id,
            }
            for role in ("prefill", "decode", "router")
        ],
        "kv": {"decoder_ttl": 480.0, "router_ttl": 450.0},
        "router_limits": list(LIMITS),
    }


def test_a_dead_process_is_told_and_the_answer_is_bad(deployed: Deployed) -> None:
    run_cli(*deployed.args("up", "--no-verify"))
    pid = deployed.pids()["decode-0"]
    deployed.kill("decode-0")
    result = run_cli("status", "--name", NAME)
    assert result.exit_code == ExitCode.BAD_ANSWER
    assert f"decode-0: pid {pid} is gone" in result.stderr
    roles = run_cli(*deployed.args("status", "--json")).json["roles"]
    assert [(each["pid"] is None, each["healthy"]) for each in roles] == [
        (False, True),
        (True, False),
        (False, True),
    ]


def test_the_table_fits_a_terminal(deployed: Deployed) -> None:
    run_cli(*deployed.args("up", "--no-verify"))
    result = run_cli(*deployed.args("status"))
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) == 4
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].split() == ["process", "host", "pid", "port", "health", "version", "age"]
    assert "decode keeps blocks 8m, the router offers them 7m30s" in result.stderr


def test_what_was_started_again_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    role = RoleStatus("decode", 0, "h", 12, 8200, True, "0.33.0", None, restarts=2)
    shown = Status("x", "ssh", (role, replace(role, role="prefill", restarts=0)), 480.0, 472.0)
    _show(shown)
    said = capsys.readouterr().err
    assert "decode-0 was started again 2 times since `up` started it" in said
    assert "prefill-0" not in said
    assert [each["restarts"] for each in json.loads(json.dumps(shown.as_dict()))["roles"]] == [2, 0]


def test_what_the_example_proxy_cannot_do_is_said(deployed: Deployed) -> None:
    run_cli(*deployed.args("up", "--no-verify"))
    told = run_cli(*deployed.args("status")).stderr
    assert "the router is upstream's example proxy, for comparison only:" in told
    assert all(limit in told for limit in LIMITS)


def test_nothing_started_is_a_bad_answer_with_the_way_on(deployed: Deployed) -> None:
    result = run_cli(*deployed.args("status"))
    assert result.exit_code == ExitCode.BAD_ANSWER
    assert "nothing of `demo` was started; `pdctl up` starts it" in result.stderr
    assert run_cli(*deployed.args("status", "--json")).json == {
        "name": NAME,
        "target": "local",
        "roles": [],
        "kv": {"decoder_ttl": None, "router_ttl": None},
    }
