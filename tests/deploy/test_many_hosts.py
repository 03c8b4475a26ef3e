"""`status` over 64 slow hosts takes about as long as over one; all above the encryption is real.

A connection is a pair of sockets. It is there after `LOGIN_S`, and each thing that is asked is
answered after `ANSWER_S`; what answers is the code that runs on hosts, in threads of this process.
"""

import asyncio
import http.server
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, cast

import pytest

from pdctl.base.command import command
from pdctl.base.errors import UnreachableError
from pdctl.base.process import ProcessRef, ProcessSpec, RoleName
from pdctl.deploy.reach import near_through
from pdctl.observe.status import Status, read_status
from pdctl.state.model import DeploymentState, Intervals, record_of
from pdctl.targets.local import LocalHost
from pdctl.targets.ssh.access import Login, Route
from pdctl.targets.ssh.connect import Links
from pdctl.targets.ssh.far import Service
from pdctl.targets.ssh.host import SshHost, connect_all
from tests.targets.sshd import nobodys_ssh

HOSTS = 64
LOGIN_S = 1.0
ANSWER_S = 0.3


class Answering(Service):
    """One of several in a process, which goes on when it ends; takes its time."""

    def _answer(self, *asked: Any) -> None:
        time.sleep(ANSWER_S)
        super()._answer(*asked)

    def _watch(self) -> None:
        pass

    def _end(self) -> None:
        pass


class Pipe:
    """The near end of a connection to a host."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._near.settimeout(10)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with self._far, self._far.makefile("rb") as stream:
            stream.read(int(stream.readline()))  # the program, in whose place we answer
            Answering("far", stream.read1, self._far.fileno()).serve()

    def receive(self, size: int) -> bytes:
        return self._near.recv(size)

    def send(self, content: bytes) -> None:
        self._near.sendall(content)

    def last_words(self) -> tuple[int | None, str]:
        return None, ""

    def close(self) -> None:
        self._near.shutdown(socket.SHUT_RDWR)
        self._near.close()


class Link:
    """A login."""

    def execute(self, line: str, limit: float) -> Pipe:
        return Pipe()

    def connect_to(self, address: str, port: int, limit: float) -> socket.socket:
        time.sleep(ANSWER_S)
        return socket.create_connection((address, port))

    def close(self) -> None:
        pass


class SlowLinks:
    """Logs in slowly; `gone` cannot be reached."""

    def open(self, route: Route) -> Link:
        time.sleep(LOGIN_S)
        if route.hops[-1].asked == "gone":
            raise UnreachableError("it does not answer", where="gone")
        return Link()


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
    spec = ProcessSpec("decode", 0, "h", "127.0.0.1", 1, None, command("sleep", "600"), "log")
    started = here.start(spec, PurePosixPath(tmp_path / "log"))
    yield started
    here.stop(started, timeout=1)


def state_of(names: list[str], port: int, ref: ProcessRef) -> DeploymentState:
    state = DeploymentState(
        "many", "ssh", "running", "0", "/pd.yaml", "d", 0.0, 20.0, Intervals(480.0, 472.0)
    )
    for number, name in enumerate(names):
        role: RoleName = "prefill" if number % 2 else "decode"
        spec = ProcessSpec(
            role, number // 2, name, "127.0.0.1", port, None, command("engine"), "log"
        )
        record = record_of(spec, log="/log", engine_id=f"e{number}")
        state = state.with_process(replace(record, ref=ref))
    return state


def status_of(folder: Path, names: list[str], port: int, ref: ProcessRef) -> tuple[Status, float]:
    """Look at so many hosts as the command does, from the first login on."""
    ssh = nobodys_ssh(folder)
    links = cast(Links, SlowLinks())
    hosts = {name: SshHost(name, Login(name), links=links, ssh=ssh) for name in names}
    began = time.monotonic()
    try:
        errors = connect_all(list(hosts.values()))
        assert list(errors) == [name for name in names if name == "gone"]
        found = asyncio.run(read_status(hosts, state_of(names, port, ref), near_through(hosts)))
        return found, time.monotonic() - began
    finally:
        for host in hosts.values():
            host.close()


@pytest.mark.skipif(shutil.which("ssh") is None, reason="`ssh` is not installed")
def test_64_slow_hosts_take_at_most_three_times_as_long_as_one(
    tmp_path: Path, port: int, ref: ProcessRef
) -> None:
    one, slowest = status_of(tmp_path, ["h0"], port, ref)
    assert one.healthy
    assert slowest >= LOGIN_S + ANSWER_S
    names = [f"h{number}" for number in range(HOSTS - 1)] + ["gone"]
    found, took = status_of(tmp_path, names, port, ref)
    print(f"{HOSTS} hosts took {took:.1f} s, one {slowest:.1f} s")
    assert [role.host for role in found.roles if role.problem] == ["gone"]
    assert len(found.roles) == HOSTS
    assert took <= 3 * slowest, f"{HOSTS} hosts took {took:.1f} s, one {slowest:.1f} s"
