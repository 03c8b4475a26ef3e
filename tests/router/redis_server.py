"""A real redis-server on a free port of loopback, for one test or for many."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pytest
import redis

needs_redis_server = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="redis-server is not installed"
)


class RedisServer:
    """Starts at once; what it saves lies in `folder`."""

    def __init__(self, folder: Path, *options: str, port: int | None = None) -> None:
        self.folder, self.options = folder, options
        self.port = port or _free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    def start(self) -> None:
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port)]
        command += ["--dir", str(self.folder), "--save", "", "--repl-diskless-sync-delay", "0"]
        with (self.folder / "redis.log").open("ab") as output:
            self.process = subprocess.Popen(
                [*command, *self.options], stdout=output, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + 10
        while True:
            try:
                with self.client() as client:
                    client.ping()
                return
            except redis.RedisError:
                assert time.monotonic() < deadline, (self.folder / "redis.log").read_text()
                assert self.process.poll() is None, (self.folder / "redis.log").read_text()
                time.sleep(0.02)

    @contextlib.contextmanager
    def client(self) -> Iterator["redis.Redis"]:
        """A client that has nothing to do with the one under test."""
        client = redis.Redis(port=self.port, socket_timeout=5)
        try:
            yield client
        finally:
            client.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def __enter__(self) -> "RedisServer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.kill()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
