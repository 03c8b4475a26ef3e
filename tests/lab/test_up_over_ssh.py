"""`pdctl up` on two hosts over SSH, with real engines: the same file, several machines."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdctl.base.paths import cache_root
from pdctl.render.check import load_checked
from pdctl.render.deployment import render
from pdctl.render.place import place_of
from pdctl.targets import procfs
from tests.e2e.harness import EXAMPLE, PYTHON_ENV
from tests.lab.hosts import Lab, LabHost

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

NAME = "lab"
RUN = Path("/run/pdctl")


def engine_python() -> str:
    """An environment with vLLM and NIXL: the one that is named, or that earlier tests installed."""
    if python := os.environ.get(PYTHON_ENV):
        return python
    config = load_checked(EXAMPLE).config
    recipe = render(config, place_of(config)).recipe
    assert recipe is not None
    if not Path(recipe.layout.complete).exists():
        pytest.skip(f"no engine is installed in {cache_root()}; {PYTHON_ENV} names one elsewhere")
    return str(recipe.layout.python)


def configuration(lab: Lab, base: Path, python: str) -> dict[str, Any]:
    """The example that users start from, on two hosts of the lab."""
    prefill, decode = lab.hosts
    document: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    document["name"] = NAME
    document["engine"] |= {"install": "existing", "python": python}
    document["kv"]["buffer_device"] = "cpu"
    document["model"]["env"] = {
        # Only the wire between the hosts.
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": "eth0",
    }
    document["target"] = {
        "kind": "ssh",
        "access": {"user": "root", "key_file": str(lab.key_file), "connect_timeout": 10},
        "hosts": {
            "prefill": [{"address": prefill.address}],
            "decode": [{"address": decode.address}],
            "router": [{"address": decode.address}],
        },
        "base_dir": str(base),
        "start_timeout": 300,
        "stop_timeout": 20,
    }
    # The router stays on its host's loopback: `up`, `status` and `verify` go there over SSH.
    return document


class Operator:
    """Types pdctl commands on the machine that the hosts are reached from."""

    def __init__(self, folder: Path, lab: Lab) -> None:
        self.folder, self.lab, self.base = folder, lab, folder / "opt"
        self.file = folder / "pd.yaml"
        (folder / "home" / ".ssh").mkdir(parents=True)
        shutil.copy(lab.known_hosts, folder / "home" / ".ssh" / "known_hosts")
        python = self.base / "pdctl" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        self.env = {
            **os.environ,
            "HOME": str(folder / "home"),
            "PDCTL_STATE_DIR": str(folder / "state"),
            "NO_COLOR": "1",
        }
        self.env.pop("SSH_AUTH_SOCK", None)

    def types(self, *args: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "pdctl", *args, "-f", str(self.file)],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=600,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == expect, done.stdout + done.stderr
        return done

    def asks(self, *args: str, expect: int = 0) -> Any:
        return json.loads(self.types(*args, "--json", expect=expect).stdout)


@pytest.fixture
def operator(lab: Callable[[int], Lab], tmp_path: Path) -> Iterator[Operator]:
    python = engine_python()
    two = lab(2)
    someone = Operator(tmp_path, two)
    document = configuration(two, someone.base, python)
    someone.file.write_text(yaml.safe_dump(document, sort_keys=False))
    had_run = RUN.exists()
    try:
        yield someone
    finally:
        someone.types("down", "--yes")
        if not had_run and RUN.exists():
            RUN.rmdir()  # fails, and should, when something is in it


def received(host: LabHost) -> int:
    """Bytes that came over the host's wire."""
    return int(host.run("cat", "/sys/class/net/eth0/statistics/rx_bytes").stdout)


