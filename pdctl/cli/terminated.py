"""SIGTERM as Ctrl-C, for commands that put something back at their end."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def as_ctrl_c() -> Iterator[None]:
    """Without this Python ends at once, and what was switched stays so."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: object) -> None:
    # Whoever handles Ctrl-C now, asyncio for one. Nobody does in a job that a script has put into
    # the background: the shell has Ctrl-C ignored there.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)
