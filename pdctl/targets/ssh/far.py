"""The far side: runs on the host and is `LocalHost` there, for calls that come in frames.

Sent over the connection at every login, with the modules it needs (`bundle`): nothing is installed,
and what a host does is the very code that this machine runs. It ends with the connection, and the
commands it waits for end with it; processes that were started stay. Standard library only,
Python 3.9 or newer.
"""

import hashlib
import io
import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Any, cast

from pdctl.base.command import Command, Secret
from pdctl.base.errors import PdctlError, TemporaryError
from pdctl.base.process import ProcessRef
from pdctl.targets import piped
from pdctl.targets.local import LocalHost
from pdctl.targets.ssh import claim, frames
from pdctl.targets.ssh.frames import Frame

SILENCE_S = 600.0
"""So long without a word, and the near side is taken for gone; it says something all the time."""

_WATCH_S = 5.0
_QUEUED = 64
_LOOK_S = 0.2

Args = Mapping[str, Any]


class _CancelledError(Exception):
    """The near side wants no answer any more, or is gone."""


class Call:
    """One call that is being answered."""

    def __init__(self, number: int, send: Callable[[Frame], None]) -> None:
        self._number, self._send = number, send
        self._inbox: queue.Queue[bytes] = queue.Queue(_QUEUED)
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """End it at its next look."""
        self._cancelled.set()

    def check(self) -> None:
        """Raise when it was cancelled."""
        if self._cancelled.is_set():
            raise _CancelledError

    def put(self, chunk: bytes) -> None:
        """Content that came with it; waits while there is enough, unless nobody wants it."""
        while not self._cancelled.is_set():
            try:
                self._inbox.put(chunk, timeout=_LOOK_S)
                return
            except queue.Full:
                continue

    def content(self) -> Iterator[bytes]:
        """What was sent with it, to the end."""
        while True:
            self.check()
            try:
                chunk = self._inbox.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
            if not chunk:
                return
            yield chunk

    def out(self, chunk: bytes) -> None:
        """Send content back."""
        self.check()
        self._send(Frame(self._number, frames.OUT, chunk))

    def err(self, chunk: bytes) -> None:
        """Send what a command says on its other output."""
        self.check()
        self._send(Frame(self._number, frames.ERR, chunk))


# --- what can be asked ---------------------------------------------------------------------------


def _run(host: LocalHost, call: Call, args: Args) -> object:
    stdin = b"".join(call.content()) if args["stdin"] else None
    began = time.monotonic()
    try:
        status = host.pump(
            command_of(args["command"]),
            timeout=args["timeout"],
            out=call.out,
            err=call.err,
            stdin=stdin,
            check=call.check,
        )
    except piped.LimitPassedError:
        return {"status": None}
    return {"status": status, "seconds": time.monotonic() - began}


def _write(host: LocalHost, call: Call, args: Args) -> object:
    host.write_chunks(_path(args), _verified(call.content(), args["digest"]), mode=args["mode"])
    return None


def _verified(chunks: Iterator[bytes], digest: str) -> Iterator[bytes]:
    found = hashlib.sha256()
    for chunk in chunks:
        found.update(chunk)
        yield chunk
    if found.hexdigest() != digest:
        raise TemporaryError("the content arrived damaged; the old file was kept")


def _read(host: LocalHost, call: Call, args: Args) -> object:
    chunks = host.read_chunks(_path(args), limit=args["limit_bytes"])
    if chunks is None:
        return None
    found = hashlib.sha256()
    for chunk in chunks:
        found.update(chunk)
        call.out(chunk)
    return found.hexdigest()


def _launch(host: LocalHost, call: Call, args: Args) -> object:
    return asdict(host.launch(command_of(args["command"]), PurePosixPath(args["log"])))


def _kept(host: LocalHost, call: Call, args: Args) -> object:
    found = host.kept(ProcessRef(**args["ref"]))
    return None if found is None else asdict(found)


def _stop(host: LocalHost, call: Call, args: Args) -> object:
    return host.stop(ProcessRef(**args["ref"]), timeout=args["timeout"])


_claims = claim.Claims()

_OPERATIONS: Mapping[str, Callable[[LocalHost, Call, Args], object]] = {
    "run": _run,
    "write": _write,
    "read": _read,
    "exists": lambda host, call, args: host.exists(_path(args)),
    "remove": lambda host, call, args: host.remove_tree(_path(args)),
    "free": lambda host, call, args: host.free_bytes(_path(args)),
    "launch": _launch,
    "alive": lambda host, call, args: host.alive(ProcessRef(**args["ref"])),
    "kept": _kept,
    "stop": _stop,
    "find": lambda host, call, args: [asdict(each) for each in host.find(args["mark"])],
    "port_holder": lambda host, call, args: host.port_holder(args["address"], args["port"]),
    "choose_port": lambda host, call, args: host.choose_port(args["address"]),
    "inherited_env": lambda host, call, args: dict(host.inherited_env()),
    "claim": lambda host, call, args: _claims.take(args["claimed"], args["who"]),
}


