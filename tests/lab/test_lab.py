"""The lab itself: hosts that reach each other over ssh, and nothing left of them."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.hosts import Lab, is_running, leftovers, make_lab
from tests.targets.programs import wait_until

pytestmark = pytest.mark.lab


def ssh(argv: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)


def test_the_machine_and_the_hosts_reach_each_other(lab: Callable[[int], Lab]) -> None:
    two = lab(2)
    one, other = two.hosts
    for host in two.hosts:
        assert ssh(two.ssh_argv(host, "true")).returncode == 0
    across = one.run(*two.ssh_argv(other, "ip", "-o", "-4", "addr", "show", "eth0"))
    assert across.returncode == 0, across.stderr
    assert f" {other.address}/24 " in across.stdout
    assert one.run("ip", "-o", "-4", "addr", "show", "eth0").stdout != across.stdout
    assert ssh(two.ssh_argv(one, "sh", "-c", "'exit 7'")).returncode == 7


def test_a_host_has_its_own_loopback_and_nobody_elses_keys(lab: Callable[[int], Lab]) -> None:
    two = lab(2)
    one, other = two.hosts
    assert one.run("ss", "-ltnH").stdout.count("LISTEN") == 1
    wrong = two.ssh_argv(other, "true")
    wrong[wrong.index("-i") + 1] = "/dev/null"
    refused = ssh(wrong)
    assert refused.returncode == 255
    assert "Permission denied" in refused.stderr
    two.known_hosts.write_text("")
    assert "Host key verification failed" in ssh(two.ssh_argv(one, "true")).stderr


def test_a_host_has_its_own_files_and_processes(lab: Callable[[int], Lab]) -> None:
    one, other = lab(2).hosts
    for folder in ("/etc", "/home", "/opt", "/root", "/run", "/tmp", "/var", "/dev/shm"):
        one.does("touch", f"{folder}/mine")
        assert other.run("test", "-e", f"{folder}/mine").returncode == 1
        assert not Path(folder, "mine").exists()
    assert one.run("touch", "/usr/mine").returncode == 1
    assert one.does("hostname") == "h1\n"
    sleeper = subprocess.Popen(one.command("sleep", "300"))
    try:
        wait_until(lambda: "sleep 300" in one.does("ps", "ax"))
        assert "sleep 300" not in other.does("ps", "ax")
        one.power_off()
        assert sleeper.wait(5) != 0
    finally:
        sleeper.kill()
        sleeper.wait()
    one.power_on()
    assert one.path("opt/mine").exists()
    assert not one.path("run/mine").exists()


@pytest.mark.usefixtures("lab_possible")
def test_nothing_is_left_not_even_what_was_started_in_the_background(tmp_path: Path) -> None:
    with make_lab(2, tmp_path) as made:
        far = "setsid sh -c 'trap \"\" HUP; exec sleep 300' >/dev/null 2>&1 &"
        assert ssh(made.ssh_argv(made.hosts[0], far)).returncode == 0
        wait_until(lambda: made.hosts[0].pids("sleep", "300") != [])
        (pid,) = made.hosts[0].pids("sleep", "300")
        assert f"process {pid} in {made.hosts[0].namespace}" in leftovers(made.id)
    assert leftovers(made.id) == []
    assert not is_running(pid)


@pytest.mark.usefixtures("lab_possible")
def test_a_lab_whose_run_was_killed_is_swept_by_the_next(tmp_path: Path) -> None:
    script = (
        "import os, pathlib; from tests.lab.hosts import make_lab\n"
        f"with make_lab(1, pathlib.Path({str(tmp_path)!r})) as lab:\n"
        "    print(lab.id, flush=True); os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False
    )
    lab_id = killed.stdout.strip()
    assert leftovers(lab_id) != []
    (tmp_path / "next").mkdir()
    with make_lab(1, tmp_path / "next"):
        assert leftovers(lab_id) == []