def test_up_twice_verify_one_killed_and_down(operator: Operator) -> None:
    prefill, _ = operator.lab.hosts
    operator.types("up", "--yes")
    again = operator.types("up", "--yes")
    assert "nothing to do" in again.stderr

    status = operator.asks("status")
    assert status["target"] == "ssh"
    assert [(each["role"], each["host"], each["healthy"]) for each in status["roles"]] == [
        ("prefill", operator.lab.hosts[0].address, True),
        ("decode", operator.lab.hosts[1].address, True),
        ("router", operator.lab.hosts[1].address, True),
    ]
    before = received(prefill)
    report = operator.asks("verify")
    assert report["ok"] is True
    assert received(prefill) - before > 1_000_000  # decode's blocks came over the wire

    # Over SSH too: in force at once, as decode's own handle says, and nothing restarts.
    said = operator.asks("set-ttl", "300", "--write", "--yes")
    least, most = said["decode"][0]["kept_for"]
    assert least - 0.5 <= 300 <= most + 0.5
    assert [router["ttl"] for router in said["routers"]] == [292]
    assert operator.asks("status")["kv"] == {"decoder_ttl": 300, "router_ttl": 292}
    plan = operator.asks("plan")
    assert [step["id"] for step in plan["steps"] if step["changes"]] == []
    assert operator.asks("set-ttl", "60", "--yes")["routers"][0]["ttl"] == 52
    drift = operator.asks("status")["kv"]
    assert drift["configured"] == {"decoder_ttl": 300, "router_ttl": 292}
    assert operator.asks("set-ttl", "300", "--yes")["routers"][0]["ttl"] == 292

    pid = next(each["pid"] for each in status["roles"] if each["role"] == "decode")
    os.kill(pid, 9)
    while procfs.read_stat(pid) is not None and procfs.read_stat(pid).runs:  # type: ignore[union-attr]
        time.sleep(0.05)
    broken = operator.asks("status", expect=1)
    assert [each["healthy"] for each in broken["roles"]][:2] == [True, False]
    # Its supervisor starts it again; `up` only waits for it, and proves.
    plan = operator.asks("plan")
    assert [step["id"] for step in plan["steps"] if step["changes"]] == []
    operator.types("up", "--yes")
    again = operator.asks("status")["roles"]
    assert [each["restarts"] for each in again] == [0, 1, 0]
    assert again[1]["engine_id"] != status["roles"][1]["engine_id"]
    assert operator.asks("verify")["ok"] is True

    down = operator.asks("down", "--yes")
    assert [each["name"] for each in down["ended"]] == ["router-0", "prefill-0", "decode-0"]
    assert not (RUN / NAME).exists()
    left = [path.name for path in (operator.base / "deployments" / NAME).iterdir()]
    assert left == ["logs"]
    mark = f"{operator.base}/deployments/{NAME}/"
    assert not [pid for pid in procfs.read_table() if procfs.read_mark(pid).startswith(mark)]
    assert "nothing to remove" in operator.types("down").stderr


def test_a_dead_host_is_named_within_the_limit(operator: Operator) -> None:
    prefill, decode = operator.lab.hosts
    decode.run("ip", "link", "set", "eth0", "down")
    began = time.monotonic()
    refused = operator.types("up", "--yes", expect=69)
    assert time.monotonic() - began < 10 + 8
    assert f"root@{decode.address}" in refused.stderr
    assert "did not answer within 10 s" in refused.stderr
    assert not (operator.base / "deployments").exists()  # nothing was begun on the other
    decode.run("ip", "link", "set", "eth0", "up")
    known = Path(operator.env["HOME"]) / ".ssh" / "known_hosts"
    lines = known.read_text().splitlines()
    known.write_text(f"{lines[0]}\n{lines[1].rpartition(' ')[0]} {lines[0].split()[2]}\n")
    refused = operator.types("up", "--yes", expect=77)
    assert "the host's key CHANGED" in refused.stderr
    assert f"ssh-keygen -R {decode.address} -f {known}" in refused.stderr
    known.write_text("\n".join(lines) + "\n")
    assert prefill.run("true").returncode == 0


def test_doctor_looks_at_every_host(operator: Operator) -> None:
    prefill, decode = operator.lab.hosts
    decode.run("ip", "link", "set", "eth0", "down")
    asked = ("doctor", "--only", "host.*", "--json", "--all", "--connect-limit", "4")
    checks = operator.asks(*asked, expect=1)["checks"]
    reach = {each["target"]: each["status"] for each in checks if each["id"] == "host.reach"}
    assert reach == {prefill.address: "pass", decode.address: "fail"}
    seen = {each["status"] for each in checks if each["target"] == prefill.address}
    assert "pass" in seen - {"skip"}
    decode.run("ip", "link", "set", "eth0", "up")
