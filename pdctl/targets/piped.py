"""Waiting for a command on this machine: its output as it comes, and a limit that holds.

A command's children may keep its pipes open for ever, so the end of the command, not the end of
the pipes, ends the wait.
"""

import os
import selectors
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO

from pdctl.targets.base import OutputSink

_CHUNK = 65536
_LAST_WORDS_S = 0.5  # how long output may still come after the command ended
_TICK_S = 0.1
_LONGEST_LINE = 65536  # then it is told in parts, so that a line without end costs no memory

Take = Callable[[bytes], None]
"""Gets output as it comes."""
Check = Callable[[], None]
"""Raises when there is no more use in waiting."""


def go_on() -> None:
    """Wait for as long as it takes."""


class LimitPassedError(Exception):
    """The limit passed and the command still runs."""


class Collected:
    """One output of a command: everything it said, and its lines as they complete."""

    def __init__(self, on_line: OutputSink | None = None) -> None:
        self._on_line = on_line
        self._chunks: list[bytes] = []
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        """Take what the command said."""
        self._chunks.append(chunk)
        if self._on_line is None:
            return
        # A carriage return ends a line too: that is how progress bars draw.
        *lines, self._rest = (self._rest + chunk).replace(b"\r", b"\n").split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            if line.strip():
                self._on_line(line.decode(errors="replace"))

    def finish(self) -> None:
        """Tell a last line that has no end."""
        if self._on_line is not None and self._rest.strip():
            self._on_line(self._rest.decode(errors="replace"))
        self._rest = b""

    @property
    def text(self) -> str:
        """All of it; bytes that are not UTF-8 are replaced."""
        return b"".join(self._chunks).decode(errors="replace")


class _Stream:
    """One pipe of the command, and who takes what comes."""

    def __init__(self, pipe: IO[bytes], take: Take) -> None:
        self.pipe = pipe
        self.take = take


def wait_for(
    process: "subprocess.Popen[bytes]",
    *,
    timeout: float,
    out: Take,
    err: Take,
    stdin: bytes | None,
    check: Check = go_on,
) -> None:
    """Feed `stdin` and give both outputs to their takers until the command has ended.

    What a taker raises ends the wait too, as does what `check` raises, which is asked all the time.

    Raises:
        LimitPassedError: at the limit; the command is left running for the caller to end.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    deadline = time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        for stream in (_Stream(process.stdout, out), _Stream(process.stderr, err)):
            os.set_blocking(stream.pipe.fileno(), False)
            selector.register(stream.pipe, selectors.EVENT_READ, stream)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE, memoryview(stdin or b""))
        _pump(process, selector, deadline, check)


def _pump(
    process: "subprocess.Popen[bytes]",
    selector: selectors.BaseSelector,
    deadline: float,
    check: Check,
) -> None:
    ended_at: float | None = None
    while selector.get_map() or process.poll() is None:
        check()
        now = time.monotonic()
        if process.poll() is not None:
            ended_at = ended_at or now
            if now - ended_at > _LAST_WORDS_S:
                return
        elif now > deadline:
            raise LimitPassedError
        if not selector.get_map():
            time.sleep(0.01)  # it closed its outputs and still runs
        for key, _ in selector.select(_TICK_S) if selector.get_map() else ():
            _serve(selector, key)


def _serve(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    if isinstance(key.data, _Stream):
        chunk = os.read(key.fd, _CHUNK)
        if chunk:
            key.data.take(chunk)
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
