"""The near side: calls to the far side of one host, from any number of threads at once."""

import itertools
import json
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from pdctl.base import errors
from pdctl.base.errors import (
    BadAnswerError,
    BugError,
    PdctlError,
    PermissionDeniedError,
    UnreachableError,
)
from pdctl.targets.ssh import bundle, frames
from pdctl.targets.ssh.frames import Frame, Unpacker

PING_S = 15.0
SILENCE_S = 45.0
"""So long without any word of the host, and the connection is taken for lost."""
CANCEL_LIMIT_S = 15.0
ANSWER_S = 60.0
"""Limit of calls that a healthy host answers at once; a slow disk may take a while."""

_NOISE = 262144  # of login scripts
_SAID = 4  # last lines of a far side that never was

Take = Callable[[bytes], None]


class Pipe(Protocol):
    """A command that runs on the host, as far as the near side needs it."""

    def receive(self, size: int) -> bytes:
        """What came; empty at the end. Raises TimeoutError after a few seconds without any."""
        ...

    def send(self, content: bytes) -> None:
        """Send all. Raises TimeoutError when the host takes nothing for long, or OSError."""
        ...

    def last_words(self) -> tuple[int | None, str]:
        """After the end: exit status, None when the connection broke, and what it complained."""
        ...

    def close(self) -> None:
        """End the command, by ending what it reads."""
        ...


class Near:
    """One far side that answers.

    Raises (from every call):
        UnreachableError: the connection was lost; it is `lost` from then on.
    """

    def __init__(self, pipe: Pipe, name: str, *, limit: float) -> None:
        """Start the far side on the other end of the pipe.

        Args:
            name: how messages name the host.
            limit: seconds until it must have said hello.

        Raises:
            UnreachableError, BadAnswerError, PermissionDeniedError: it did not come to be.
        """
        self._pipe, self._name = pipe, name
        self._sending, self._numbers = threading.Lock(), itertools.count(1)
        self._waiting: dict[int, queue.SimpleQueue[Frame | None]] = {}
        self._heard = time.monotonic()
        self._why: PdctlError | None = None
        self._hello: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._waiting[0] = self._hello
        self._reader = threading.Thread(target=self._read, name=f"ssh {name}", daemon=True)
        self._reader.start()
        try:
            self._start(limit)
        except BaseException:
            self.close()
            raise

    def _start(self, limit: float) -> None:
        with suppress(OSError):  # what it said instead is more telling
            self._pipe.send(bundle.first_words(self._name))
        try:
            hello = self._hello.get(timeout=limit)
        except queue.Empty:
            raise UnreachableError(
                f"the host let us in, but Python did not start on it within {limit:g} s",
                where=self._name,
            ) from None
        if hello is None:
            raise self._why or self._lost_error()
        self.greeting: Mapping[str, Any] = json.loads(hello.body)

    @property
    def lost(self) -> bool:
        """True when no call can be answered any more."""
        return self._why is not None

    def call(
        self,
        what: str,
        *,
        limit: float = ANSWER_S,
        content: bytes | None = None,
        out: Take | None = None,
        err: Take | None = None,
        **args: Any,
    ) -> Any:
        """Ask, and wait for the answer.

        Args:
            what, args: the operation of `far` and what it takes.
            limit: seconds that may pass without a word about this call.
            content: bytes that go with it.
            out, err: get bytes as they come; what they raise cancels the call.

        Raises:
            PdctlError: the far side's error, as it raised it there.
        """
        number = next(self._numbers)
        inbox: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._waiting[number] = inbox
        try:
            self._ask(number, json.dumps({"what": what, **args}).encode(), content, inbox)
            try:
                return self._answer(inbox, limit, out, err)
            except BaseException as error:
                # Also Ctrl-C: nothing of the call may be left on the host.
                if not isinstance(error, _AnsweredError):
                    self._cancel(number, inbox)
                    raise
                raise error.answer from None
        finally:
            self._waiting.pop(number, None)

    def close(self) -> None:
        """End the far side, and with it the commands it still waits for."""
        self._fail(UnreachableError("the connection was closed", where=self._name))
        self._pipe.close()
        if threading.current_thread() is not self._reader:
            self._reader.join(PING_S)

    # --- one call -----------------------------------------------------------------------

    def _ask(
        self,
        number: int,
        asked: bytes,
        content: bytes | None,
        inbox: "queue.SimpleQueue[Frame | None]",
    ) -> None:
        self._send(Frame(number, frames.CALL, asked))
        if content is None:
            return
        for chunk in frames.chunks(content):
            if not inbox.empty():
                return  # it was refused before all was sent
            self._send(Frame(number, frames.DATA, chunk))
        self._send(Frame(number, frames.DATA, b""))

    def _answer(
        self,
        inbox: "queue.SimpleQueue[Frame | None]",
        limit: float,
        out: Take | None,
        err: Take | None,
    ) -> Any:
        while True:
            frame = self._next(inbox, limit)
            if frame.kind == frames.DONE:
                return json.loads(frame.body)
            if frame.kind == frames.FAIL:
                raise _AnsweredError(error_of(json.loads(frame.body)))
            take = out if frame.kind == frames.OUT else err
            if take is not None:
                take(frame.body)

    def _next(self, inbox: "queue.SimpleQueue[Frame | None]", limit: float) -> Frame:
        if self._why is not None and inbox.empty():
            raise _AnsweredError(self._lost_error())
        try:
            frame = inbox.get(timeout=limit)
        except queue.Empty:
            self._fail(
                UnreachableError(f"the host did not answer within {limit:g} s", where=self._name)
            )
            self._pipe.close()
            raise _AnsweredError(self._lost_error()) from None
        if frame is None:
            raise _AnsweredError(self._lost_error())
        return frame

    def _cancel(self, number: int, inbox: "queue.SimpleQueue[Frame | None]") -> None:
        with suppress(PdctlError, _AnsweredError):
            self._send(Frame(number, frames.CANCEL, b""))
            while self._next(inbox, CANCEL_LIMIT_S).kind not in (frames.DONE, frames.FAIL):
                pass

    def _send(self, frame: Frame) -> None:
        if self._why is not None:
            raise self._lost_error()
        try:
            with self._sending:
                self._pipe.send(frames.pack(frame))
        except OSError as error:
            reason = "takes nothing any more" if isinstance(error, TimeoutError) else str(error)
            self._fail(UnreachableError(f"the connection was lost: {reason}", where=self._name))
            raise self._lost_error() from error

    # --- what comes ---------------------------------------------------------------------

    def _read(self) -> None:
        try:
            unpacker = self._find_start()
            while unpacker is not None:
                more = self._receive()
                if not more:
                    break
                self._deliver(unpacker, more)
            self._fail(self._ended())
        except frames.BrokenFrameError:
            self._fail(UnreachableError("the far side speaks another language", where=self._name))
        except Exception as error:  # a reader that dies in silence would leave its callers waiting
            self._fail(UnreachableError(f"the connection was lost: {error}", where=self._name))

    def _find_start(self) -> Unpacker | None:
        """Skip what login scripts say; None when it ends before anything else."""
        noise = b""
        while frames.MAGIC not in noise:
            more = self._receive()
            if not more:
                return None
            noise += more
            if len(noise) > _NOISE:
                raise frames.BrokenFrameError
        unpacker = Unpacker()
        self._deliver(unpacker, noise.partition(frames.MAGIC)[2])
        return unpacker

    def _deliver(self, unpacker: Unpacker, more: bytes) -> None:
        for frame in unpacker.feed(more):
            inbox = self._waiting.get(frame.call)
            if inbox is not None and frame.kind != frames.PONG:
                inbox.put(frame)

    def _receive(self) -> bytes:
        """What came, with a ping now and then; empty at the end, also when it is silent."""
        pinged = time.monotonic()
        while True:
            try:
                more = self._pipe.receive(65536)
            except TimeoutError:
                now = time.monotonic()
                if now - self._heard > SILENCE_S:
                    raise OSError(f"no word for {SILENCE_S:g} s") from None
                if now - pinged > PING_S and self._sending.acquire(blocking=False):
                    pinged = now
                    try:
                        self._pipe.send(frames.pack(Frame(0, frames.PING, b"")))
                    finally:
                        self._sending.release()
                continue
            self._heard = time.monotonic()
            return more

    def _fail(self, why: PdctlError) -> None:
        """Whoever waits is told; the first reason stands."""
        if self._why is None:
            self._why = why
        for inbox in list(self._waiting.values()):
            inbox.put(None)

    def _lost_error(self) -> PdctlError:
        why = self._why or UnreachableError("the connection was lost", where=self._name)
        return type(why)(
            why.message, where=why.where, expected=why.expected, hints=why.hints, detail=why.detail
        )

    def _ended(self) -> PdctlError:
        status, said = self._pipe.last_words()
        return explain_end(self._name, status, said, started=hasattr(self, "greeting"))


