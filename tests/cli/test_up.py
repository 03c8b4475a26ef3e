import json
import shlex
import signal
import subprocess
import tarfile
import urllib.request
from pathlib import Path

import pytest

from pdctl.base.exits import ExitCode
from pdctl.base.paths import deployment_dir, log_dir
from tests.cli.deployed import NAME, Deployed
from tests.cli.helpers import run_cli


def test_up_ends_with_commands_that_work(deployed: Deployed) -> None:
    result = run_cli(*deployed.args("up", "--no-verify"))
    assert result.exit_code == 0, result.stderr
    router = deployed.state().processes["router-0"]
    assert f"`demo` is up at {router.url}" in result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "Useful commands:"
    assert lines[1].startswith(f"  curl {router.url}/v1/chat/completions -H 'content-type: ")
    assert json.loads(lines[1].split(" -d ")[1].strip("'"))["messages"]
    assert lines[2:] == [
        f"  pdctl status -f {deployed.file}",
        f"  pdctl verify -f {deployed.file}",
        f"  tail -f {log_dir(NAME)}/*.log",
        f"  pdctl down -f {deployed.file}",
    ]
    with urllib.request.urlopen(f"{router.url}/health", timeout=5) as answer:
        assert answer.status == 200
    # Every step was told on stderr, with what came of it.
    for name, pid in deployed.pids().items():
        assert any(name in line and f"pid {pid}" in line for line in result.stderr.splitlines())


def test_up_twice_has_nothing_to_do_because(deployed: Deployed) -> None:
    run_cli(*deployed.args("up", "--no-verify"))
    before = deployed.pids()
    result = run_cli(*deployed.args("up", "--no-verify"))
    assert result.exit_code == 0
    assert deployed.pids() == before
    assert "nothing to do, because everything of `demo` runs as configured" in result.stderr
    told = [line for line in result.stderr.splitlines() if "prefill-0 on " in line]
    assert told[0].endswith(
        f"nothing to do, because pid {before['prefill-0']} runs as configured and answers"
    )


