"""Files, compressed files and standard input as blocks of whole lines."""

import gzip
import io
import os
import shutil
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

from pdctl.base.errors import BadAnswerError, NotFoundError, UsageError

STDIN = "-"
BLOCK = 1 << 16
"""Of the size that what is made of it stays in the processor's cache."""
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class Part:
    """Some of the lines of a file.

    Attributes:
        path: of the file.
        start, end: offsets of the first line and after the last; of a compressed file, all of it.
        packed: "", "gzip" or "zstd".
    """

    path: str
    start: int
    end: int
    packed: str = ""


@dataclass(frozen=True)
class Log:
    """A file to read.

    Attributes:
        name: what it is called in messages.
        path: where it can be read, more than once.
        size: bytes.
        packed: "", "gzip" or "zstd".
        held: the file behind the path, where it goes when nobody has it open.
    """

    name: str
    path: str
    size: int
    packed: str = ""
    held: object = None


def open_log(path: str, *, spool: BinaryIO | None = None) -> Log:
    """Find a file, or put standard input where it can be read more than once.

    Args:
        path: `-` is standard input.
        spool: where what comes through a pipe is kept.

    Raises:
        NotFoundError: it is not there, is a folder, or may not be read.
    """
    if path == STDIN:
        return _stdin(spool)
    try:
        with open(path, "rb") as file:
            return Log(path, path, os.fstat(file.fileno()).st_size, _packing(file.read(4)))
    except OSError as error:
        raise NotFoundError(
            f"cannot read the request log: {error.strerror}",
            where=path,
            expected="a file of JSON lines, or `-`",
        ) from error


def _stdin(spool: BinaryIO | None) -> Log:
    source = sys.stdin.buffer
    number, keep = _regular(source), None
    if number is None:
        keep = spool or cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115
        shutil.copyfileobj(source, keep, 1 << 20)
        keep.flush()
        number = keep.fileno()
    # By way of this process: in others, which read too, number 0 is another file.
    path = f"/proc/{os.getpid()}/fd/{number}"
    with open(path, "rb") as file:
        return Log("stdin", path, os.fstat(file.fileno()).st_size, _packing(file.read(4)), keep)


def _regular(source: object) -> int | None:
    """The descriptor of a file that was redirected, which needs no copy."""
    try:
        fd = cast(BinaryIO, source).fileno()
    except (AttributeError, OSError, io.UnsupportedOperation):
        return None
    # Where somebody has read from it already, what is left is what was meant.
    if stat.S_ISREG(os.fstat(fd).st_mode) and os.lseek(fd, 0, os.SEEK_CUR) == 0:
        return fd
    return None


def _packing(begin: bytes) -> str:
    if begin.startswith(_GZIP):
        return "gzip"
    return "zstd" if begin.startswith(_ZSTD) else ""


def parts_of(log: Log, size: int) -> list[Part]:
    """The file in parts of about that many bytes, cut at the ends of lines."""
    if log.packed or log.size <= size:
        return [Part(log.path, 0, log.size, log.packed)]
    cuts = [0]
    with open(log.path, "rb") as file:
        for at in range(size, log.size, size):
            file.seek(at)
            file.readline()
            if cuts[-1] < file.tell() < log.size:
                cuts.append(file.tell())
    return [Part(log.path, *ends) for ends in zip(cuts, [*cuts[1:], log.size], strict=True)]


def blocks(part: Part) -> Iterator[bytes]:
    """Its lines, many at once; the last may lack its end.

    Raises:
        BadAnswerError: a compressed file is broken.
        UsageError: what is needed to unpack it is not installed.
    """
    rest = b""
    try:
        for block in _raw(part):
            end = block.rfind(b"\n") + 1
            if not end:
                rest += block
                continue
            yield rest + block[:end]
            rest = block[end:]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadAnswerError(f"the compressed file is broken: {error}", where=part.path) from error
    if rest:
        yield rest


def _raw(part: Part) -> Iterator[bytes]:
    if part.packed:
        with _unpacked(part) as file:
            while block := file.read(BLOCK):
                yield block
        return
    with open(part.path, "rb", buffering=0) as file:
        file.seek(part.start)
        left = part.end - part.start
        while left > 0 and (block := file.read(min(BLOCK, left))):
            left -= len(block)
            yield block


def _unpacked(part: Part) -> BinaryIO:
    if part.packed == "gzip":
        return cast(BinaryIO, gzip.open(part.path, "rb"))
    return _zstd(part.path)


def _zstd(path: str) -> BinaryIO:
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError as error:
        raise UsageError(
            "a file is compressed with zstd, and nothing here can unpack it",
            where=path,
            hints=["pip install 'pdctl[zstd]'", f"zstd -dc {path} | pdctl analyze -"],
        ) from error
    return cast(BinaryIO, zstd.open(path, "rb"))
