"""Server-sent events without I/O: bytes in, whole events out, under any chunking."""

DONE = b"[DONE]"


class SseSplitter:
    """Cuts a byte stream into events.

    `feed` returns each complete event's raw bytes including its blank line, so that a proxy can
    forward them untouched; `data_of` gives an event's data. A line may be of any length.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Events completed by this chunk, in order."""
        buffer = self._rest + chunk if self._rest else chunk
        events = []
        while True:
            end, width = _boundary(buffer)
            if end < 0:
                break
            events.append(buffer[: end + width])
            buffer = buffer[end + width :]
        self._rest = buffer
        return events

    def rest(self) -> bytes:
        """What came after the last complete event; non-empty at the end means a cut stream."""
        return self._rest


def _boundary(buffer: bytes) -> tuple[int, int]:
    newline, carriage = buffer.find(b"\n\n"), buffer.find(b"\r\n\r\n")
    if carriage >= 0 and (newline < 0 or carriage < newline):
        return carriage, 4
    return newline, 2


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
