"""Following several logs at once, while they are written."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pdctl.observe.logs.event import Event
from pdctl.observe.logs.line import Clock
from pdctl.observe.logs.read import Source, Tail
from pdctl.observe.logs.scan import Scanner
from pdctl.observe.logs.stream import Keep, Stream, role_in

PERIOD_S = 0.25
BEFORE = 4 << 20
"""Bytes before the end that are read first: they tell which conversations are not new."""
_QUIET_TICKS = 2


@dataclass
class Batch:
    """What came since the last one; nothing when nothing did.

    Attributes:
        old: it stood there before following began.
        said: what happened to the files.
    """

    events: list[Event]
    old: bool = False
    said: tuple[str, ...] = ()


@dataclass
class _Followed:
    tail: Tail
    stream: Stream
    quiet: int = 0


class Follower:
    """Follows logs: first what stands in them, as old, then what is written, for ever.

    A file may be missing, grow, be truncated or be replaced by a new one of its name.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        scanner: Scanner,
        *,
        keep: Keep | None = None,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._followed = [_open(source, scanner, keep) for source in sources]
        self._wait = wait

    def __iter__(self) -> Iterator[Batch]:
        for each in self._followed:
            yield Batch(_earlier(each), old=True)
        while True:
            batch = _tick(self._followed)
            yield batch
            if not batch.events:
                self._wait(PERIOD_S)

    def rest(self) -> Batch:
        """What was read and still waits for a line behind it; for when following ends."""
        events = [event for each in self._followed for event in each.stream.flush()]
        return Batch(sorted(events, key=lambda event: event.ts or 0.0))


def _open(source: Source, scanner: Scanner, keep: Keep | None) -> _Followed:
    stream = Stream(source.name, scanner, Clock(), role=source.role, keep=keep)
    return _Followed(Tail(source.paths[-1]), stream)


def _earlier(each: _Followed) -> list[Event]:
    """What was written last before now; the rest of the file comes with the first tick."""
    try:
        with open(each.tail.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - BEFORE))
            data = file.read(size - file.tell())
            if file.tell() > BEFORE:
                data = data.partition(b"\n")[2]
    except OSError:
        return []
    each.tail.place = size
    if each.stream.role is None:
        each.stream.role = role_in(data[: 1 << 18])
    return [*each.stream.feed(data), *each.stream.flush()]


def _tick(followed: Sequence[_Followed]) -> Batch:
    events: list[Event] = []
    said: list[str] = []
    for each in followed:
        data = each.tail.read()
        if each.tail.restarted:
            events += each.stream.flush()
            each.stream.restart()
            said.append(f"{each.stream.name} was truncated or put aside; it is read on")
        if data:
            each.quiet = 0
            events += each.stream.feed(data)
        else:
            each.quiet += 1
            if each.quiet == _QUIET_TICKS:
                events += each.stream.flush()
    events.sort(key=lambda event: event.ts or 0.0)
    return Batch(events, said=tuple(said))
