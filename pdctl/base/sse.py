"""Server-sent events without I/O: bytes in, whole events out, under any chunking."""

DONE = b"[DONE]"


class SseSplitter:
    """Cuts a byte stream into events.

    `feed` returns each complete event's raw bytes including its blank line, so that a proxy can
    forward them untouched; `data_of` gives an event's data. A line may be of any length.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._seen = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Events completed by this chunk, in order."""
        buffer = self._rest + chunk if self._rest else chunk
        # What was searched is not searched again, else an event in n pieces costs n searches of
        # all of it; a boundary's first three bytes may have come before.
        begin, search = 0, max(0, self._seen - 3)
        events = []
        while (end := _after_boundary(buffer, search)) > 0:
            events.append(buffer[begin:end])
            begin = search = end
        self._rest = buffer[begin:]
        self._seen = len(self._rest)
        return events

    def push(self, chunk: bytes) -> None:
        """Add bytes, whose events are to be taken one by one."""
        self._rest += chunk

    def pop(self) -> bytes | None:
        """The first complete event; None when there is none yet."""
        end = _after_boundary(self._rest, max(0, self._seen - 3))
        if end < 0:
            self._seen = len(self._rest)
            return None
        event, self._rest, self._seen = self._rest[:end], self._rest[end:], 0
        return event

    def take_rest(self) -> bytes:
        """What came after the events that were taken, which the caller cuts by itself."""
        rest, self._rest, self._seen = self._rest, b"", 0
        return rest

    def rest(self) -> bytes:
        """What came after the last complete event; non-empty at the end means a cut stream."""
        return self._rest


def _after_boundary(buffer: bytes, start: int) -> int:
    """Where the first event that ends at or after `start` is over; -1 when none is."""
    newline = buffer.find(b"\n\n", start)
    # Only as far as the other was found: engines send no carriage returns, and a search for one
    # through all that follows, at every event, would cost more than everything else.
    carriage = buffer.find(b"\r\n\r\n", start, len(buffer) if newline < 0 else newline + 1)
    if carriage >= 0:
        return carriage + 4
    return newline + 2 if newline >= 0 else -1


def data_of(event: bytes) -> bytes | None:
    """The event's data with its lines joined by a newline; None for comments and other fields."""
    if event.startswith(b"data: ") and event.count(b"\n") <= 2 and b"\r" not in event:
        return event[6:].rstrip(b"\n")
    lines = []
    for line in event.splitlines():
        if line.startswith(b"data:"):
            value = line[5:]
            lines.append(value[1:] if value.startswith(b" ") else value)
    return b"\n".join(lines) if lines else None


def event_of(data: bytes) -> bytes:
    """One event with this data, which must not hold a newline."""
    return b"data: " + data + b"\n\n"
