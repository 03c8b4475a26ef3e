"""Ports that lead to servers which only the host can reach."""

import http.client
import http.server
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from pdctl.base.errors import PermissionDeniedError, UnreachableError
from pdctl.deploy.probe import probe
from pdctl.targets.ssh.forward import Forward
from pdctl.targets.ssh.host import SshHost
from tests.targets.programs import wait_until
from tests.targets.sshd import Sshd, running_sshd

BODY = os.urandom(300_000)


class _Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def server(port: int = 0) -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), _Echo) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        try:
            yield running.server_address[1]
        finally:
            running.shutdown()


def get(port: int, body: bytes | None = None) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET" if body is None else "POST", "/", body)
        return connection.getresponse().read()
    finally:
        connection.close()


def test_a_forward_carries_both_ways_for_many_at_once(ssh_host: SshHost) -> None:
    with server() as port:
        near = ssh_host.forward("127.0.0.1", port)
        assert ssh_host.forward("127.0.0.1", port) == near
        assert get(near) == BODY
        with ThreadPoolExecutor(16) as pool:
            assert set(
                pool.map(lambda n: get(near, BODY[: n + 1]) == BODY[: n + 1], range(64))
            ) == {True}


def test_nobody_there_is_nobody_there_until_somebody_is(ssh_host: SshHost) -> None:
    with server() as port:
        pass
    near = ssh_host.forward("127.0.0.1", port)
    assert probe(f"http://127.0.0.1:{near}/health") is not None
    with server(port):
        assert probe(f"http://127.0.0.1:{near}/health") is None


def test_a_forward_survives_its_connection(tmp_path: Path) -> None:
    with server() as port:
        with running_sshd(tmp_path / "s") as first:
            host = first.host()
            near = host.forward("127.0.0.1", port)
            assert get(near) == BODY
        with pytest.raises((OSError, http.client.HTTPException)):
            get(near)
        with running_sshd(tmp_path / "s", port=first.port):
            wait_until(lambda: probe(f"http://127.0.0.1:{near}/") is None, limit=20)
            assert host.forward("127.0.0.1", port) == near
        host.close()
    with pytest.raises(ConnectionRefusedError):
        get(near)


def test_a_server_that_forwards_nothing_says_so(tmp_path: Path) -> None:
    with running_sshd(tmp_path / "s", more="AllowTcpForwarding no") as sshd:
        host = sshd.host()
        with pytest.raises(PermissionDeniedError, match=r"does not connect to 127.0.0.1:9"):
            host.forward("127.0.0.1", 9)
        host.close()


def test_a_host_that_cannot_be_reached_forwards_nothing(sshd: Sshd) -> None:
    host = sshd.host(port=1)
    with pytest.raises(UnreachableError):
        host.forward("127.0.0.1", 80)


def test_closing_ends_what_is_carried() -> None:
    ours, theirs = socket.socketpair()
    forward = Forward(lambda: theirs)
    client = socket.create_connection(("127.0.0.1", forward.port))
    client.sendall(b"x")
    assert ours.recv(1) == b"x"
    forward.close()
    assert client.recv(1) == b""
    assert ours.recv(1) == b""
    client.close()
    ours.close()
