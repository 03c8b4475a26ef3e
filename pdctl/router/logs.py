"""The router's own log lines: to stderr, a few for each request, so cheap ones."""

import logging
import sys


class _Formatter(logging.Formatter):
    """As the standard one, which makes the text of the same second anew for each line."""

    _second = -1
    _text = ""

    def formatTime(  # noqa: N802 - the name is given
        self, record: logging.LogRecord, datefmt: str | None = None
    ) -> str:
        second = int(record.created)
        if second != self._second:
            self._second, self._text = second, super().formatTime(record, "%Y-%m-%d %H:%M:%S")
        return f"{self._text},{int(record.msecs):03d}"


def to_stderr(deployment: str | None = None) -> None:
    """Log to stderr from INFO on.

    Args:
        deployment: goes before the name of each logger.
    """
    # What is not shown need not be found out: threads, processes, lines of code.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    before = f"{deployment} " if deployment else ""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(f"%(asctime)s [%(levelname)s] {before}%(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