def _path(args: Args) -> PurePosixPath:
    return PurePosixPath(args["path"])


# --- commands and errors on the wire -------------------------------------------------------------


def wire_of(command: Command) -> Args:
    """A command for the far side; what is secret stays known to be."""
    return {
        "parts": [_wire_part(part) for part in command.parts],
        "env": {name: _wire_part(value) for name, value in command.env.items()},
        "cwd": command.cwd,
    }


def command_of(wire: Args) -> Command:
    """The command again."""
    return Command(
        parts=tuple(_part(each) for each in wire["parts"]),
        env={name: _part(each) for name, each in wire["env"].items()},
        cwd=wire["cwd"],
    )


def _wire_part(part: object) -> object:
    return [part.value] if isinstance(part, Secret) else part


def _part(wire: Any) -> Any:
    return Secret(wire[0]) if isinstance(wire, list) else wire


def failure_of(error: BaseException) -> Args:
    """An error for the near side, which makes the same one of it."""
    if isinstance(error, PdctlError):
        return {
            "class": type(error).__name__,
            "message": error.message,
            "where": error.where,
            "expected": error.expected,
            "hints": error.hints,
            "detail": error.detail,
        }
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    return {"class": "BugError", "message": f"{error!r}", "detail": "".join(lines).splitlines()}


# --- the service ---------------------------------------------------------------------------------


class Service:
    """Answers calls, each in a thread of its own, until the connection ends."""

    def __init__(self, name: str, receive: Callable[[int], bytes], out: int) -> None:
        self._host = LocalHost(name)
        self._receive, self._out = receive, out
        self._lock = threading.Lock()
        self._calls: dict[int, Call] = {}
        self._heard = time.monotonic()

    def serve(self) -> None:
        """Say hello, then answer."""
        os.write(self._out, frames.MAGIC)
        hello = {"python": sys.version.split()[0], "user": os.getuid(), "pid": os.getpid()}
        self._send(Frame(0, frames.DONE, json.dumps(hello).encode()))
        threading.Thread(target=self._watch, daemon=True).start()
        try:
            for frame in frames.read(self._receive):
                self._heard = time.monotonic()
                self._take(frame)
        except (OSError, frames.BrokenFrameError):
            pass  # the connection is gone
        finally:
            self._end()

    def _take(self, frame: Frame) -> None:
        call = self._calls.get(frame.call)
        if frame.kind == frames.CALL:
            call = self._calls[frame.call] = Call(frame.call, self._send)
            work = (frame.call, call, json.loads(frame.body))
            threading.Thread(target=self._answer, args=work, daemon=True).start()
        elif frame.kind == frames.PING:
            self._send(Frame(0, frames.PONG, b""))
        elif call is not None and frame.kind == frames.DATA:
            call.put(frame.body)
        elif call is not None and frame.kind == frames.CANCEL:
            call.cancel()

    def _answer(self, number: int, call: Call, asked: Args) -> None:
        kind = frames.DONE
        try:
            answer: object = _OPERATIONS[asked["what"]](self._host, call, asked)
        except BaseException as error:
            kind, answer = frames.FAIL, failure_of(error)
        call.cancel()  # what still comes for it is dropped
        self._calls.pop(number, None)
        with suppress(OSError):  # nobody may be there to hear it
            self._send(Frame(number, kind, json.dumps(answer).encode()))

    def _send(self, frame: Frame) -> None:
        left = memoryview(frames.pack(frame))
        with self._lock:
            while left:
                left = left[os.write(self._out, left) :]

    def _watch(self) -> None:
        while time.monotonic() - self._heard < SILENCE_S:
            time.sleep(_WATCH_S)
        self._end()

    def _end(self) -> None:
        for call in list(self._calls.values()):
            call.cancel()
        self._host.end_running()
        deadline = time.monotonic() + _WATCH_S  # for a file that is half written to be removed
        while self._calls and time.monotonic() < deadline:
            time.sleep(0.02)
        os._exit(0)


def main(name: str) -> None:
    """Serve on the two standard streams; whatever else would write there cannot."""
    out = os.dup(1)
    os.dup2(2, 1)
    # The same reader that read this script: it may hold what came right after it.
    stdin = cast(io.BufferedReader, sys.stdin.buffer)
    Service(name, stdin.read1, out).serve()
