"""Where handles are kept between turns, behind one small interface.

A handle is single-use (FACTS T5). Its life is one state machine with one atomic step out of FREE:

    FREE → CLAIMED → CONSUMED | UNKNOWN
    FREE → RELEASED | FORGOTTEN

CLAIMED ones are not in the store any more; what became of them is only counted. UNKNOWN ones are
never used nor released again, since prefill may still be reading.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from pdctl.router import match
from pdctl.router.handle import Conversation, Handle, Scope


class Found(NamedTuple):
    """A FREE handle that a prompt might use, without its tokens.

    Attributes:
        equal: leading tokens of the prompt that it holds, as far as the store can tell.
        deadline: router clock, seconds.
    """

    id: str
    conversation: Conversation
    decode: str
    engine_start: str
    prefill: str
    certain: int
    block_size: int
    deadline: float
    equal: int

    @classmethod
    def of(cls, handle: Handle, prompt: bytes) -> "Found":
        """What a store that has the handle at hand says of it."""
        return cls(
            id=handle.id,
            conversation=handle.conversation,
            decode=handle.decode,
            engine_start=handle.engine_start,
            prefill=handle.prefill,
            certain=handle.held.certain,
            block_size=handle.block_size,
            deadline=handle.deadline,
            equal=match.common_prefix(handle.held.tokens, prompt),
        )


class Total(NamedTuple):
    """What is kept of one decode server.

    Attributes:
        tokens: certain tokens of its handles.
        pinned: tokens for which it has no room meanwhile.
    """

    handles: int = 0
    tokens: int = 0
    pinned: int = 0


class HandleStore(Protocol):
    """The handles that are FREE. All methods may wait on a network, and none of them raises.

    Handles that come from anything but `take` are there to be released: they may be without their
    tokens.
    """

    async def put(self, handle: Handle) -> list[Handle]:
        """Keep a handle. Returns those that should be released.

        That is what had to go for it, or itself when it surely was not kept.
        """
        ...

    async def knows(self, scope: Scope, conversation: Conversation) -> bool:
        """Whether a handle of this name or this beginning is there, so that a look is worth it."""
        ...

    async def find(self, scope: Scope, prompt: bytes, conversation: Conversation) -> list[Found]:
        """Some FREE handles for a packed prompt: the longest common prefixes, and namesakes."""
        ...

    async def take(self, handle_id: str) -> Handle | None:
        """Move one handle out of FREE. None when somebody else was first, or it is gone."""
        ...

    async def take_conversation(self, tenant: str, key: str) -> list[Handle]:
        """Take all handles of a conversation, whatever their model."""
        ...

    async def take_least(self, decode: str, tokens: int) -> list[Handle]:
        """Take the least worthy handles of a decode server, until `tokens` pinned ones are free."""
        ...

    async def take_all(
        self, wanted: Callable[[str, Conversation], bool] = lambda tenant, conversation: True
    ) -> list[Handle]:
        """Take every handle whose tenant and conversation are wanted."""
        ...

    async def take_expired(self, now: float) -> list[Handle]:
        """Take the handles whose deadline has passed."""
        ...

    async def free(self, ids: Sequence[str]) -> set[str]:
        """Those of the handles that are FREE."""
        ...

    async def extend(self, handle_id: str, deadline: float, renewed: float) -> bool:
        """Make a FREE handle's deadline later, in one step. False when it is not FREE any more.

        Args:
            deadline: router clock; an earlier one than it has changes nothing.
            renewed: the same by decode's clock.
        """
        ...

    async def forget_engine(self, decode: str, keep_start: str | None = None) -> int:
        """Drop the handles of a decode server but those of `keep_start`. Returns how many."""
        ...

    async def totals(self) -> dict[str, Total]:
        """By decode URL."""
        ...

    async def close(self) -> list[Handle]:
        """Give connections back. Returns the handles that nobody can use any more."""
        ...
