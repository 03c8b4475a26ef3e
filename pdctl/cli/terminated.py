"""SIGTERM as Ctrl-C, for commands that put something back at their end."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def as_ctrl_c() -> Iterator[None]:
    """Without this Python ends at once, and what was switched stays so."""
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
