"""Reading logs for whoever wants only what was found."""

from collections import deque
from collections.abc import Sequence

from pdctl.observe.logs.read import Source, events
from pdctl.observe.logs.scan import Scanner
from pdctl.observe.logs.summary import Summary, Wanted
from pdctl.observe.signatures import SIGNATURES


def read_all(sources: Sequence[Source], *, since: float | None = None) -> Summary:
    """Everything in these logs, judged and counted; of `since` on, seconds since the epoch."""
    summary = Summary()
    deque(summary.of(events(sources, Scanner(SIGNATURES)), Wanted(since=since)), 0)
    summary.close()
    return summary
