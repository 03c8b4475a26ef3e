"""`status` over 64 hosts that are slow: it takes about as long as one of them.

They are one SSH server under many names. Each login waits before its command runs, as on hosts that
are far or busy; the answers to `/health` come from one small server.
"""

import asyncio
import http.server
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from pdctl.base.command import command
from pdctl.base.process import ProcessRef, ProcessSpec
from pdctl.deploy.reach import near_through
from pdctl.observe.status import Status, read_status
from pdctl.state.model import DeploymentState, Intervals, record_of
from pdctl.targets.local import LocalHost
from pdctl.targets.ssh.host import SshHost, connect_all
from tests.targets.sshd import Sshd, running_sshd, why_not

HOSTS = 64
WAIT_S = 5.0


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    wait = f'ForceCommand sleep {WAIT_S}; exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"'
    with running_sshd(tmp_path_factory.mktemp("slow"), more=wait) as server:
        yield server


class Healthy(http.server.BaseHTTPRequestHandler):
    """Says that it is well, and which version it is."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = b'{"version": "0.33.0"}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Healthy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture
def ref(tmp_path: Path) -> Iterator[ProcessRef]:
    """A process that lives."""
    here = LocalHost()
    asleep = command("sleep", "600")
    spec = ProcessSpec("decode", 0, "h", "127.0.0.1", 1, None, asleep, "log")
    started = here.start(spec, PurePosixPath(tmp_path / "log"))
    yield started
    here.stop(started, timeout=1)


def state_of(count: int, port: int, ref: ProcessRef) -> DeploymentState:
    state = DeploymentState(
        "many", "ssh", "running", "0", "/pd.yaml", "d", 0.0, 20.0, Intervals(480.0, 472.0)
    )
    for number in range(count):
        role = "prefill" if number % 2 else "decode"
        spec = ProcessSpec(
            "prefill" if number % 2 else "decode", number // 2, f"h{number}", "127.0.0.1", port,
            None, command(role), "log",
        )  # fmt: skip
        record = record_of(spec, log="/log", engine_id=f"e{number}")
        state = state.with_process(replace(record, ref=ref))
    return state


def status_of(count: int, server: Sshd, port: int, ref: ProcessRef) -> tuple[Status, float]:
    """Look at so many hosts as the command does, from the first login on."""
    # All of them compute on this machine, so none is given up soon.
    hosts = {f"h{n}": server.host(f"h{n}", connect_timeout=60.0) for n in range(count)}
    began = time.monotonic()
    try:
        assert connect_all(list(hosts.values())) == {}
        state = state_of(count, port, ref)
        found = asyncio.run(read_status(hosts, state, near_through(hosts)))
        return found, time.monotonic() - began
    finally:
        for host in hosts.values():
            host.close()


def test_64_slow_hosts_take_at_most_three_times_as_long_as_one(
    slow: Sshd, port: int, ref: ProcessRef
) -> None:
    one, slowest = status_of(1, slow, port, ref)
    assert one.healthy
    assert slowest >= WAIT_S
    all_, took = status_of(HOSTS, slow, port, ref)
    assert [role.problem for role in all_.roles if role.problem] == []
    assert len(all_.roles) == HOSTS
    print(f"{HOSTS} hosts took {took:.1f} s, one {slowest:.1f} s")
    if took > 3 * slowest:  # unless this machine has become busier meanwhile
        slowest = status_of(1, slow, port, ref)[1]
    assert took <= 3 * slowest, f"{HOSTS} hosts took {took:.1f} s, one {slowest:.1f} s"


def test_a_host_that_is_gone_holds_up_nobody(slow: Sshd) -> None:
    gone = SshHost("gone", slow.login(port=1), ssh=slow.host("x")._ssh)
    began = time.monotonic()
    errors = connect_all([gone, slow.host("there")])
    assert list(errors) == ["gone"]
    assert time.monotonic() - began < 3 * WAIT_S
