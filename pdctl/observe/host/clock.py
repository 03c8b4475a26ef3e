"""The wall clock: whether something keeps it right, and how far it is from ours."""

import re

from pdctl.base.hostfacts import ClockFacts
from pdctl.observe.host.raw import mapping, output, text, whole

_UNSYNC = 0x40  # STA_UNSYNC of adjtimex(2)
_TIME_ERROR = 5
_LEAP = re.compile(r"^Leap status\s*:\s*(.+?)\s*$", re.MULTILINE)
_TIMEDATECTL = re.compile(r"^NTPSynchronized=(yes|no)\s*$", re.MULTILINE)


def read_clock(raw: object, offset: float | None, error_bar: float | None) -> ClockFacts:
    """From the script's `clock`, and what its first line told against our own clock."""
    answer = mapping(raw)
    synchronized, source = _state(answer)
    return ClockFacts(synchronized, source, offset, error_bar)


def _state(answer: dict[str, object]) -> tuple[bool | None, str | None]:
    """By chrony if it runs, else by systemd, else by the kernel's own flag."""
    if leap := _LEAP.search(output(answer.get("chrony")) or ""):
        return leap[1] != "Not synchronised", "chrony"
    if told := _TIMEDATECTL.search(output(answer.get("timedatectl")) or ""):
        return told[1] == "yes", "systemd"
    kernel = mapping(answer.get("kernel"))
    state, status = whole(kernel.get("state")), whole(kernel.get("status"))
    if state is None or status is None or text(kernel.get("error")):
        return None, None
    return state != _TIME_ERROR and not status & _UNSYNC, "kernel"


def offset_of(theirs: float, sent: float, received: float) -> tuple[float, float]:
    """How far the host's clock is ahead, and by how much that may be wrong.

    Args:
        theirs: the host's time, read at some moment between the other two.
        sent, received: ours, when the question went out and when its answer was here.
    """
    return theirs - (sent + received) / 2, max(received - sent, 0.0) / 2
