"""Lever ``settled_frees``: P reuses blocks only when no step can write them any more (FACTS L11).

With batches that overlap (the async scheduler, the default on GPUs) a request can end or be
preempted while a step that was sent off already still writes its blocks. A pull into them is not
ordered against that step: the pulled KV is overwritten, and nobody notices. vLLM's scheduler waits
for the step, but only where ``kv_role`` says that KV is received (``defer_block_free``). Prefill is
``kv_producer``, and with bi-directional KV it receives all the same. The lever turns the same wait
on there. Nothing else changes: not without overlap, not without bi-directional KV.
"""

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

from ._guard import Lever, NotApplicable, Target, attribute, is_patched, mentions, replace

_MODULE = "vllm.v1.core.sched.scheduler"
_CLASS = "Scheduler"
_WAITS = "defer_block_free"

# What each function does, told by the names it uses.
_USED = {
    "__init__": (_WAITS, "max_concurrent_batches", "kv_transfer_config", "deferred_frees"),
    "schedule": (_WAITS, "sched_step_seq"),
    "update_from_output": (_WAITS, "processed_step_seq"),
}


def lever(env: Mapping[str, str]) -> Lever:
    """Return the lever; it needs nothing from the environment."""
    del env
    return Lever(targets=(Target(_MODULE, _patch),))


def _patch(module: types.ModuleType) -> str:
    owner = attribute(module, _CLASS)
    done = f"{_CLASS} waits for the steps under way before it reuses blocks, on prefill too"
    if is_patched(owner, "__init__"):
        return done
    for method, used in _USED.items():
        function = attribute(owner, method)
        missing = [word for word in used if not mentions(function, word)]
        if missing:
            raise NotApplicable(f"{_CLASS}.{method} does not use {missing[0]}")
    replace(owner, "__init__", waiting(owner.__init__))
    return done


def waiting(make: Callable[..., None]) -> Callable[..., None]:
    """Wrap what makes a scheduler. No step is counted yet when it is done."""

    @functools.wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        if _pulls(self.vllm_config) and self.vllm_config.max_concurrent_batches > 1:
            setattr(self, _WAITS, True)

    return init


def _pulls(vllm_config: Any) -> bool:
    transfer = vllm_config.kv_transfer_config
    extra = getattr(transfer, "kv_connector_extra_config", None) or {}
    return bool(extra.get("bidirectional_kv_xfer"))
