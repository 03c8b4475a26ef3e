"""Hosts over SSH whose wire fails: what no loopback can show."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pdctl.base.command import command
from pdctl.base.errors import UnreachableError
from pdctl.base.process import MARK_ENV
from pdctl.targets.local import LocalHost
from pdctl.targets.ssh import near
from pdctl.targets.ssh.access import Login, OpenSsh
from pdctl.targets.ssh.host import SshHost, connect_all
from tests.lab.hosts import Lab
from tests.targets.programs import wait_until

pytestmark = pytest.mark.lab


def machine(lab: Lab, number: int, folder: Path, **changes: object) -> SshHost:
    login = {
        "address": lab.hosts[number].address,
        "user": "root",
        "key_file": lab.key_file,
        "pinned": lab.known_hosts,
        "connect_timeout": 3.0,
        **changes,
    }
    ssh = OpenSsh(environ={"HOME": str(folder)})
    return SshHost(f"h{number + 1}", Login(**login), ssh=ssh)  # type: ignore[arg-type]


def test_a_wire_that_falls_silent_is_a_lost_connection_and_its_command_ends(
    lab: Callable[[int], Lab], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near, "PING_S", 0.5)
    monkeypatch.setattr(near, "SILENCE_S", 4.0)
    one = lab(1)
    host = machine(one, 0, tmp_path)
    mark = f"{tmp_path}/run"
    script = "echo up; exec sleep 600"
    sleep = command("sh", "-c", script, env={MARK_ENV: mark})
    lines: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(host.run, sleep, timeout=600, on_line=lines.append)
        wait_until(lambda: lines == ["up"])
        time.sleep(5)  # a silent command is no silent host
        assert not running.done()
        one.hosts[0].run("ip", "link", "set", "eth0", "down")
        began = time.monotonic()
        with pytest.raises(UnreachableError, match="no word for 4 s"):
            running.result(20)
        assert time.monotonic() - began < 12
    with pytest.raises(UnreachableError, match=r"did not answer within 3 s|No route to host"):
        host.connect()
    one.hosts[0].run("ip", "link", "set", "eth0", "up")
    wait_until(lambda: LocalHost().find(mark) == [], limit=60)
    monkeypatch.setattr("pdctl.targets.ssh.host._REMEMBERED_S", 0.0)
    assert host.run(command("true"), timeout=20).ok
    host.close()


def test_dead_hosts_among_many_cost_the_limit_once(
    lab: Callable[[int], Lab], tmp_path: Path
) -> None:
    four = lab(4)
    for dead in four.hosts[:2]:
        dead.run("ip", "link", "set", "eth0", "down")
    hosts = [machine(four, number, tmp_path) for number in range(4)]
    began = time.monotonic()
    errors = connect_all(hosts)
    assert time.monotonic() - began < 3.0 + 4.0
    assert {name: error.exit_code for name, error in errors.items()} == {"h1": 69, "h2": 69}
    for host in hosts:
        host.close()


def test_a_host_behind_a_host(lab: Callable[[int], Lab], tmp_path: Path) -> None:
    two = lab(2)
    inner = two.hosts[1]
    # It hears the machine, and its answers go nowhere.
    assert inner.run("ip", "route", "add", "blackhole", f"{two.gateway}/32").returncode == 0
    direct = machine(two, 1, tmp_path)
    with pytest.raises(UnreachableError, match="did not answer within 3 s"):
        direct.connect()
    through = machine(two, 1, tmp_path, jump=f"root@{two.hosts[0].address}", connect_timeout=10.0)
    found = through.run(command("ip", "-o", "-4", "addr", "show", "eth0"), timeout=20)
    assert f" {inner.address}/24 " in found.stdout
    through.close()
