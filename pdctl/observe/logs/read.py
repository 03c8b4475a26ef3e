"""Logs as files, compressed files, standard input and followed files: blocks of bytes, in order."""

import gzip
import heapq
import os
import sys
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from pdctl.base.errors import NotFoundError
from pdctl.observe.logs.event import Event
from pdctl.observe.logs.line import Clock
from pdctl.observe.logs.scan import Scanner
from pdctl.observe.logs.stream import Keep, Stream, role_in, role_of

BLOCK = 1 << 18
"""What stays in the processor's cache while it is looked through again and again."""
STDIN = "-"
_GZIP = b"\x1f\x8b"


@dataclass
class Source:
    """One log, of one or several files, the oldest first.

    Attributes:
        name: as events give it.
        paths: `-` is standard input.
        role: when it is known.
        problems: what could not be read to its end.
        data: what it holds, where somebody has read it already; then there are no paths.
    """

    name: str
    paths: Sequence[str]
    role: str | None = None
    problems: list[str] = field(default_factory=list)
    data: bytes | None = field(default=None, repr=False)


def source_of(path: str) -> Source:
    """A file that was named.

    Raises:
        NotFoundError: it is not there, is a folder, or may not be read.
    """
    if path == STDIN:
        return Source("stdin", (STDIN,))
    try:
        with open(path, "rb") as file:
            file.read(1)
    except OSError as error:
        raise NotFoundError(
            f"cannot read the log: {error.strerror}", where=path, expected="a file, or `-`"
        ) from error
    return Source(Path(path).name, (path,), role_of(Path(path).name))


def rotated(path: str) -> list[str]:
    """The file and what was put aside of it, the oldest first: `x.log.1`, `x.log-20261129.gz`."""
    log = Path(path)
    try:
        beside = [each for each in log.parent.iterdir() if each.name.startswith(f"{log.name}")]
    except OSError:
        return [path]
    aside = [each for each in beside if each.name[len(log.name) :][:1] in (".", "-")]
    aside = [each for each in aside if any(char.isdigit() for char in each.name[len(log.name) :])]
    return [*(str(each) for each in sorted(aside, key=_written)), path]


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def events(
    sources: Iterable[Source], scanner: Scanner, *, keep: Keep | None = None
) -> Iterator[Event]:
    """Events of all sources in order of time; lines of one source stay in their own order."""
    streams = [_events(each, scanner, keep) for each in sources]
    if len(streams) == 1:
        return streams[0]
    dated = heapq.merge(*map(_in_order, streams), key=lambda dated: dated[0])
    return (event for _, event in dated)


def _in_order(found: Iterator[Event]) -> Iterator[tuple[float, Event]]:
    """With the greatest time so far: clocks are set back, and lines are written late."""
    latest = 0.0
    for event in found:
        if event.ts is not None and event.ts > latest:
            latest = event.ts
        yield latest, event


def _events(source: Source, scanner: Scanner, keep: Keep | None) -> Iterator[Event]:
    stream: Stream | None = None
    if source.data is not None:
        stream = Stream(source.name, scanner, Clock(time.time()), role=source.role, keep=keep)
        yield from stream.feed(source.data, last=True)
    for path in source.paths:
        if stream is None:
            stream = Stream(source.name, scanner, _clock_of(path), role=source.role, keep=keep)
        for block in _blocks(path, source.problems):
            if stream.role is None:
                stream.role = role_in(block[: 1 << 18])
            yield from stream.feed(block)
        yield from stream.feed(b"", last=True)


def _clock_of(path: str) -> Clock:
    return Clock(time.time() if path == STDIN else _written(Path(path)) or time.time())


def _blocks(path: str, problems: list[str]) -> Iterator[bytes]:
    try:
        if path == STDIN:
            yield from _plain(sys.stdin.buffer)
            return
        with open(path, "rb", buffering=0) as file:
            packed = file.read(2) == _GZIP
            file.seek(0)
            if packed:
                with gzip.open(file, "rb") as unpacked:
                    yield from _plain(unpacked)  # type: ignore[arg-type]
            else:
                yield from _plain(file)
    except (OSError, EOFError, zlib.error) as error:
        problems.append(f"{path} could not be read to its end: {error}")


def _plain(file: BinaryIO) -> Iterator[bytes]:
    # What a pipe has is taken as it comes; a file gives whole blocks.
    read = getattr(file, "read1", file.read)
    while block := read(BLOCK):
        yield block


class Tail:
    """A file that is written to: what is new, also after it was truncated or replaced."""

    def __init__(self, path: str, place: int = 0) -> None:
        self.path = path
        self.place = place  # where to begin, when the file is opened first
        self.restarted = False
        self._file: BinaryIO | None = None

    def read(self) -> bytes:
        """What was written since; `restarted` says that it is the beginning of a new file."""
        self.restarted = False
        if self._file is None and not self._open():
            return b""
        assert self._file is not None
        data = self._file.read(BLOCK)
        if data:
            return data
        if self._replaced():
            self.close()
            self.restarted = True
            if self._open():
                return self._file.read(BLOCK)
        return b""

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> bool:
        try:
            self._file = open(self.path, "rb", buffering=0)  # noqa: SIM115
        except OSError:
            self.place = 0  # all of a file that appears later is new
            return False
        self._file.seek(self.place)
        self.place = 0
        return True

    def _replaced(self) -> bool:
        assert self._file is not None
        ours = os.fstat(self._file.fileno())
        if ours.st_size < self._file.tell():
            return True
        try:
            now = os.stat(self.path)
        except OSError:
            return False  # put aside, and the new one is not there yet
        return (now.st_ino, now.st_dev) != (ours.st_ino, ours.st_dev)
