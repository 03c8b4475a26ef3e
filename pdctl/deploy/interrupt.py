"""Ctrl-C at a moment when it does no harm."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """While entered, Ctrl-C and SIGTERM raise `KeyboardInterrupt`, but not inside `held`.

    A process that was started must be recorded before anything else may happen. The second
    Ctrl-C does not wait for that: such a process is found by its mark.
    """

    def __init__(self) -> None:
        self._holding = False
        self._pending = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._come)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let the first interrupt wait until the end of this block."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def _come(self, number: int, frame: FrameType | None) -> None:
        if self._holding and not self._pending:
            self._pending = True
            return
        raise KeyboardInterrupt
