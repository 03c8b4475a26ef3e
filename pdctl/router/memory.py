"""Handles in this process.

Within a scope they are sorted by their tokens: what shares the longest prefix with a prompt then
stands beside the place where the prompt would stand. So a look-up is a bisection, exact, and needs
no more memory than the tokens themselves.
"""

import heapq
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from pdctl.router.handle import Conversation, Handle, Scope, worth
from pdctl.router.store import Found, Total

# How many handles are looked at on each side of a prompt, and of its namesakes.
_NEIGHBOURS = 2
_NAMESAKES = 4
# What a handle takes besides its tokens and its parameters.
_OVERHEAD_BYTES = 2048

_Entry = tuple[bytes, str]


class _Order:
    """Ids by a number, least first. Those that have gone stay in it until they come up.

    Args:
        counts: whether a number is the one that a handle has now.
    """

    def __init__(
        self,
        alive: Mapping[str, Handle],
        counts: Callable[[float, Handle], bool] = lambda number, handle: True,
    ) -> None:
        self._alive = alive
        self._counts = counts
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, number: float, handle_id: str) -> None:
        heapq.heappush(self._heap, (number, handle_id))
        if len(self._heap) > 2 * len(self._alive) + 64:
            self._heap = [entry for entry in self._heap if self._holds(entry)]
            heapq.heapify(self._heap)

    def first(self) -> tuple[float, str] | None:
        while self._heap and not self._holds(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def _holds(self, entry: tuple[float, str]) -> bool:
        handle = self._alive.get(entry[1])
        return handle is not None and self._counts(entry[0], handle)


class MemoryStore:
    """Handles in this process, bounded in number and in bytes.

    Args:
        max_handles, max_bytes: when there is more, the least worthy goes.
        max_branches: handles that one named conversation may have; the oldest goes.
    """

    def __init__(
        self,
        *,
        max_handles: int = 100_000,
        max_bytes: int = 4 * 2**30,
        max_branches: int = 4,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_handles, self._max_bytes = max_handles, max_bytes
        self._max_branches = max_branches
        self._clock = clock
        self._handles: dict[str, Handle] = {}
        self._bytes = 0
        self._sorted: dict[Scope, list[_Entry]] = {}
        # Insertion order is age, so dictionaries serve as ordered sets of ids.
        self._by_key: dict[tuple[str, str], dict[str, None]] = {}
        self._by_anchor: dict[tuple[Scope, str], int] = {}
        self._totals: dict[str, Total] = {}
        # By decode server, least worthy first.
        self._worth: dict[str, _Order] = {}
        self._deadlines = _Order(self._handles, lambda number, handle: number == handle.deadline)

    def __len__(self) -> int:
        return len(self._handles)

    async def put(self, handle: Handle) -> list[Handle]:
        """Keep a handle, and take out what exceeds a bound."""
        # An engine that names two turns alike has only the later one.
        self._remove(handle.id)
        self._add(handle)
        return [*self._too_many_branches(handle), *self._too_much()]

    async def knows(self, scope: Scope, conversation: Conversation) -> bool:
        """By name in any scope of the tenant, or by beginning in this one."""
        named = bool(conversation.name) and (scope.tenant, conversation.key) in self._by_key
        return named or (scope, conversation.anchor) in self._by_anchor

    async def find(self, scope: Scope, prompt: bytes, conversation: Conversation) -> list[Found]:
        """The neighbours of the prompt, and the latest of its own conversation."""
        near = [self._handles[handle_id] for handle_id in self._neighbours(scope, prompt)]
        ids = self._by_key.get((scope.tenant, conversation.key), {})
        own = [self._handles[handle_id] for handle_id in islice(reversed(ids), _NAMESAKES)]
        unique = {h.id: h for h in [*near, *own] if h.scope == scope}
        return [Found.of(handle, prompt) for handle in unique.values()]

    async def take(self, handle_id: str) -> Handle | None:
        """Atomic, since nothing in it waits."""
        return self._remove(handle_id)

    async def take_conversation(self, tenant: str, key: str) -> list[Handle]:
        """All of its branches."""
        return self._remove_all(list(self._by_key.get((tenant, key), {})))

    async def take_least(self, decode: str, tokens: int) -> list[Handle]:
        """The least worthy, until their blocks make so many tokens."""
        taken: list[Handle] = []
        freed = 0
        while freed < tokens and (handle := self._least(decode)) is not None:
            self._remove(handle.id)
            freed += handle.pinned_tokens
            taken.append(handle)
        return taken

    async def take_all(
        self, wanted: Callable[[str, Conversation], bool] = lambda tenant, conversation: True
    ) -> list[Handle]:
        """Every handle that is wanted."""
        return self._remove_all(
            [h.id for h in self._handles.values() if wanted(h.scope.tenant, h.conversation)]
        )

    async def take_expired(self, now: float) -> list[Handle]:
        """Those past their deadline."""
        taken: list[Handle] = []
        while (first := self._deadlines.first()) is not None and first[0] <= now:
            taken += self._remove_all([first[1]])
        return taken

    async def free(self, ids: Sequence[str]) -> set[str]:
        """Those that are there."""
        return self._handles.keys() & set(ids)

    async def extend(self, handle_id: str, deadline: float, renewed: float) -> bool:
        """Atomic, since nothing in it waits."""
        handle = self._handles.get(handle_id)
        if handle is None:
            return False
        if deadline > handle.deadline:
            self._handles[handle_id] = replace(handle, deadline=deadline, renewed=renewed)
            self._deadlines.add(deadline, handle_id)
        return True

    async def forget_engine(self, decode: str, keep_start: str | None = None) -> int:
        """Handles to a dead engine start are worth nothing and cannot be released."""
        return len(
            self._remove_all(
                [
                    h.id
                    for h in self._handles.values()
                    if h.decode == decode and h.engine_start != keep_start
                ]
            )
        )

    async def totals(self) -> dict[str, Total]:
        """By decode URL."""
        return dict(self._totals)

    async def close(self) -> list[Handle]:
        """All that is there: it ends with this process."""
        return self._remove_all(list(self._handles))

    # Within.

    def _add(self, handle: Handle) -> None:
        self._handles[handle.id] = handle
        self._bytes += _size(handle)
        insort(self._sorted.setdefault(handle.scope, []), (handle.held.tokens, handle.id))
        key = (handle.scope.tenant, handle.conversation.key)
        self._by_key.setdefault(key, {})[handle.id] = None
        anchor = (handle.scope, handle.conversation.anchor)
        self._by_anchor[anchor] = self._by_anchor.get(anchor, 0) + 1
        self._count(handle, 1)
        order = self._worth.setdefault(handle.decode, _Order(self._handles))
        order.add(worth(handle, self._clock()), handle.id)
        self._deadlines.add(handle.deadline, handle.id)

    def _remove(self, handle_id: str) -> Handle | None:
        handle = self._handles.pop(handle_id, None)
        if handle is None:
            return None
        self._bytes -= _size(handle)
        order = self._sorted[handle.scope]
        del order[bisect_left(order, (handle.held.tokens, handle_id))]
        if not order:
            del self._sorted[handle.scope]
        key = (handle.scope.tenant, handle.conversation.key)
        del self._by_key[key][handle_id]
        if not self._by_key[key]:
            del self._by_key[key]
        anchor = (handle.scope, handle.conversation.anchor)
        self._by_anchor[anchor] -= 1
        if not self._by_anchor[anchor]:
            del self._by_anchor[anchor]
        self._count(handle, -1)
        return handle

    def _remove_all(self, ids: list[str]) -> list[Handle]:
        return [gone for gone in map(self._remove, ids) if gone is not None]

    def _count(self, handle: Handle, sign: int) -> None:
        had = self._totals.get(handle.decode, Total())
        self._totals[handle.decode] = Total(
            had.handles + sign,
            had.tokens + sign * handle.held.certain,
            had.pinned + sign * handle.pinned_tokens,
        )

    def _neighbours(self, scope: Scope, prompt: bytes) -> Iterator[str]:
        order = self._sorted.get(scope, [])
        place = bisect_left(order, (prompt, ""))
        for _, handle_id in order[max(0, place - _NEIGHBOURS) : place + _NEIGHBOURS]:
            yield handle_id

    def _too_many_branches(self, handle: Handle) -> list[Handle]:
        if not handle.conversation.name:
            return []  # one beginning may well have many conversations
        ids = self._by_key[(handle.scope.tenant, handle.conversation.key)]
        return self._remove_all(list(islice(ids, max(0, len(ids) - self._max_branches))))

    def _too_much(self) -> list[Handle]:
        gone = []
        while len(self._handles) > self._max_handles or self._bytes > self._max_bytes:
            firsts = [
                (first, decode)
                for decode, order in self._worth.items()
                if (first := order.first()) is not None
            ]
            least = self._least(min(firsts)[1]) if firsts else None
            if least is None:
                break
            self._remove(least.id)
            gone.append(least)
        return gone

    def _least(self, decode: str) -> Handle | None:
        order = self._worth.get(decode)
        first = order.first() if order is not None else None
        return self._handles[first[1]] if first is not None else None


def _size(handle: Handle) -> int:
    return len(handle.held.tokens) + len(handle.raw) + _OVERHEAD_BYTES
