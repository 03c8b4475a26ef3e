"""How long a run may go on: by minutes, and by what hosts cost an hour."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Budget:
    """Counts from when it is made.

    Attributes:
        seconds: the whole.
        hourly_usd: of all hosts together; None: they cost nothing that is known.
    """

    seconds: float
    hourly_usd: float | None = None
    clock: Callable[[], float] = time.monotonic
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()

    @property
    def spent(self) -> float:
        """Seconds."""
        return self.clock() - self.began

    @property
    def left(self) -> float:
        """Seconds; below 0 when a step took longer than was left."""
        return self.seconds - self.spent

    def as_dict(self) -> dict[str, float | None]:
        """What was allowed and what was spent."""
        hours = self.spent / 3600
        return {
            "seconds": self.seconds,
            "spent_seconds": round(self.spent, 1),
            "hourly_usd": self.hourly_usd,
            "spent_usd": None if self.hourly_usd is None else round(hours * self.hourly_usd, 2),
        }


def allowed(minutes: float, usd: float | None, hourly_usd: float | None) -> float:
    """Seconds: the lesser of the two caps.

    Raises:
        ValueError: dollars are capped and nobody knows what an hour costs.
    """
    if usd is None:
        return minutes * 60
    if not hourly_usd:
        raise ValueError("what an hour of the hosts costs is not known")
    return min(minutes * 60, usd / hourly_usd * 3600)
