"""Writes the request log: one JSON line a request, no contents."""

import logging
from io import FileIO
from pathlib import Path

import orjson

from pdctl.base.errors import NotFoundError
from pdctl.base.requestlog import RequestRecord

log = logging.getLogger("pdctl.router")


class RequestLog:
    """Appends to a file, or does nothing when there is none.

    Each line is written whole and at once, so that a reader that follows never sees half of one.

    Raises:
        NotFoundError: the file cannot be opened. Later, what cannot be written is only lost.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: FileIO | None = None
        self._failing = False
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("ab", buffering=0)
            except OSError as error:
                raise NotFoundError(
                    f"the request log cannot be opened: {error.strerror}", where=str(path)
                ) from error

    def write(self, record: RequestRecord) -> None:
        """Append one line."""
        if self._file is None:
            return
        try:
            self._file.write(orjson.dumps(record.as_dict()) + b"\n")
        except OSError as error:
            if not self._failing:
                log.error("the request log %s loses lines: %s", self._path, error.strerror)
            self._failing = True
        else:
            self._failing = False

    def close(self) -> None:
        """Close the file; nothing is written from then on."""
        if self._file is not None:
            self._file.close()
            self._file = None
