"""Medians and how sure they are. Pure.

Turns of one conversation resemble each other, so what is drawn again is whole conversations: turns
drawn one by one would make intervals that are too narrow.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

RESAMPLES = 1000
_SEED = "pdctl bench"
Clusters = Mapping[str, Sequence[float]]
"""Values by conversation."""


@dataclass(frozen=True)
class Estimate:
    """A median with its interval of 95 %.

    Attributes:
        low, high: None where one conversation alone says nothing of others.
    """

    value: float
    low: float | None
    high: float | None

    def as_dict(self) -> dict[str, float | None]:
        """For JSON."""
        return {"value": self.value, "low": self.low, "high": self.high}


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of all lie, between neighbours in proportion."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * share
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def median(values: Sequence[float]) -> float:
    """The middle one."""
    return percentile(values, 0.5)


def median_of(clusters: Clusters) -> Estimate | None:
    """The median of all values; None of none."""
    values = _flat(clusters.values())
    if not values:
        return None
    if len(clusters) < 2:
        return Estimate(median(values), None, None)
    rng = random.Random(_SEED)
    drawn = [median(_drawn(rng, clusters)) for _ in range(RESAMPLES)]
    return Estimate(median(values), percentile(drawn, 0.025), percentile(drawn, 0.975))


def ratio_of(above: Clusters, below: Clusters) -> Estimate | None:
    """The median of the one over that of the other; None where one has no value."""
    top, bottom = _flat(above.values()), _flat(below.values())
    if not top or not bottom or not median(bottom):
        return None
    value = median(top) / median(bottom)
    if len(above) < 2 or len(below) < 2:
        return Estimate(value, None, None)
    rng = random.Random(_SEED)
    drawn = [median(_drawn(rng, above)) / median(_drawn(rng, below)) for _ in range(RESAMPLES)]
    return Estimate(value, percentile(drawn, 0.025), percentile(drawn, 0.975))


def _drawn(rng: random.Random, clusters: Clusters) -> list[float]:
    return _flat(rng.choices(list(clusters.values()), k=len(clusters)))


def _flat(groups: Iterable[Sequence[float]]) -> list[float]:
    return [value for group in groups for value in group]
