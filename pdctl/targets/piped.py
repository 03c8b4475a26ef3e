"""Waiting for a command on this machine: its output as it comes, and a limit that holds.

A command's children may keep its pipes open for ever, so the end of the command, not the end of
the pipes, ends the wait.
"""

import os
import selectors
import subprocess
import time
from contextlib import suppress
from typing import IO

from pdctl.targets.base import OutputSink

_CHUNK = 65536
_LAST_WORDS_S = 0.5  # how long output may still come after the command ended
_TICK_S = 0.1


class LimitPassedError(Exception):
    """The limit passed and the command still runs; carries what it said so far."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines


class _Stream:
    """One output of the command: everything it said, and its lines as they complete."""

    def __init__(self, pipe: IO[bytes], on_line: OutputSink | None) -> None:
        self.pipe = pipe
        self._on_line = on_line
        self._chunks: list[bytes] = []
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        if self._on_line is None:
            return
        # A carriage return ends a line too: that is how progress bars draw.
        *lines, self._rest = (self._rest + chunk).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            if line.strip():
                self._on_line(line.decode(errors="replace"))

    def finish(self) -> None:
        if self._on_line is not None and self._rest.strip():
            self._on_line(self._rest.decode(errors="replace"))
        self._rest = b""

    @property
    def text(self) -> str:
        return b"".join(self._chunks).decode(errors="replace")


def wait_for(
    process: "subprocess.Popen[bytes]",
    *,
    timeout: float,
    on_line: OutputSink | None,
    stdin: bytes | None,
) -> tuple[str, str]:
    """Feed `stdin`, gather both outputs, return them when the command has ended.

    Raises:
        LimitPassedError: at the limit; the command is left running for the caller to end.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = _Stream(process.stdout, on_line), _Stream(process.stderr, on_line)
    deadline = time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        for stream in (out, err):
            os.set_blocking(stream.pipe.fileno(), False)
            selector.register(stream.pipe, selectors.EVENT_READ, stream)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE, memoryview(stdin or b""))
        _pump(process, selector, deadline, (out, err))
    for stream in (out, err):
        stream.finish()
    return out.text, err.text


def _pump(
    process: "subprocess.Popen[bytes]",
    selector: selectors.BaseSelector,
    deadline: float,
    streams: tuple[_Stream, _Stream],
) -> None:
    ended_at: float | None = None
    while selector.get_map() or process.poll() is None:
        now = time.monotonic()
        if process.poll() is not None:
            ended_at = ended_at or now
            if now - ended_at > _LAST_WORDS_S:
                return
        elif now > deadline:
            raise LimitPassedError([line for s in streams for line in s.text.splitlines()])
        if not selector.get_map():
            time.sleep(0.01)  # it closed its outputs and still runs
        for key, _ in selector.select(_TICK_S) if selector.get_map() else ():
            _serve(selector, key)


def _serve(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    if isinstance(key.data, _Stream):
        chunk = os.read(key.fd, _CHUNK)
        if chunk:
            key.data.feed(chunk)
            return
        _drop(selector, key)
        return
    left: memoryview = key.data
    with suppress(BrokenPipeError):  # it does not want its input; what it says is the answer
        left = left[os.write(key.fd, left[:_CHUNK]) :] if left else left
        if left:
            selector.modify(key.fileobj, selectors.EVENT_WRITE, left)
            return
    _drop(selector, key)


def _drop(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    selector.unregister(key.fileobj)
    with suppress(OSError):
        key.fileobj.close()  # type: ignore[union-attr]
