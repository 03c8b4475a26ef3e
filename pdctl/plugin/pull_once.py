"""Lever ``pull_once``: P waits for a pull only if it is going to start one (FACTS L12).

vLLM pulls once for a request, and remembers that. But when the request is scheduled anew (it was
preempted, or its pull failed and is to be recomputed), it is counted on D's blocks again and waits
for a pull that nobody starts: for ever, and its own blocks stay taken after its client has left.
With the lever it is computed from what P has itself.
"""

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, Optional

from ._guard import (
    Lever,
    NotApplicable,
    NotNeeded,
    Target,
    attribute,
    is_patched,
    mentions,
    replace,
)

_MODULE = "vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler"
_CLASS = "NixlPullConnectorScheduler"
_COUNT = "get_num_new_matched_tokens"
_START = "update_state_after_alloc"
_STARTED = "_remote_blocks_processed"


def lever(env: Mapping[str, str]) -> Lever:
    """Return the lever; it needs nothing from the environment."""
    del env
    return Lever(targets=(Target(_MODULE, _patch),))


def _patch(module: types.ModuleType) -> str:
    owner = attribute(module, _CLASS)
    done = f"{_CLASS} counts on each pull once"
    if is_patched(owner, _COUNT):
        return done
    count = attribute(owner, _COUNT)
    for method, used in ((_START, _STARTED), (_START, "do_remote_prefill"), (_COUNT, "params")):
        # Another lever may have been there already.
        if not mentions(inspect.unwrap(attribute(owner, method)), used):
            raise NotApplicable(f"{_CLASS}.{method} does not use {used}")
    if mentions(count, _STARTED):
        raise NotNeeded(f"{_CLASS}.{_COUNT} handles {_STARTED} in this vLLM")
    replace(owner, _COUNT, once(count))
    return done


def once(count: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap what says how many tokens come from elsewhere, and whether to wait for them."""

    @functools.wraps(count)
    def get_num_new_matched_tokens(
        self: Any, request: Any, num_computed_tokens: int
    ) -> tuple[Optional[int], bool]:
        params = request.kv_transfer_params
        if params and params.get(_STARTED) and not params.get("do_remote_prefill"):
            return 0, False
        matched: tuple[Optional[int], bool] = count(self, request, num_computed_tokens)
        return matched

    return get_num_new_matched_tokens
