"""What a person does, with the real command and real engines: up, verify, status, up, down."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from pdctl.targets.local import INHERITED, INHERITED_PREFIXES
from tests.e2e.harness import Pairs, Setup, configuration

PDCTL = Path(sys.executable).with_name("pdctl")
UP_LIMIT_S = 900  # an engine may have to be installed first


class Person:
    """Types pdctl commands in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "pd.yaml"
        self.env = {**os.environ, "PDCTL_STATE_DIR": str(folder / "s"), "NO_COLOR": "1"}

    def types(self, *args: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(PDCTL), *args],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=UP_LIMIT_S,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == expect, done.stdout + done.stderr
        return done

    def asks(self, *args: str) -> Any:
        return json.loads(self.types(*args, "--json").stdout)


@pytest.fixture
def person(pairs: Pairs, tmp_path: Path) -> Any:
    """On a machine that runs no other pair; what they start is ended, whatever happens."""
    pairs.stop()
    someone = Person(tmp_path)
    someone.file.write_text(yaml.safe_dump(configuration("person", Setup())))
    try:
        yield someone
    finally:
        someone.types("down", "--yes")
        left = [each for each in psutil.process_iter() if str(tmp_path) in _line(each)]
        assert left == []


def runs(pid: int) -> bool:
    """True unless it has ended, whether or not its parent has taken notice."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _proc(pid: int, name: str) -> list[str]:
    return Path(f"/proc/{pid}/{name}").read_text().rstrip("\0").split("\0")


def _unchosen(text: str, process: dict[str, Any], ports: dict[str, str]) -> str:
    """The text with what `up` chooses put back to what `render` shows."""
    if process["engine_id"]:
        text = text.replace(process["engine_id"], "<new at every start>")
    for port, shown in ports.items():
        text = text.replace(port, shown)
    return text


@pytest.mark.timeout(UP_LIMIT_S)
def test_from_one_file_to_a_proven_pair_and_back(person: Person) -> None:
    up = person.asks("up", "--yes")
    assert up["changed"]
    assert up["verify"]["ok"]
    assert up["verify"]["output_equal"] is True
    assert up["verify"]["turns"][1]["reused_tokens"] > 0
    assert up["verify"]["bytes_pulled"] > 0

    again = person.types("up", "--yes")
    assert "nothing to do, because" in again.stderr
    curl = next(line for line in again.stdout.splitlines() if line.strip().startswith("curl"))
    answer = subprocess.run(
        shlex.split(curl.strip().replace("curl", "curl -sf", 1)), capture_output=True, timeout=60
    )
    assert json.loads(answer.stdout)["choices"][0]["message"]["role"] == "assistant"

    status = person.asks("status")
    roles = {f"{each['role']}-{each['index']}": each for each in status["roles"]}
    assert set(roles) == {"prefill-0", "decode-0", "router-0"}
    assert all(each["healthy"] for each in roles.values())
    assert status["kv"]["decoder_ttl"] == 480
    assert status["kv"]["router_ttl"] < 480 - 5

    assert person.asks("verify")["ok"]
    all_green(person)
    what_runs_is_what_render_shows(person, up)

    down = person.types("down", "--yes")
    assert "nothing is left" in down.stderr + down.stdout
    for each in up["processes"]:
        assert not runs(each["pid"])
    again = person.types("down", "--yes")
    assert "nothing" in again.stderr + again.stdout


def all_green(person: Person) -> None:
    """What `doctor` says of a healthy pair on a first run with few turns."""
    doctor = person.asks("doctor", "--strict")
    bad = [each for each in doctor["checks"] if each["status"] in ("fail", "warn")]
    assert bad == []
    passed = {each["id"] for each in doctor["checks"] if each["status"] == "pass"}
    assert {"runtime.two_turn", "runtime.misses", "router.reuse", "logs.read"} <= passed
    bundle = person.folder / "bundle"
    saved = json.loads(person.types("doctor", "--json", "--save", str(bundle)).stdout)
    assert person.asks("doctor", "--from", str(bundle)) == saved
    assert {each.name for each in (bundle / "logs").iterdir()} == {
        *("prefill-0.log", "decode-0.log", "router-0.log")
    }


def what_runs_is_what_render_shows(person: Person, up: dict[str, Any]) -> None:
    shown = {each["name"]: each for each in person.asks("render")["processes"]}
    running = {each["name"]: each for each in up["processes"]}
    assert set(shown) == set(running)
    chosen = _chosen_ports(running, shown)
    for name, process in running.items():
        argv = [_unchosen(word, process, chosen) for word in _proc(process["pid"], "cmdline")]
        # The engines rename themselves; argv is what the kernel was given all the same.
        assert argv == [_unchosen(word, process, chosen) for word in shown[name]["argv"]]
        environ = dict(
            item.partition("=")[::2] for item in _proc(process["pid"], "environ") if item
        )
        for key, value in shown[name]["env"].items():
            assert _unchosen(environ.pop(key), process, chosen) == value, key
        inherited = {key for key in environ if not key.startswith(INHERITED_PREFIXES)}
        assert inherited <= INHERITED


def _chosen_ports(
    running: dict[str, dict[str, Any]], shown: dict[str, dict[str, Any]]
) -> dict[str, str]:
    """Ports that `up` chose for port 0, as text, with what `render` has in their place."""
    chosen = {str(each["port"]): str(shown[name]["port"]) for name, each in running.items()}
    for name, each in running.items():
        environ = _proc(each["pid"], "environ")
        for item in environ:
            key, _, value = item.partition("=")
            if key == "VLLM_NIXL_SIDE_CHANNEL_PORT":
                chosen[value] = str(shown[name]["side_channel_port"])
    return chosen
