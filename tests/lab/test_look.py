"""Hosts are looked at over a real ssh: one command each, and which ports of others they reach."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pdctl.base.facts import PairFacts
from pdctl.base.hostfacts import HostFacts, HostWant, WantedPeer, WantedPort
from pdctl.doctor.rows.host import CHECKS
from pdctl.doctor.table import Finding, run_checks
from pdctl.observe.host import read_host
from tests.lab.hosts import Lab, LabHost
from tests.lab.test_ssh_loss import machine

pytestmark = pytest.mark.lab

MARKS = "/srv/demo/"


@contextmanager
def listener(host: LabHost, port: int) -> Iterator[None]:
    code = (
        "import socket, sys\n"
        f"s = socket.create_server(('{host.address}', {port}))\n"
        "print('up', flush=True)\n"
        "sys.stdin.read()\n"  # the child is nsenter's, so ending that one leaves it
    )
    with subprocess.Popen(
        host.command(sys.executable, "-c", code),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        yield


def want(one: LabHost, other: LabHost) -> HostWant:
    def peer(port: int, address: str = other.address) -> WantedPeer:
        return WantedPeer("decode-0", other.name, "side channel", address, port)

    return HostWant(
        target="ssh",
        roles=("prefill",),
        marks=MARKS,
        ports=(WantedPort("prefill-0", "http", one.address, 8100),),
        peers=(
            peer(5600),
            peer(5601),
            peer(5600, _nobody(other)),
            peer(5600, "192.0.2.1"),  # there is no route to it
        ),
    )


def _nobody(other: LabHost) -> str:
    return f"{other.address.rpartition('.')[0]}.99"


def test_who_reaches_whom(lab: Callable[[int], Lab], tmp_path: Path) -> None:
    two = lab(2)
    one, other = two.hosts
    # Packets to this address go to nobody, as a firewall that drops them makes it.
    away = one.run(
        *("ip", "neigh", "add", _nobody(other), "lladdr", "02:00:00:00:00:99", "dev", "eth0")
    )
    assert away.returncode == 0, away.stderr
    with (
        closing(machine(two, 0, tmp_path)) as host,
        listener(other, 5600),
        listener(one, 8100),
    ):
        found = read_host(host, want(one, other))
    assert found.error is None
    assert found.problems == {}
    assert [each.reach for each in found.peers or ()] == [
        "open",
        "refused",
        "timeout",
        "unreachable",
    ]
    assert found.ports is not None
    assert found.ports[0].free is False
    assert (found.ports[0].holder or "").startswith("pid ")
    assert found.clock is not None
    assert found.clock.offset is not None
    assert found.clock.error_bar is not None
    assert abs(found.clock.offset) <= found.clock.error_bar  # one machine, one clock
    check = _judged(found)["host.peers"]
    assert check.status == "fail"
    assert "nobody listens there" in check.evidence[0]
    assert "dropped on the way" in check.evidence[1]


def test_the_other_hosts_address_is_not_this_ones(
    lab: Callable[[int], Lab], tmp_path: Path
) -> None:
    two = lab(2)
    one, other = two.hosts
    wanted = replace(
        want(one, other), ports=(WantedPort("prefill-0", "http", other.address, 8100),), peers=()
    )
    with closing(machine(two, 0, tmp_path)) as host:
        found = read_host(host, wanted)
    check = _judged(found)["host.ports"]
    assert check.status == "fail"
    assert "Cannot assign requested address" in check.evidence[0]


def _judged(host: HostFacts) -> dict[str, Finding]:
    return {f.id: f for f in run_checks(PairFacts("demo", 0.0, hosts=(host,)), CHECKS)}