class _AnsweredError(Exception):
    """Carries an error that needs no cancelling."""

    def __init__(self, answer: PdctlError) -> None:
        super().__init__()
        self.answer = answer


def error_of(failure: Mapping[str, Any]) -> PdctlError:
    """The error that the far side raised."""
    kind = getattr(errors, str(failure.get("class")), BugError)
    if not (isinstance(kind, type) and issubclass(kind, PdctlError)):
        kind = BugError
    return kind(
        str(failure.get("message")),
        where=failure.get("where"),
        expected=failure.get("expected"),
        hints=failure.get("hints") or (),
        detail=failure.get("detail") or (),
    )


def explain_end(name: str, status: int | None, said: str, *, started: bool) -> PdctlError:
    """Why the far side ended. Pure.

    Args:
        status: its exit status; None when the connection broke.
        said: what it or the login shell wrote to stderr.
        started: whether it had said hello.
    """
    lines = [line.strip() for line in said.splitlines() if line.strip()][-_SAID:]
    if started or status is None:
        return UnreachableError(
            "the connection was lost",
            where=name,
            hints=["run the command again; what was done so far is kept"],
            detail=lines,
        )
    text = " ".join(lines)
    if "sudo" in text:
        return PermissionDeniedError(
            "root is needed, and `sudo -n` does not give it",
            where=name,
            detail=lines,
            hints=[
                "let the user run `sudo` without a password, log in as root, or set "
                "`target.access.sudo: false`"
            ],
        )
    if bundle.TOO_OLD in text:
        return BadAnswerError(
            "the host's `python3` is too old", where=name, expected=bundle.TOO_OLD, detail=lines
        )
    if status == 127 or "not found" in text:
        return BadAnswerError(
            "there is no `python3` on the host",
            where=name,
            expected=bundle.TOO_OLD,
            detail=lines,
            hints=["on Ubuntu: `sudo apt-get install -y python3`"],
        )
    return UnreachableError(
        f"the host let us in, but runs no commands for us: exit status {status}",
        where=name,
        detail=lines,
        hints=["the login shell, or a `ForceCommand` or `command=` on the host, may be why"],
    )
