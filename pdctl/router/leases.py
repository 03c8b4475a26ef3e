"""Which handles to renew, and when. No loop, no socket and no clock of its own.

A conversation counts as active for so long after a turn as the setting says, while its last answer
called a tool, or its client is still connected. Its handle is then renewed each time when half of
the TTL is over.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from pdctl.base.transfer import expiry_of
from pdctl.router.handle import Handle

_RETRY_S = 1.0
# What is gained by less is not worth a request.
_WORTH_S = 1.0


@dataclass
class Lease:
    """A handle whose conversation may be active.

    Attributes:
        deadline: until when the handle is offered; router clock.
        expiry: until when decode keeps it; decode's clock. Both change together.
        until: when the conversation is no longer taken for active; router clock.
        active: whether it looks so now.
        model: under which decode serves it.
    """

    id: str
    decode: str
    engine_id: str
    request_id: str
    model: str
    deadline: float
    expiry: float
    until: float
    active: Callable[[], bool]

    def wanted(self, now: float, ttl: float) -> float:
        """The deadline to ask for: as after a turn that ended now, but not beyond `until`."""
        return min(now + ttl, self.until)

    def is_enough(self) -> bool:
        """Whether it is kept for as long as its conversation may be active."""
        return self.until - self.deadline < _WORTH_S

    def expiry_at(self, deadline: float) -> float:
        """By decode's clock, what the router's deadline would go with."""
        return self.expiry + (deadline - self.deadline)

    def deadline_at(self, expiry: float) -> float:
        """By the router's clock, what goes with decode's word."""
        return self.deadline + (expiry - self.expiry)


class Leases:
    """Handles of conversations that may be active; each is looked at when it is due.

    Args:
        idle: seconds after a turn for which its conversation may be active; 0: never.
    """

    def __init__(self, idle: float) -> None:
        self.idle = idle
        self._due: list[tuple[float, str]] = []
        self._leases: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, handle: Handle, now: float, active: Callable[[], bool]) -> None:
        """A turn has just ended. What cannot be renewed, or need not be, is left out."""
        if not self.idle or not active() or (expiry := expiry_of(handle.params)) is None:
            return
        lease = Lease(
            handle.id, handle.decode, handle.engine_id, handle.request_id, handle.scope.model,
            handle.deadline, expiry, now + self.idle, active,
        )  # fmt: skip
        self._leases[lease.id] = lease
        self._look_again(lease, handle.deadline - now)

    def due(self, now: float, ttl: float) -> list[Lease]:
        """What has to be renewed now; what has ended or is not active any more is dropped."""
        found = []
        while self._due and self._due[0][0] <= now:
            lease = self._leases.get(heapq.heappop(self._due)[1])
            if lease is None:
                continue
            if lease.deadline <= now or lease.is_enough() or not lease.active():
                self.drop(lease)
            elif lease.wanted(now, ttl) - lease.deadline < _WORTH_S:
                self.keep(lease, now, ttl)  # it was made with a longer TTL
            else:
                found.append(lease)
        return found

    def drop(self, lease: Lease) -> None:
        """It is not renewed any more."""
        self._leases.pop(lease.id, None)

    def keep(self, lease: Lease, now: float, ttl: float) -> None:
        """Look at it again: when half of its time is over, or soon where that is so already."""
        if lease.id in self._leases:
            self._look_again(lease, ttl, now + _RETRY_S)

    def _look_again(self, lease: Lease, ttl: float, earliest: float = 0.0) -> None:
        heapq.heappush(self._due, (max(lease.deadline - ttl / 2, earliest), lease.id))
