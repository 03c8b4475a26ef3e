"""Bytes in, judged events out."""

from pdctl.observe.logs.event import Event
from pdctl.observe.logs.line import Clock
from pdctl.observe.logs.scan import Scanner
from pdctl.observe.logs.stream import Stream
from pdctl.observe.logs.summary import Summary
from pdctl.observe.signatures import SIGNATURES

SCANNER = Scanner(SIGNATURES)
NOW = 1_796_000_000.0  # 2026-11-30
CLOCK = Clock(NOW)


def stream(name: str = "x.log", role: str | None = None, **more) -> Stream:
    return Stream(name, SCANNER, CLOCK, role=role, **more)


def events(text: str | bytes, **more) -> list[Event]:
    data = text if isinstance(text, bytes) else text.encode()
    return list(stream(**more).feed(data, last=True))


def ids(text: str | bytes, **more) -> list[str | None]:
    return [event.id for event in events(text, **more)]


def summed(*found: Event) -> Summary:
    summary = Summary()
    for _ in summary.of(found):
        pass
    summary.close()
    return summary
