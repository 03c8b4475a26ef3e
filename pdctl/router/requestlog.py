"""Writes the request log: one JSON line a request, no contents."""

from io import BufferedWriter
from pathlib import Path

import orjson

from pdctl.base.requestlog import RequestRecord


class RequestLog:
    """Appends to a file, or does nothing when there is none.

    Each line is written whole and at once, so that a reader that follows never sees half of one.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: BufferedWriter | None = None

    def write(self, record: RequestRecord) -> None:
        """Append one line."""
        if self._path is None:
            return
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab")
        self._file.write(orjson.dumps(record.as_dict()) + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; a later write opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None
