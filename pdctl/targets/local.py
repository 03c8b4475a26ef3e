"""This machine as a host: processes in sessions of their own, files, ports. The only subprocess."""

import errno
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from pdctl.base.command import Command
from pdctl.base.errors import (
    NotFoundError,
    PdctlError,
    PermissionDeniedError,
    TemporaryError,
    UnreachableError,
)
from pdctl.base.process import MARK_ENV, Kept, ProcessRef, ProcessSpec, RunningProcess
from pdctl.targets import piped, ports, procfs, units
from pdctl.targets.base import OutputSink, Result

INHERITED = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
        *("http_proxy", "https_proxy", "no_proxy", "all_proxy"),
        *("XDG_CACHE_HOME", "XDG_CONFIG_HOME"),
        *("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "HF_TOKEN_PATH", "HF_ENDPOINT"),
    )
)
"""Variables that every process gets from the user's shell: where things are, who one is, how to
reach the network. Nothing that changes how an engine computes."""
INHERITED_PREFIXES = ("LC_", "CUDA_", "NVIDIA_")
_TOOL_PREFIXES = ("PIP_", "UV_")  # for commands that end, such as installers

_CHUNK = 262144
_POLL_S = 0.05
KILL_LIMIT_S = 10.0  # SIGKILL works at once, except on a process that hangs in the kernel
_TAIL_LINES = 20


