"""What goes over the connection: small frames, so that many calls share one channel.

A call is a CALL, DATA for what is sent with it, then OUT and ERR as they come, and one DONE or
FAIL. Sent to the far side as it is, so: standard library only.
"""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

MAGIC = b"\0pdctl far side 1\n"
"""Says that frames follow. What comes before it is the talk of login scripts."""

CALL, DATA, CANCEL, PING, OUT, ERR, DONE, FAIL, PONG = range(1, 10)

CHUNK = 32768
"""Bytes of one frame of content: small, so that a long transfer does not hold up other calls."""

_HEAD = struct.Struct(">IBI")
_MOST = 64 * 2**20


class Frame(NamedTuple):
    """One message of one call; call 0 is the connection itself."""

    call: int
    kind: int
    body: bytes


class BrokenFrameError(Exception):
    """What came cannot be a frame."""


def pack(frame: Frame) -> bytes:
    """The bytes of a frame."""
    return _HEAD.pack(frame.call, frame.kind, len(frame.body)) + frame.body


def chunks(content: bytes) -> Iterator[bytes]:
    """Content in parts that fit a frame."""
    for start in range(0, len(content), CHUNK):
        yield content[start : start + CHUNK]


class Unpacker:
    """Bytes as they come in, frames as they are whole."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, more: bytes) -> Iterator[Frame]:
        """Frames that are whole now.

        Raises:
            BrokenFrameError: the other side speaks something else.
        """
        self._rest += more
        at = 0
        while len(self._rest) - at >= _HEAD.size:
            call, kind, length = _HEAD.unpack_from(self._rest, at)
            if not CALL <= kind <= PONG or length > _MOST:
                raise BrokenFrameError
            if len(self._rest) - at < _HEAD.size + length:
                break
            at += _HEAD.size
            yield Frame(call, kind, bytes(self._rest[at : at + length]))
            at += length
        del self._rest[:at]


def read(receive: Callable[[int], bytes]) -> Iterator[Frame]:
    """Frames until the end of what `receive` gives, which is any number of bytes at a time."""
    unpacker = Unpacker()
    while more := receive(65536):
        yield from unpacker.feed(more)