def test_what_runs_is_what_render_shows(deployed: Deployed) -> None:
    """`/proc` against the renderer, but for what a start chooses."""
    from pdctl.render.check import load_checked
    from pdctl.render.deployment import render
    from pdctl.render.place import place_of
    from pdctl.targets.local import LocalHost

    run_cli(*deployed.args("up", "--no-verify"))
    config = load_checked(deployed.file).config
    shown = {spec.name: spec for spec in render(config, place_of(config)).processes}
    inherited = LocalHost().inherited_env()
    for name, record in deployed.state().processes.items():
        assert record.ref is not None
        environ = Path(f"/proc/{record.ref.pid}/environ").read_text().split("\0")[:-1]
        own = {k: v for k, v in (e.split("=", 1) for e in environ) if k not in inherited}
        expected = shown[name].command.masked_environ()
        if record.side_channel_port:
            expected["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(record.side_channel_port)
        own.pop("PWD", None)  # set by the shell that stands in for the interpreter
        assert own == expected


def test_json_is_one_document(deployed: Deployed) -> None:
    result = run_cli(*deployed.args("up", "--no-verify", "--json"))
    value = result.json
    assert (value["name"], value["changed"], value["verify"]) == ("demo", True, None)
    assert [each["name"] for each in value["processes"]] == ["prefill-0", "decode-0", "router-0"]
    assert {each["name"]: each["pid"] for each in value["processes"]} == deployed.pids()
    assert value["processes"][0]["engine_id"].startswith("demo-prefill-0-")


def test_dry_run_shows_the_plan_and_changes_nothing(deployed: Deployed) -> None:
    result = run_cli(*deployed.args("up", "--dry-run"))
    assert result.exit_code == 0
    assert "+ start prefill-0 on a free port of 127.0.0.1: it was never started" in result.stdout
    assert deployed.running() == []
    assert not deployment_dir(NAME).exists()
    assert run_cli(*deployed.args("up", "--dry-run", "--json")).json["steps"]


def test_a_process_that_dies_while_starting_is_shown(deployed: Deployed) -> None:
    deployed.write(decode={"HOW": "dies"})
    result = run_cli(*deployed.args("up", "--no-verify"))
    assert result.exit_code == ExitCode.UNREACHABLE
    assert "ended while it was starting" in result.stderr
    assert "RuntimeError: no weights there" in result.stderr
    assert str(log_dir(NAME) / "decode-0.log") in result.stderr
    assert "still running: prefill-0 (pid " in result.stderr

    deployed.write()
    assert run_cli(*deployed.args("up", "--no-verify", "--yes")).exit_code == 0


def test_an_engine_that_does_not_fit_is_refused_before_anything_starts(
    deployed: Deployed,
) -> None:
    deployed.python.write_text(deployed.python.read_text().replace("0.32.0", "0.31.0"))
    result = run_cli(*deployed.args("up", "--no-verify"))
    assert result.exit_code == ExitCode.BAD_ANSWER
    assert "your engine cannot run this configuration; nothing was started" in result.stderr
    assert "vLLM 0.31.0 is installed, the configuration is for 0.32.0" in result.stderr
    deployed.python.write_text("#!/bin/sh\necho not for you >&2; exit 1\n")
    result = run_cli(*deployed.args("plan"))
    assert "the engine's Python did not answer the probe: not for you" in result.stderr
    assert deployed.running() == []


def test_an_engine_without_what_the_example_proxy_imports_is_refused(deployed: Deployed) -> None:
    script = deployed.python.read_text()
    deployed.python.write_text(script.replace("then echo; exit", "then echo httpx; exit"))
    result = run_cli(*deployed.args("up", "--no-verify"))
    assert result.exit_code == ExitCode.BAD_ANSWER
    assert "the example proxy needs `httpx`, which the engine's Python does not" in result.stderr
    assert deployed.running() == []


def test_a_checkout_without_the_example_proxy_is_not_found(deployed: Deployed) -> None:
    deployed.write(router={"kind": "vllm-example", "source": str(deployed.folder), "port": 0})
    result = run_cli(*deployed.args("up", "--no-verify"))
    assert result.exit_code == ExitCode.NOT_FOUND
    path = f"{deployed.folder}/examples/disaggregated/disaggregated_serving"
    assert f"there is no example proxy at `{path}/disagg_proxy_multiturn.py`" in result.stderr
    assert deployed.running() == []


def test_the_example_proxy_comes_out_of_a_source_distribution_and_goes(
    deployed: Deployed,
) -> None:
    archive = deployed.folder / "vllm-0.33.0.tar.gz"
    with tarfile.open(archive, "w:gz") as out:
        out.add(deployed.folder / "router.py", "vllm-0.33.0/examples/x/disagg_proxy_multiturn.py")
    deployed.write(router={"kind": "vllm-example", "source": str(archive), "port": 0})
    result = run_cli(*deployed.args("up", "--no-verify"))
    assert result.exit_code == 0, result.stderr
    script = deployment_dir(NAME) / "example" / "disagg_proxy_multiturn.py"
    assert deployed.state().processes["router-0"].argv[1] == str(script)
    assert script.read_bytes() == (deployed.folder / "router.py").read_bytes()
    again = run_cli(*deployed.args("up", "--no-verify"))
    assert "nothing to do" in again.stderr
    assert run_cli(*deployed.args("down", "--yes")).exit_code == 0
    assert not script.parent.exists()
    assert deployed.running() == []


def test_a_change_that_stops_service_asks_first(deployed: Deployed) -> None:
    run_cli(*deployed.args("up", "--no-verify"))
    before = deployed.pids()
    deployed.write(decode={"EXTRA": "1"})
    refused = run_cli(*deployed.args("up", "--no-verify"))
    assert refused.exit_code == ExitCode.USAGE
    why = "the configuration changed: EXTRA: not given → 1"
    assert f"this replaces decode-0 ({why}): nothing can be served meanwhile" in refused.stderr
    assert "add `--yes`" in refused.stderr
    assert deployed.pids() == before

    agreed = run_cli(*deployed.args("up", "--no-verify", "--yes"))
    assert agreed.exit_code == 0
    assert agreed.stderr.count("end decode-0") == 1
    after = deployed.pids()
    assert {name for name in after if after[name] != before[name]} == {"decode-0"}


def test_two_at_once(deployed: Deployed) -> None:
    ready = deployed.folder / "ready"
    deployed.write(prefill={"HOW": f"until:{ready}"})
    first = deployed.spawn("up", "--no-verify")
    try:
        deployed.wait_for("prefill-0", "decode-0")
        second = run_cli(*deployed.args("up", "--no-verify"))
        assert second.exit_code == ExitCode.TRY_AGAIN
        assert "another pdctl works on `demo`" in second.stderr
        assert f"held by pid {first.pid} (`pdctl up`, user " in second.stderr
        assert "pdctl up" in run_cli(*deployed.args("status")).stderr
        ready.touch()
        assert first.wait(timeout=30) == 0
    finally:
        first.kill()
        first.communicate()
    waited = run_cli(*deployed.args("up", "--no-verify", "--lock-wait", "5"))
    assert waited.exit_code == 0


def test_ctrl_c_says_what_goes_on_and_up_goes_on(deployed: Deployed) -> None:
    ready = deployed.folder / "ready"
    deployed.write(prefill={"HOW": f"until:{ready}"})
    first = deployed.spawn("up", "--no-verify")
    deployed.wait_for("prefill-0", "decode-0")
    first.send_signal(signal.SIGINT)
    _, stderr = first.communicate(timeout=30)
    assert first.returncode == ExitCode.INTERRUPTED
    pids = deployed.pids()
    assert (
        f"interrupted; still running: prefill-0 (pid {pids['prefill-0']}), "
        f"decode-0 (pid {pids['decode-0']})" in stderr
    )
    assert "Traceback" not in stderr
    ready.touch()
    assert run_cli(*deployed.args("up", "--no-verify")).exit_code == 0
    after = deployed.pids()
    assert {name: after[name] for name in pids} == pids


@pytest.mark.parametrize("then", ["up", "down"])
def test_killed_in_the_middle(deployed: Deployed, then: str) -> None:
    ready = deployed.folder / "ready"
    deployed.write(prefill={"HOW": f"until:{ready}"})
    first = deployed.spawn("up", "--no-verify")
    deployed.wait_for("prefill-0", "decode-0")
    first.kill()
    first.communicate()
    pids = deployed.pids()
    status = run_cli(*deployed.args("status"))
    assert status.exit_code == ExitCode.BAD_ANSWER
    assert "the last `pdctl up` did not end; run it again" in status.stderr
    ready.touch()
    if then == "up":
        assert run_cli(*deployed.args("up", "--no-verify")).exit_code == 0
        after = deployed.pids()
        assert {name: after[name] for name in pids} == pids
    else:
        assert run_cli(*deployed.args("down")).exit_code == 0
        assert deployed.running() == []


def test_a_damaged_state_is_named_and_left(deployed: Deployed) -> None:
    run_cli(*deployed.args("up", "--no-verify"))
    file = deployment_dir(NAME) / "state.json"
    file.write_text("{")
    for command in ("up", "down", "status", "plan"):
        result = run_cli(*deployed.args(command))
        assert result.exit_code == ExitCode.BAD_ANSWER
        assert "the state file of `demo` is damaged" in result.stderr
        assert "--forget-damaged-state" in result.stderr
        assert file.read_text() == "{"


def test_hosts_that_cannot_be_reached_are_no_plan_but_the_first(
    deployed: Deployed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    hosts = {"prefill": [{"address": "127.0.0.1"}], "decode": [{"address": "127.0.0.2"}]}
    target = {"kind": "ssh", "hosts": hosts, "access": {"port": 1}}
    deployed.write(target=target, router={"port": 8000}, kv={})
    for command in ("up", "down"):
        result = run_cli(*deployed.args(command))
        assert result.exit_code == ExitCode.UNREACHABLE, result.stderr
        assert "port 1 cannot be connected to: Connection refused" in result.stderr
        assert "127.0.0.2 too:" in result.stderr
    plan = run_cli(*deployed.args("plan"))
    assert plan.exit_code == 0
    assert "port 1 cannot be connected to" in plan.stderr
    assert "these are the steps of a first `up`" in plan.stderr
    assert "start prefill-0" in plan.stdout


def test_no_file_is_not_found(tmp_path: Path) -> None:
    result = run_cli("up", "-f", str(tmp_path / "none.yaml"))
    assert result.exit_code == ExitCode.NOT_FOUND


@pytest.mark.parametrize("text", ["sk-1\n", "# ours\n\n  team: sk-1 # mine\nsk-2\n", "a:sk-1"])
def test_the_curl_line_reads_the_first_key_as_the_router_does(tmp_path: Path, text: str) -> None:
    from pdctl.cli.up import _first_key
    from pdctl.observe.endpoints import first_key

    file = tmp_path / "keys"
    file.write_text(text)
    script = f'printf %s "{_first_key(shlex.quote(str(file)))}"'
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout == first_key(text) == "sk-1"
