"""A handle: where decode keeps a finished turn, for whom, and until when."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import orjson

from pdctl.base.transfer import EXPIRY
from pdctl.router.match import Retained

_DP_SUFFIX = re.compile(r"_dp(\d+)$")
# How long it takes until an unused handle is worth half as much as a fresh one.
_HALF_LIFE_S = 120.0


@dataclass(frozen=True)
class Scope:
    """Who may use a handle. Everything that makes equal tokens have different KV is in here.

    Attributes:
        tenant: whose conversation it is; empty where there are no API keys.
        model: the request's model name, which also names a LoRA adapter.
        salt: the request's `cache_salt`.
    """

    tenant: str
    model: str
    salt: str


class Conversation:
    """What a request says about the conversation it belongs to. Hints only: tokens decide.

    Args:
        anchor: as below; or how to make it, since that takes as long as its text is, and most
            conversations have a name.

    Attributes:
        name: the client's own name for it; empty when it gave none.
        anchor: digest of how the conversation begins; empty when it has no such beginning.
    """

    def __init__(self, name: str = "", anchor: str | Callable[[], str] = "") -> None:
        self.name = name
        self._anchor = anchor

    @cached_property
    def anchor(self) -> str:
        return self._anchor if isinstance(self._anchor, str) else self._anchor()

    @property
    def key(self) -> str:
        """What names it in logs and for `DELETE`: the client's name, else its beginning."""
        return self.name or (f"~{self.anchor}" if self.anchor else "")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Conversation):
            return NotImplemented
        return (self.name, self.anchor) == (other.name, other.anchor)

    def __hash__(self) -> int:
        return hash((self.name, self.anchor))

    def __repr__(self) -> str:
        return f"Conversation({self.name!r}, {self.anchor!r})"


@dataclass(frozen=True)
class Handle:
    """One finished turn that decode retains.

    Attributes:
        raw: `kv_transfer_params` as decode returned them, in JSON: their block ids would take as
            much memory as the tokens otherwise.
        engine_id: the decode engine (and data-parallel rank) that holds the blocks.
        held: the tokens, and how many of them surely have KV.
        block_size: tokens in one of decode's KV blocks.
        blocks: how many of them are pinned.
        deadline: router clock, seconds; from then on the handle is not offered any more. Made
            with the TTL that was in force when the turn finished.
        prefill: the server that computed the prompt; its own prefix cache may have it.
        turns: turns that the conversation has had, this one included.
        renewed: until when decode keeps it by its own clock, where it was asked to keep it for
            longer than `raw` says.
    """

    scope: Scope
    conversation: Conversation
    decode: str
    engine_id: str
    request_id: str
    raw: bytes
    held: Retained
    block_size: int
    blocks: int
    deadline: float
    prefill: str = ""
    turns: int = 1
    renewed: float | None = None

    @classmethod
    def of(cls, params: Mapping[str, Any], **fields: Any) -> "Handle":
        """From decode's parameters, which `is_handle` has let through."""
        return cls(
            engine_id=str(params["remote_engine_id"]),
            request_id=str(params["remote_request_id"]),
            # A copy, since orjson leaves its result in a buffer of twenty times the size.
            raw=bytes(memoryview(orjson.dumps(params))),
            blocks=sum(map(len, params["remote_block_ids"])),
            **fields,
        )

    @property
    def params(self) -> dict[str, Any]:
        """`kv_transfer_params`, read anew each time."""
        params: dict[str, Any] = orjson.loads(self.raw)
        return params if self.renewed is None else {**params, EXPIRY: self.renewed}

    @cached_property
    def id(self) -> str:
        """Unique among all engines and starts."""
        return f"{self.engine_id}/{self.request_id}"

    @property
    def engine_start(self) -> str:
        """Names one start of a decode server: its ranks share it, a restart changes it."""
        return engine_start(self.engine_id)

    @property
    def pinned_tokens(self) -> int:
        """Tokens for which decode has no room while this is retained."""
        return self.blocks * self.block_size


def worth(handle: Handle, kept_at: float) -> float:
    """Orders handles by what is lost without them: tokens × chance that the next turn comes.

    A conversation that came back before is likely to again; one that is long silent is not. By
    the logarithm two handles keep their order as time passes, so that it can be stored.

    Args:
        kept_at: when it was kept; seconds, of a clock that all handles of a store share.
    """
    chance = handle.turns / (handle.turns + 2)
    return math.log2(max(1, handle.held.certain) * chance) + kept_at / _HALF_LIFE_S


@lru_cache(maxsize=1024)
def engine_start(engine_id: str) -> str:
    """The part of an engine id that all data-parallel ranks of one start share."""
    return _DP_SUFFIX.sub("", engine_id)


def rank(engine_id: str) -> int | None:
    """The data-parallel rank that an engine id names; None when there is but one."""
    found = _DP_SUFFIX.search(engine_id)
    return int(found.group(1)) if found else None