class LocalHost:
    """Implements `targets.base.Host`. Safe to use from several threads at once."""

    def __init__(self, name: str = "localhost") -> None:
        self._name = name
        self._boot_id = procfs.read_boot_id()
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._running: list[subprocess.Popen[bytes]] = []

    @property
    def name(self) -> str:
        """How messages name the machine."""
        return self._name

    def run(
        self,
        command: Command,
        *,
        timeout: float,
        on_line: OutputSink | None = None,
        stdin: bytes | None = None,
    ) -> Result:
        """Run to the end. Whatever ends the wait early also ends all that the command started.

        Raises:
            NotFoundError: there is no such program.
            TemporaryError: the limit passed.
        """
        began = time.monotonic()
        out, err = piped.Collected(on_line), piped.Collected(on_line)
        try:
            status = self.pump(command, timeout=timeout, out=out.feed, err=err.feed, stdin=stdin)
        except piped.LimitPassedError as passed:
            lines = [line for each in (out, err) for line in each.text.splitlines()]
            raise limit_passed(command, timeout, self._name, lines) from passed
        for each in (out, err):
            each.finish()
        return Result(status, out.text, err.text, time.monotonic() - began)

    def pump(
        self,
        command: Command,
        *,
        timeout: float,
        out: piped.Take,
        err: piped.Take,
        stdin: bytes | None = None,
        check: piped.Check | None = None,
    ) -> int:
        """Run to the end and keep nothing of the output; gives the exit status.

        Args:
            out, err: get the output as it comes; what they raise ends the command.
            check: asked all the time; what it raises ends the command.

        Raises:
            NotFoundError: there is no such program.
            LimitPassedError: the limit passed. Nothing of the command is left then.
        """
        environ = self._environ(command, _TOOL_PREFIXES)
        with _explained(command, self._name):
            process = subprocess.Popen(
                command.argv(),
                env=environ,
                cwd=command.cwd,
                stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        self._running.append(process)
        with process:
            try:
                piped.wait_for(
                    process,
                    timeout=timeout,
                    out=out,
                    err=err,
                    stdin=stdin,
                    check=check or piped.go_on,
                )
            except BaseException:  # also Ctrl-C: the command is in a session of its own
                self._end_at_once(process)
                raise
            finally:
                self._running.remove(process)
        return process.returncode

    def end_running(self) -> None:
        """End the commands that other threads wait for."""
        for process in list(self._running):
            self._end_at_once(process)

    def write_file(self, path: PurePosixPath, content: bytes, *, mode: int = 0o644) -> None:
        """Replace a file atomically, creating its directories.

        Raises:
            PermissionDeniedError, TemporaryError: not allowed; no space left.
        """
        self.write_chunks(path, [content], mode=mode)

    def write_chunks(self, path: PurePosixPath, chunks: Iterable[bytes], *, mode: int) -> None:
        """The same for content that comes bit by bit; what getting it raises leaves the old."""
        target = Path(path)
        with _explained_path(path, self._name):
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, scratch = tempfile.mkstemp(prefix=_scratch_prefix(target), dir=target.parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    for chunk in chunks:
                        file.write(chunk)
                    file.flush()
                    os.fchmod(file.fileno(), mode)
                    os.fsync(file.fileno())
                os.replace(scratch, target)
            except BaseException:
                with suppress(OSError):
                    os.unlink(scratch)
                raise

    def read_file(self, path: PurePosixPath, *, limit: int | None = None) -> bytes | None:
        """A file's bytes, the last `limit` of them if given; None when there is no such file."""
        chunks = self.read_chunks(path, limit=limit)
        return None if chunks is None else b"".join(chunks)

    def read_chunks(
        self, path: PurePosixPath, *, limit: int | None = None
    ) -> Iterator[bytes] | None:
        """The same bit by bit."""
        with _explained_path(path, self._name):
            try:
                file = open(path, "rb")  # noqa: SIM115 - closed by the one who reads
            except (FileNotFoundError, NotADirectoryError):
                return None
        return self._contents(file, path, limit)

    def _contents(self, file: BinaryIO, path: PurePosixPath, limit: int | None) -> Iterator[bytes]:
        with file, _explained_path(path, self._name):
            if limit is not None:
                file.seek(max(0, file.seek(0, os.SEEK_END) - limit))
            while chunk := file.read(_CHUNK):
                yield chunk

    def exists(self, path: PurePosixPath) -> bool:
        """True for a file or directory."""
        return os.path.lexists(path)

    def remove_tree(self, path: PurePosixPath) -> None:
        """Remove a file or directory; a link is removed, not what it leads to."""
        with _explained_path(path, self._name):
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, onerror=_still_there)
                return
            with suppress(FileNotFoundError):
                os.unlink(path)

    def free_bytes(self, path: PurePosixPath) -> int:
        """Free space of the file system that holds `path` or its nearest existing parent."""
        existing = Path(path)
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        with _explained_path(path, self._name):
            return shutil.disk_usage(existing).free

    def start(self, spec: ProcessSpec, log: PurePosixPath) -> ProcessRef:
        """Start in a session of its own, output appended to `log`, and return at once.

        Raises:
            NotFoundError: there is no such program or working directory.
        """
        return self.launch(spec.command, log)

    def launch(self, command: Command, log: PurePosixPath) -> ProcessRef:
        """`start` for a command that is nobody's role."""
        environ = self._environ(command)
        with _explained_path(log, self._name):
            Path(log).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            with _explained(command, self._name):
                process = subprocess.Popen(
                    command.argv(),
                    env=environ,
                    cwd=command.cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        finally:
            os.close(output)
        self._children[process.pid] = process
        # Nobody but this process can reap it, so the entry is there even if it has ended.
        stat = procfs.read_stat(process.pid)
        ticks = stat.start_ticks if stat else 0
        mark = environ.get(MARK_ENV, "")
        return ProcessRef(process.pid, ticks, self._boot_id, mark)

    def alive(self, ref: ProcessRef) -> bool:
        """True only for that very process, not for another that got its pid.

        For one that is kept running: whether its unit or supervisor runs.
        """
        if ref.unit:
            return units.state_of(ref.unit).alive
        if ref.boot_id != self._boot_id:
            return False
        self._reap(ref.pid)
        stat = procfs.read_stat(ref.pid)
        return stat is not None and stat.start_ticks == ref.start_ticks and stat.runs

    def kept(self, ref: ProcessRef) -> Kept | None:
        """What it is now, started again or not; None when it and what kept it running are gone."""
        if ref.unit:
            state = units.state_of(ref.unit)
            stat = procfs.read_stat(state.pid) if state.pid else None
            its = ProcessRef(stat.pid, stat.start_ticks, self._boot_id, ref.mark) if stat else None
            return Kept(its, state.restarts) if state.alive else None
        if not self.alive(ref):
            return None
        return self._supervised(ref) if ref.report else Kept(ref)

    def _supervised(self, ref: ProcessRef) -> Kept:
        """What the supervisor says it started, if that still runs."""
        try:
            said = json.loads(self.read_file(PurePosixPath(ref.report)) or b"{}")
            restarts, engine_id = int(said.get("restarts", 0)), said.get("engine_id")
            its = ProcessRef(int(said["pid"]), int(said["start_ticks"]), self._boot_id, ref.mark)
        except (ValueError, KeyError, TypeError, PdctlError):
            return Kept(None)  # it has not said anything yet
        return Kept(its if self.alive(its) else None, restarts, engine_id)

    def stop(self, ref: ProcessRef, *, timeout: float) -> bool:
        """SIGTERM to everything that belongs to the process, SIGKILL at the limit.

        True when nothing of it is left: not the process, its group, its session, nor what left
        them but carries its mark. A process that was recycled or is gone is not touched. What
        keeps it running ends first; a unit's files are removed.
        """
        if ref.unit:
            units.end(ref.unit, timeout)
        if ref.boot_id != self._boot_id:
            return True
        seen: procfs.Seen = set()
        return self._signal_until_gone(
            ref, signal.SIGTERM, timeout, seen
        ) or self._signal_until_gone(ref, signal.SIGKILL, KILL_LIMIT_S, seen)

    def find(self, mark: str) -> list[RunningProcess]:
        """This user's processes whose `PDCTL_PROCESS` is `mark` or, for `dir/`, begins with it."""
        table = procfs.read_table()
        found = []
        for stat in table.values():
            if not stat.runs or not procfs.is_mine(stat.pid):
                continue
            its = procfs.read_mark(stat.pid)
            if its and (its.startswith(mark) if mark.endswith("/") else its == mark):
                unit = procfs.read_unit(stat.pid)
                ref = ProcessRef(stat.pid, stat.start_ticks, self._boot_id, its, unit)
                found.append(RunningProcess(ref, procfs.read_argv(stat.pid)))
        return sorted(found, key=lambda process: (process.ref.start_ticks, process.ref.pid))

    def port_holder(self, address: str, port: int) -> str | None:
        """Who listens on the port (`pid 12 (python)` or `another process`), None when free."""
        return ports.find_holder(address, port)

    def choose_port(self, address: str) -> int:
        """A port that is free now."""
        return ports.find_free(address)

    def inherited_env(self) -> Mapping[str, str]:
        """The variables a started process gets besides those its command names."""
        return _allowed(())

    def close(self) -> None:
        """Let go of processes that still run; they are not ours to wait for any more."""
        for process in self._children.values():
            if process.poll() is None:
                process.returncode = 0  # else its destructor warns that it still runs
        self._children.clear()

    def _environ(self, command: Command, more: tuple[str, ...] = ()) -> dict[str, str]:
        return _allowed(more) | command.environ()

    def _signal_until_gone(
        self, ref: ProcessRef, number: signal.Signals, limit: float, seen: procfs.Seen
    ) -> bool:
        told: procfs.Seen = set()
        deadline = time.monotonic() + limit
        while True:
            left = self._members(ref, seen)
            if not left:
                return True
            for stat in left:
                # Each is asked once to end; what will not listen is killed as often as it takes.
                if number == signal.SIGKILL or (stat.pid, stat.start_ticks) not in told:
                    _send(stat, number)
                told.add((stat.pid, stat.start_ticks))
            if time.monotonic() >= deadline:
                return not self._members(ref, seen)
            time.sleep(_POLL_S)

    def _members(self, ref: ProcessRef, seen: procfs.Seen) -> list[procfs.Stat]:
        self._reap(ref.pid)
        table = procfs.read_table()
        above = procfs.ancestors(os.getpid(), table)
        marks = _MarkReader()
        found = procfs.members(ref, table, seen=seen, mark_of=marks)
        seen |= {(stat.pid, stat.start_ticks) for stat in found}
        return [stat for stat in found if stat.pid not in above]

    def _reap(self, pid: int) -> None:
        child = self._children.get(pid)
        if child is not None and child.poll() is not None:
            self._children.pop(pid, None)

    def _end_at_once(self, process: "subprocess.Popen[bytes]") -> None:
        stat = procfs.read_stat(process.pid)
        if stat is not None:
            ref = ProcessRef(stat.pid, stat.start_ticks, self._boot_id)
            self._children[process.pid] = process
            self._signal_until_gone(ref, signal.SIGKILL, KILL_LIMIT_S, set())


class _MarkReader:
    """Reads a process's mark once for a look at the table, and only of this user's processes."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def __call__(self, pid: int) -> str:
        if pid not in self._known:
            self._known[pid] = procfs.read_mark(pid) if procfs.is_mine(pid) else ""
        return self._known[pid]


def _allowed(more: tuple[str, ...]) -> dict[str, str]:
    prefixes = INHERITED_PREFIXES + more
    return {
        name: value
        for name, value in os.environ.items()
        if name in INHERITED or name.startswith(prefixes)
    }


def limit_passed(
    command: Command, timeout: float, host: str, lines: Sequence[str]
) -> TemporaryError:
    """What is said of a command that was ended at its limit, with its last words."""
    return TemporaryError(
        f"`{command.masked()}` did not end within {timeout:g} s",
        where=host,
        detail=lines[-_TAIL_LINES:],
    )


def _scratch_prefix(target: Path) -> str:
    """Shorter than the name may be, so that a name of the longest kind still fits."""
    return os.fsdecode(os.fsencode(f".{target.name}")[:200]) + "."


def _send(stat: procfs.Stat, number: signal.Signals) -> None:
    """Signal that very process: the descriptor pins it before its start time is compared."""
    try:
        handle = os.pidfd_open(stat.pid)
    except ProcessLookupError:
        return
    try:
        now = procfs.read_stat(stat.pid)
        if now is not None and now.start_ticks == stat.start_ticks:
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


def _still_there(function: Callable[..., object], path: str, info: tuple[object, ...]) -> None:
    """Ignore what vanished meanwhile; anything else is a real failure."""
    error = info[1]
    if isinstance(error, BaseException) and not isinstance(error, FileNotFoundError):
        raise error


@contextmanager
def _explained(command: Command, host: str) -> Iterator[None]:
    """Turn the system's refusal to start a program into words."""
    program = command.masked_argv()[0]
    try:
        yield
    except FileNotFoundError as error:
        missing = f"working directory `{command.cwd}`" if error.filename == command.cwd else None
        raise NotFoundError(
            f"there is no {missing or f'program `{program}`'}", where=host
        ) from error
    except PermissionError as error:
        raise PermissionDeniedError(f"`{program}` may not be run", where=host) from error
    except OSError as error:
        raise UnreachableError(
            f"`{program}` could not be started: {error.strerror}", where=host
        ) from error


@contextmanager
def _explained_path(path: PurePosixPath, host: str) -> Iterator[None]:
    """Turn the system's refusal to read or write into words."""
    try:
        yield
    except PermissionError as error:
        raise PermissionDeniedError(
            f"no permission for `{error.filename or path}`", where=host
        ) from error
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise TemporaryError(
                f"no space left for `{path}`",
                where=host,
                hints=["free some space and run the command again; it goes on where it stopped"],
            ) from error
        raise PdctlError(f"`{path}`: {error.strerror or error}", where=host) from error
