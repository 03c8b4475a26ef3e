"""`doctor` over a real network: twelve hosts, three of which no longer answer."""

import subprocess
import time
from collections.abc import Callable

import pytest

from pdctl.base.command import Command
from pdctl.base.configfacts import ConfigFacts
from pdctl.base.errors import TemporaryError, UnreachableError
from pdctl.base.hostfacts import HostWant
from pdctl.doctor.checks import CHECKS
from pdctl.doctor.table import run_checks
from pdctl.observe.examine import Case, Look, examine
from pdctl.targets.base import OutputSink, Result
from pdctl.targets.local import LocalHost
from tests.lab.hosts import Lab, LabHost

pytestmark = pytest.mark.lab

LIMIT_S = 10.0


class Over(LocalHost):
    """A host behind `ssh`, as far as looking at it needs; the product's own comes later."""

    def __init__(self, lab: Lab, at: LabHost) -> None:
        super().__init__(at.name)
        self._lab, self._at = lab, at

    def run(
        self,
        command: Command,
        *,
        timeout: float,
        on_line: OutputSink | None = None,
        stdin: bytes | None = None,
    ) -> Result:
        argv = self._lab.ssh_argv(self._at, command.shell())
        argv[argv.index("ConnectTimeout=5")] = f"ConnectTimeout={int(timeout)}"
        began = time.monotonic()
        try:
            done = subprocess.run(argv, capture_output=True, input=stdin or b"", timeout=timeout)
        except subprocess.TimeoutExpired:
            raise TemporaryError(f"it did not answer within {timeout:g} s") from None
        if done.returncode == 255:
            raise UnreachableError(done.stderr.decode(errors="replace").strip())
        out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        for line in out.splitlines() if on_line else ():
            on_line(line)  # type: ignore[misc]
        return Result(done.returncode, out, err, time.monotonic() - began)


def test_twelve_hosts_of_which_three_swallow_packets(lab: Callable[[int], Lab]) -> None:
    twelve = lab(12)
    dead = [twelve.hosts[place] for place in (2, 6, 10)]
    for host in dead:
        assert host.run("ip", "link", "set", "eth0", "down").returncode == 0
    hosts = {host.name: Over(twelve, host) for host in twelve.hosts}
    case = Case(
        "twelve",
        ConfigFacts("pd.yaml", missing=True),
        hosts=hosts,
        wants={name: HostWant(target="ssh", roles=("router",)) for name in hosts},
    )
    began = time.monotonic()
    facts, _ = examine(case, Look(connect_s=LIMIT_S))
    took = time.monotonic() - began
    print(f"\n12 hosts, 3 dead, connect limit {LIMIT_S:g} s: {took:.1f} s")
    assert took < LIMIT_S + 5
    findings = run_checks(facts, CHECKS)
    failing = [(each.id, each.target) for each in findings if each.status == "fail"]
    assert failing == [("host.reach", host.name) for host in dead]
    alive = [host for host in facts.hosts if host.error is None]
    assert len(alive) == 9
    assert all(host.system is not None for host in alive)
