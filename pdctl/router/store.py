"""Where handles are kept between turns, behind one small interface.

A handle is single-use (FACTS T5). Its life is one state machine with one atomic step out of FREE:

    FREE → CLAIMED → CONSUMED | UNKNOWN
    FREE → RELEASED | FORGOTTEN

CLAIMED ones are not in the store any more; what became of them is only counted. UNKNOWN ones are
never used nor released again, since prefill may still be reading.
"""

from collections import OrderedDict
from typing import Protocol

from pdctl.router.handle import Handle, Scope


class HandleStore(Protocol):
    """The handles that are FREE. All methods may wait on a network."""

    async def put(self, handle: Handle) -> list[Handle]:
        """Keep a handle. Returns those that had to go for it and should be released."""
        ...

    async def find(self, scope: Scope, conversation: str) -> list[Handle]:
        """FREE handles of a conversation, newest first."""
        ...

    async def take(self, handle_id: str) -> Handle | None:
        """Move one handle out of FREE. None when somebody else was first, or it is gone."""
        ...

    async def take_conversation(self, tenant: str, conversation: str) -> list[Handle]:
        """Take all handles of a conversation, whatever their model."""
        ...

    async def take_expired(self, now: float) -> list[Handle]:
        """Take the handles whose deadline has passed; their blocks need no release."""
        ...

    async def forget_engine(self, decode: str, keep_start: str | None = None) -> int:
        """Drop the handles of a decode server but those of `keep_start`. Returns how many."""
        ...

    async def totals(self) -> dict[str, tuple[int, int]]:
        """By decode URL: number of handles, and of certain tokens they hold."""
        ...


class MemoryStore:
    """Handles in this process. Bounded by handles in all and by branches of a conversation."""

    def __init__(self, *, max_handles: int = 100_000, max_branches: int = 4) -> None:
        self._handles: OrderedDict[str, Handle] = OrderedDict()
        self._by_conversation: dict[tuple[str, str], list[str]] = {}
        self._max_handles = max_handles
        self._max_branches = max_branches

    async def put(self, handle: Handle) -> list[Handle]:
        """Keep a handle; the oldest branch, or the oldest of all, goes when a bound is met."""
        # An engine that names two turns alike has only the later one.
        self._remove(handle.id)
        self._handles[handle.id] = handle
        branches = self._by_conversation.setdefault(_key(handle), [])
        branches.append(handle.id)
        evicted = []
        if len(branches) > self._max_branches:
            evicted.append(branches[0])
        if len(self._handles) > self._max_handles:
            evicted.append(next(iter(self._handles)))
        return [gone for gone in map(self._remove, evicted) if gone is not None]

    async def find(self, scope: Scope, conversation: str) -> list[Handle]:
        """FREE handles of the conversation in this very scope, newest first."""
        ids = self._by_conversation.get((scope.tenant, conversation), [])
        found = [self._handles[handle_id] for handle_id in reversed(ids)]
        return [handle for handle in found if handle.scope == scope]

    async def take(self, handle_id: str) -> Handle | None:
        """Atomic, since nothing in it waits."""
        return self._remove(handle_id)

    async def take_conversation(self, tenant: str, conversation: str) -> list[Handle]:
        """All branches of the conversation."""
        ids = list(self._by_conversation.get((tenant, conversation), []))
        return [gone for gone in map(self._remove, ids) if gone is not None]

    async def take_expired(self, now: float) -> list[Handle]:
        """Those past their deadline."""
        ids = [handle.id for handle in self._handles.values() if handle.deadline <= now]
        return [gone for gone in map(self._remove, ids) if gone is not None]

    async def forget_engine(self, decode: str, keep_start: str | None = None) -> int:
        """Handles to a dead engine start are worth nothing and cannot be released."""
        ids = [
            handle.id
            for handle in self._handles.values()
            if handle.decode == decode and handle.engine_start != keep_start
        ]
        return sum(self._remove(handle_id) is not None for handle_id in ids)

    async def totals(self) -> dict[str, tuple[int, int]]:
        """Counted when asked; a scrape is rare."""
        totals: dict[str, tuple[int, int]] = {}
        for handle in self._handles.values():
            count, tokens = totals.get(handle.decode, (0, 0))
            totals[handle.decode] = (count + 1, tokens + handle.held.certain)
        return totals

    def _remove(self, handle_id: str) -> Handle | None:
        handle = self._handles.pop(handle_id, None)
        if handle is not None:
            key = _key(handle)
            branches = self._by_conversation[key]
            branches.remove(handle_id)
            if not branches:
                del self._by_conversation[key]
        return handle


def _key(handle: Handle) -> tuple[str, str]:
    return handle.scope.tenant, handle.conversation
