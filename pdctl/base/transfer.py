"""`kv_transfer_params`, the handle on the wire (FACTS 4). Unknown fields pass on untouched."""

import math
from collections.abc import Mapping
from typing import Any

FIRST_TURN: Mapping[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What prefill is sent when it shall pull nothing, and hold its blocks for decode."""

EXPIRY = "remote_blocks_expiry_time"
_REQUIRED = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")


def is_handle(params: object) -> bool:
    """True for what points at blocks that decode retains."""
    return (
        isinstance(params, Mapping)
        and bool(params.get("do_remote_decode"))
        and bool(params.get("remote_block_ids"))
        and all(params.get(name) is not None for name in _REQUIRED)
    )


def for_pull(params: Mapping[str, Any], tokens: int, block_size: int) -> dict[str, Any]:
    """The handle for exactly `tokens` tokens, ready for prefill.

    The block lists are cut to what those tokens fill: the engine trims from the end, so longer
    lists put the wrong blocks at the front (FACTS L4).
    """
    blocks = math.ceil(tokens / block_size)
    return {
        **params,
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_num_tokens": tokens,
        "remote_block_ids": [list(group[:blocks]) for group in params["remote_block_ids"]],
    }


def for_release(params: Mapping[str, Any]) -> dict[str, Any]:
    """The handle as a release: prefill pulls nothing and tells decode to free it (FACTS L3).

    One empty list a KV group: an engine takes a list of none for no handle at all. Whatever came
    from decode has to be releasable, also what makes no sense.
    """
    groups = params.get("remote_block_ids")
    count = len(groups) if isinstance(groups, list) else 1
    return {
        **params,
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_num_tokens": 0,
        "remote_block_ids": [[] for _ in range(max(1, count))],
    }


def for_refusal(params: Mapping[str, Any]) -> dict[str, Any]:
    """The handle as a release by a request that prefill refuses: that gives up what it would pull.

    Read in vLLM 0.32.0 and 0.33.0, and run on 0.32.0.
    """
    return {**for_release(params), "do_remote_decode": False, "do_remote_prefill": True}


def expiry_of(params: Mapping[str, Any]) -> float | None:
    """When decode drops the blocks, by its own clock; None where it cannot be asked to wait."""
    expiry = params.get(EXPIRY)
    renewable = params.get("pdctl_renewable") is True
    return expiry if renewable and _is_number(expiry) else None


def for_renewal(engine_id: str, until: Mapping[str, float]) -> dict[str, Any]:
    """What asks decode to keep turns for longer; the plugin's `lease_renewal` answers.

    Args:
        until: deadlines by request id, as `expiry_of` has them.
    """
    asked = {"engine_id": engine_id, "until": dict(until)}
    # For a decode server that does not know the question: it then frees its block by itself.
    return {"do_remote_decode": True, "pdctl_renew": asked}


def renewed(params: object) -> dict[str, float] | None:
    """The deadlines that hold, by request id, as decode answered; None if that is no answer."""
    told = params.get("pdctl_renewed") if isinstance(params, Mapping) else None
    if not isinstance(told, Mapping):
        return None
    return {str(name): float(expiry) for name, expiry in told.items() if _is_number(expiry)}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
