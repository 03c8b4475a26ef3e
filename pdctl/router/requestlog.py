"""Writes the request log: one JSON line a request, no contents.

Each line goes out whole by one write, so that a reader that follows never sees half of one and
routers that share a file do not mix. When the file is full it becomes `FILE.1`, that one `FILE.2`
and so on; who moves the file himself sends SIGHUP.
"""

import errno
import fcntl
import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

import orjson

from pdctl.base.errors import NotFoundError
from pdctl.base.requestlog import RequestRecord

log = logging.getLogger("pdctl.router")

_PRIVATE = 0o600
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class RequestLog:
    """Appends to a file, or does nothing when there is none.

    Args:
        path: the file; made with mode 0600 when it is not there.
        max_bytes: from this size on it is put aside. What is no regular file never is.
        keep: how many files are kept aside.

    Raises:
        NotFoundError: the file cannot be opened. Later, what cannot be written is only lost.
    """

    def __init__(self, path: Path | None, *, max_bytes: int = 256 * 2**20, keep: int = 4) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._fd: int | None = None
        self._rotates = False
        self._lost = 0
        self._stuck = False
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._open(path)
            except OSError as error:
                raise NotFoundError(
                    f"the request log cannot be opened: {error.strerror}", where=str(path)
                ) from error

    def write(self, record: RequestRecord) -> None:
        """Append one line."""
        if self._fd is None or self._path is None:
            return
        try:
            _append(self._fd, orjson.dumps(record) + b"\n")
        except OSError as error:
            if not self._lost:
                log.error("the request log %s loses lines: %s", self._path, error.strerror)
            self._lost += 1
            return
        if self._lost:
            log.warning("the request log %s goes on; %d lines are lost", self._path, self._lost)
            self._lost = 0
        if self._rotates and os.lseek(self._fd, 0, os.SEEK_CUR) >= self._max_bytes:
            self._rotate(self._fd, self._path)

    def reopen(self) -> None:
        """Go on in the file that has the name now; with the old one if that cannot be opened."""
        if self._fd is None or self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._open(self._path)
        except OSError as error:
            log.error("the request log %s is not reopened: %s", self._path, error.strerror)

    def close(self) -> None:
        """Close the file; nothing is written from then on."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self, path: Path, mode: int = _PRIVATE) -> None:
        """The new file first, so that lines have somewhere to go if that fails."""
        fd = os.open(path, _FLAGS, mode)
        if mode != _PRIVATE:
            os.fchmod(fd, mode)  # as its predecessor, whatever the umask
        found = os.fstat(fd)
        self._rotates = stat.S_ISREG(found.st_mode)
        if self._rotates and found.st_size and not _ends_line(path):
            # A crash cut a line; what follows must not be glued to it.
            with suppress(OSError):
                os.write(fd, b"\n")
        self._fd, old = fd, self._fd
        if old is not None:
            os.close(old)

    def _rotate(self, fd: int, path: Path) -> None:
        """Put the file aside and go on in a new one; in the old one if that fails.

        Of routers that share the file, only one does; the others find that it was done.
        """
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            mine = os.fstat(fd)
            if _is_at(mine, path):
                for number in range(self._keep, 1, -1):
                    with suppress(FileNotFoundError):
                        _aside(path, number - 1).replace(_aside(path, number))
                path.replace(_aside(path, 1))
            self._open(path, stat.S_IMODE(mine.st_mode))
            self._stuck = False
        except OSError as error:
            if not self._stuck:
                log.error("the request log %s grows on: %s", path, error.strerror)
            self._stuck = True
            with suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)  # otherwise closing it has unlocked it


def _append(fd: int, line: bytes) -> None:
    """Write the line, or nothing of it.

    Raises:
        OSError: it is not there.
    """
    written = os.write(fd, line)
    if written < len(line):
        # The disk became full in the middle of it.
        with suppress(OSError):
            os.ftruncate(fd, os.lseek(fd, 0, os.SEEK_CUR) - written)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _is_at(file: os.stat_result, path: Path) -> bool:
    try:
        return os.path.samestat(file, path.stat())
    except FileNotFoundError:
        return False


def _aside(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _ends_line(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"
    except OSError:
        return True  # a log that may be written and not read is as it is
