"""Hit rate as a function of the TTL, exact at whole seconds."""

from collections import Counter
from collections.abc import Sequence
from math import floor

LADDER = (15.0, 30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1800.0, 3600.0)
"""TTLs that are always looked at, in seconds."""
PERCENTILES = (50, 75, 90, 95, 99)
_EDGES = (1, 2, 5, 10, 20, 30, 60, 120, 240, 480, 960, 1800, 3600, 7200, 86400)


class Gaps:
    """Gaps between turns.

    Args:
        counts: seconds, rounded up → how many. Below zero, where turns overlap, counts as zero.
    """

    def __init__(self, counts: Counter[int]) -> None:
        self.total = sum(counts.values())
        self._seconds: list[int] = []
        self._below: list[int] = []
        below = 0
        for second in sorted(counts):
            below += counts[second]
            self._seconds.append(max(0, second))
            self._below.append(below)

    def within(self, ttl: float) -> int:
        """How many are no longer than that; exact for whole seconds."""
        from bisect import bisect_right

        at = bisect_right(self._seconds, floor(ttl))
        return self._below[at - 1] if at else 0

    def share(self, ttl: float) -> float | None:
        """The share of turns that come within that time."""
        return self.within(ttl) / self.total if self.total else None

    def percentile(self, percent: float) -> int | None:
        """Seconds, rounded up, that so many of a hundred gaps do not exceed."""
        wanted = self.total * percent / 100
        for second, below in zip(self._seconds, self._below, strict=True):
            if below >= wanted:
                return second
        return None

    def histogram(self) -> list[tuple[int | None, int]]:
        """Upper edges in seconds, the last without end, and how many lie between."""
        rows: list[tuple[int | None, int]] = []
        before = 0
        for edge in _EDGES:
            below = self.within(edge)
            rows.append((edge, below - before))
            before = below
        return [*rows, (None, self.total - before)]

    def knee(self, most: float) -> int | None:
        """The TTL after which each further second gains less than one does in the mean.

        It is where the curve is furthest above the straight line from nothing to `most` (Satopaa
        et al., "Finding a Kneedle in a Haystack", 2011).

        Args:
            most: the longest TTL that is thought of, in seconds.
        """
        end = min(most, self.percentile(99) or 0)
        whole = self.within(end)
        if not whole or end <= 0:
            return None
        best, found = -1.0, None
        for second, below in zip(self._seconds, self._below, strict=True):
            if second > end:
                break
            above = below / whole - second / end
            if above > best:
                best, found = above, max(1, second)
        return found


def ladder(ttl: float, knee: float | None) -> Sequence[float]:
    """The TTLs to show: the usual ones, the one in force and the knee."""
    wanted = {*LADDER, ttl} | ({float(knee)} if knee else set())
    return sorted(each for each in wanted if each > 0)
