import os
import socket

from tests.cli.deployed import Deployed
from tests.cli.helpers import run_cli


def test_plan_before_and_after_up(deployed: Deployed) -> None:
    before = run_cli(*deployed.args("plan"))
    assert before.exit_code == 0
    assert "+ start decode-0 on a free port of 127.0.0.1: it was never started" in before.stdout
    assert deployed.running() == []
    run_cli(*deployed.args("up", "--no-verify"))
    after = run_cli(*deployed.args("plan"))
    assert not any(line.startswith("+") for line in after.stdout.splitlines())
    assert "> prove with two turns that KV is reused" in after.stdout


def test_json_has_the_shape_of_the_contract(deployed: Deployed) -> None:
    value = run_cli(*deployed.args("plan", "--json")).json
    assert list(value) == ["steps", "resources", "cost"]
    assert all(list(step) == ["id", "what", "why", "changes"] for step in value["steps"])
    assert value["resources"] == {"instances": []}
    assert value["cost"] == {"hourly_usd": 0.0, "as_of": None}
    assert [step["id"] for step in value["steps"]] == [
        "directories",
        "engine",
        "model",
        "files",
        "ports",
        "prefill-0",
        "decode-0",
        "health",
        "router-0",
        "router-health",
        "verify",
    ]


def test_a_change_is_shown_as_a_difference(deployed: Deployed) -> None:
    run_cli(*deployed.args("up", "--no-verify"))
    deployed.write(decode={"EXTRA": "1"})
    result = run_cli(*deployed.args("plan"))
    assert "+ end decode-0: the configuration changed: EXTRA: not given → 1" in result.stdout
    assert "this replaces decode-0 (the configuration changed" in result.stderr
    assert "; `up` asks first" in result.stderr


def test_a_taken_port_is_shown_with_its_holder(deployed: Deployed) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        deployed.write(
            target={
                "kind": "local",
                "prefill": {"port": port, "side_channel_port": 0},
                "decode": {"port": 0, "side_channel_port": 0},
            }
        )
        result = run_cli(*deployed.args("plan"))
    assert result.exit_code == 0
    assert f"port {port} is held by pid {os.getpid()} (" in result.stderr
