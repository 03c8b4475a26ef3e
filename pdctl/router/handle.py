"""A handle: where decode keeps a finished turn, for whom, and until when."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pdctl.router.match import Retained

_DP_SUFFIX = re.compile(r"_dp\d+$")


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


@dataclass(frozen=True)
class Handle:
    """One finished turn that decode retains.

    Attributes:
        params: `kv_transfer_params` as decode returned them.
        held: the tokens, and how many of them surely have KV.
        block_size: tokens in one of decode's KV blocks.
        deadline: router clock, seconds; from then on the handle is not offered any more. Made
            with the TTL that was in force when the turn finished.
    """

    scope: Scope
    conversation: str
    decode: str
    params: Mapping[str, Any]
    held: Retained
    block_size: int
    deadline: float

    @property
    def id(self) -> str:
        """Unique among all engines and starts."""
        return f"{self.engine_id}/{self.params['remote_request_id']}"

    @property
    def engine_id(self) -> str:
        """The decode engine (and data-parallel rank) that holds the blocks."""
        return str(self.params["remote_engine_id"])

    @property
    def engine_start(self) -> str:
        """Names one start of a decode server: its ranks share it, a restart changes it."""
        return engine_start(self.engine_id)


def engine_start(engine_id: str) -> str:
    """The part of an engine id that all data-parallel ranks of one start share."""
    return _DP_SUFFIX.sub("", engine_id)


REQUIRED = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")


def is_handle(params: object) -> bool:
    """True for `kv_transfer_params` that point at retained blocks on decode."""
    return (
        isinstance(params, Mapping)
        and bool(params.get("do_remote_decode"))
        and bool(params.get("remote_block_ids"))
        and all(params.get(name) is not None for name in REQUIRED)
    )
