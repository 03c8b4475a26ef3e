"""Many slow hosts are looked at in about the time of one; all above the encryption is real.

A connection is a pair of sockets. It is there after `LOGIN_S`, and each thing that is asked is
answered after `ANSWER_S`, or what the test says; what answers is the code that runs on hosts, in
threads of this process.
"""

import asyncio
import http.server
import shutil
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, cast

import pytest
import yaml

from pdctl.base.command import command
from pdctl.base.errors import NotFoundError, UnreachableError
from pdctl.base.process import ProcessRef, ProcessSpec, RoleName
from pdctl.deploy import facts, local
from pdctl.deploy.prepare.router import ROUTER_TASK
from pdctl.deploy.prepare.task import Task
from pdctl.deploy.reach import near_through
from pdctl.deploy.world import World
from pdctl.observe.status import Status, read_status
from pdctl.plan.facts import Facts
from pdctl.render.check import load_checked
from pdctl.render.model import SHOWN
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

    pause = ANSWER_S

    def _answer(self, *asked: Any) -> None:
        time.sleep(self.pause)
        super()._answer(*asked)

    def _watch(self) -> None:
        pass

    def _end(self) -> None:
        pass


class Pipe:
    """The near end of a connection to a host."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._near, self._far = socket.socketpair()
        self._near.settimeout(10)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with self._far, self._far.makefile("rb") as stream:
            stream.read(int(stream.readline()))  # the program, in whose place we answer
            service = Answering("far", stream.read1, self._far.fileno())
            service.pause = self._pause
            service.serve()

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

    def __init__(self, pause: float) -> None:
        self._pause = pause

    def execute(self, line: str, limit: float) -> Pipe:
        return Pipe(self._pause)

    def connect_to(self, address: str, port: int, limit: float) -> socket.socket:
        time.sleep(self._pause)
        return socket.create_connection((address, port))

    def close(self) -> None:
        pass


class SlowLinks:
    """Logs in slowly; `gone` cannot be reached.

    Args:
        pauses: by host, where it is not `ANSWER_S`.
    """

    def __init__(self, pauses: Mapping[str, float] | None = None) -> None:
        self._pauses = pauses or {}

    def open(self, route: Route) -> Link:
        time.sleep(LOGIN_S)
        name = route.hops[-1].asked
        if name == "gone":
            raise UnreachableError("it does not answer", where="gone")
        return Link(self._pauses.get(name, ANSWER_S))


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
    for _ in range(2):  # 64 logins keep two cores busy: what else runs there must not decide
        found, took = status_of(tmp_path, names, port, ref)
        print(f"{HOSTS} hosts took {took:.1f} s, one {slowest:.1f} s")
        assert [role.host for role in found.roles if role.problem] == ["gone"]
        assert len(found.roles) == HOSTS
        if took <= 3 * slowest:
            return
    pytest.fail(f"{HOSTS} hosts took {took:.1f} s, one {slowest:.1f} s")


QUICK_S, SLOW_S = 0.02, 0.16
NO_ROUTER = Task(ROUTER_TASK, "", "", (), look=lambda host: "", apply=lambda host, tell: None)
"""So that the router's environment is not looked for."""


def facts_of(folder: Path, pauses: Mapping[str, float], port: int, model: str) -> Facts:
    """What `plan` and `up` find on these hosts, the last of which is the router's."""
    *engines, router = pauses
    half = len(engines) // 2
    document = {
        "name": "many",
        "model": {"id": model},
        "engine": {"install": "existing", "python": "sh", "vllm": "0.33.0"},
        "kv": {"bidirectional": True},
        "target": {
            "kind": "ssh",
            "port": port,
            "base_dir": str(folder / "base"),
            "hosts": {
                "prefill": [{"address": name} for name in engines[:half]],
                "decode": [{"address": name} for name in engines[half:]],
                "router": [{"address": router}],
            },
        },
        "router": {"kind": "pdctl"},
    }
    file = folder / "pd.yaml"
    file.write_text(yaml.safe_dump(document))
    config = load_checked(file).config
    wanted = local.wanted_of(config, file, local.read_secrets(config))
    ssh, links = nobodys_ssh(folder), cast(Links, SlowLinks(pauses))
    hosts = {name: SshHost(name, Login(name), links=links, ssh=ssh) for name in pauses}
    here = [replace(s, address="127.0.0.1") for s in wanted.rendered(SHOWN).processes]
    deployment = replace(wanted.rendered(SHOWN), processes=tuple(here))
    try:
        assert connect_all(list(hosts.values())) == {}
        return facts.gather(World(hosts), config, deployment, None, marks="none", tasks=[NO_ROUTER])
    finally:
        for host in hosts.values():
            host.close()


@pytest.mark.skipif(shutil.which("ssh") is None, reason="`ssh` is not installed")
def test_hosts_are_looked_at_at_once_and_told_in_the_files_order(tmp_path: Path, port: int) -> None:
    began = time.monotonic()
    facts_of(tmp_path, {"slow": SLOW_S, "h1": QUICK_S, "h2": QUICK_S}, port, "a/model")
    few = time.monotonic() - began
    pauses = {"slow": SLOW_S, **{f"h{n}": SLOW_S / 2 for n in range(12)}, "router": QUICK_S}
    began = time.monotonic()
    found = facts_of(tmp_path, pauses, port, "a/model")
    took = time.monotonic() - began
    print(f"{len(pauses)} hosts took {took:.1f} s, three with the slowest {few:.1f} s")
    assert took <= 1.5 * few
    # Others may run here, on the ports that engines usually have.
    assert [each.process for each in found.held_ports if each.port == port] == [
        *(f"prefill-{n}" for n in range(6)),
        *(f"decode-{n}" for n in range(7)),
    ]


@pytest.mark.skipif(shutil.which("ssh") is None, reason="`ssh` is not installed")
def test_of_several_hosts_without_the_model_the_first_in_the_file_is_named(
    tmp_path: Path, port: int
) -> None:
    with pytest.raises(NotFoundError) as told:
        facts_of(tmp_path, {"slow": SLOW_S, "h1": QUICK_S, "h2": QUICK_S}, port, "/no/such/model")
    assert told.value.where is not None
    assert told.value.where.startswith("slow")
