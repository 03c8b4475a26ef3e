"""Ports of this machine that lead to servers a host can reach: engines listen on private addresses.

What connects to the local port is carried through the host's connection, as `ssh -L` does it.
"""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from pdctl.base.errors import PdctlError

_CHUNK = 65536
_BACKLOG = 64


class Stream(Protocol):
    """Both ends of what is carried: a socket, or a channel of the connection."""

    def recv(self, size: int, /) -> bytes: ...
    def sendall(self, content: bytes, /) -> object: ...
    def close(self) -> object: ...


Open = Callable[[], Stream]
"""Opens the way to the server. Raises PdctlError."""


class Forward:
    """One port that leads to one server, until it is closed.

    Attributes:
        port: on 127.0.0.1 of this machine.
    """

    def __init__(self, open_: Open) -> None:
        self._open = open_
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._streams: set[Stream] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End it with all that it carries."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            _end(stream)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        try:
            server = self._open()
        except PdctlError:
            client.close()  # who connected sees what it would without us: nobody there
            return
        pair: tuple[Stream, Stream] = (client, server)
        with self._lock:
            self._streams.update(pair)
        back = threading.Thread(target=_pump, args=(server, client), daemon=True)
        back.start()
        _pump(client, server)
        back.join()
        with self._lock:
            self._streams.difference_update(pair)
        for stream in pair:
            _end(stream)


def _pump(source: Stream, sink: Stream) -> None:
    """Carry one way to its end, then tell the other side; the way back may go on."""
    with suppress(OSError, EOFError):
        while content := source.recv(_CHUNK):
            sink.sendall(content)
    with suppress(OSError, EOFError, AttributeError):
        if isinstance(sink, socket.socket):
            sink.shutdown(socket.SHUT_WR)
        else:
            sink.shutdown_write()  # type: ignore[attr-defined]


def _end(stream: Stream) -> None:
    with suppress(OSError, EOFError):
        if isinstance(stream, socket.socket):
            stream.shutdown(socket.SHUT_RDWR)
    with suppress(OSError, EOFError):
        stream.close()
