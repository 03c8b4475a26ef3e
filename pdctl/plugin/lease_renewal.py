"""Lever ``lease_renewal``: D keeps a turn for longer when it is asked to, and says so (FACTS L10).

With ``PDCTL_LEASE_RENEWAL=on`` any request to D may carry::

    "kv_transfer_params": {"do_remote_decode": true,
                           "pdctl_renew": {"engine_id": "…", "until": {"<request id>": deadline}}}

and its answer says for which turns what deadline holds::

    "kv_transfer_params": {"pdctl_renewed": {"<request id>": deadline}}

Deadlines are of the clock of ``remote_blocks_expiry_time``. None is ever made earlier, and none
later than one TTL from now. A turn that was read, released or has expired is not in the answer.
Handles that can be renewed have ``"pdctl_renewable": true``. (A D without the lever that is asked
all the same takes the request for one of P's, and frees its block after the lease. Without
``do_remote_decode`` it would keep the block for ever: FACTS 11.)

The new deadline goes to the workers the way the first one went: in ``reqs_to_send`` of the next
step. All workers take it in that step, before any of them looks for what has expired, and one that
has let go already ignores it. The request that asks runs in that step too, and its answer is made
when the scheduler has that step's outputs: by then every worker has the deadline, and the
scheduler knows what they have all let go before. So what is answered is true, however late.
"""

import functools
import inspect
import math
import time
import types
from collections.abc import Callable, Mapping
from typing import Any, Optional

from ._guard import (
    LOGGER,
    Lever,
    NotApplicable,
    Off,
    Target,
    attribute,
    is_patched,
    mentions,
    replace,
)

_VARIABLE = "PDCTL_LEASE_RENEWAL"
# It has both sides in its namespace, and is executed before either is made.
_MODULE = "vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector"
_SCHEDULER = "NixlPullConnectorScheduler"
_WORKER = "NixlPullConnectorWorker"

_ASKED = "pdctl_renew"
_ANSWERED = "pdctl_renewed"
_MARK = "pdctl_renewable"
_EXPIRY = "remote_blocks_expiry_time"
_STATE = "_pdctl_leases"

# What each function does, told by the names it uses.
_USED = {
    (_SCHEDULER, "request_finished"): ("_reqs_need_send", "decoder_kv_blocks_ttl", _EXPIRY),
    (_SCHEDULER, "build_connector_meta"): ("_reqs_need_send", "reqs_to_send", "scheduler_clock"),
    (_SCHEDULER, "update_state_after_alloc"): ("kv_transfer_params",),
    (_SCHEDULER, "update_connector_output"): ("finished_recving",),
    (_WORKER, "start_load_kv"): ("reqs_to_send", "scheduler_clock", "_reqs_to_process"),
    (_WORKER, "_reap_expired_send_leases"): ("_reqs_to_send",),
}
_ARGUMENTS = {
    "request_finished": ["self", "request", "block_ids"],
    "update_state_after_alloc": ["self", "request", "blocks", "num_external_tokens"],
    "update_connector_output": ["self", "connector_output"],
}


def lever(env: Mapping[str, str]) -> Lever:
    """Return the lever, if it was asked for."""
    if env.get(_VARIABLE, "").strip().lower() not in ("on", "1", "true"):
        raise Off(f"{_VARIABLE} is not on")
    return Lever(targets=(Target(_MODULE, _patch),))


def _patch(module: types.ModuleType) -> str:
    owner = attribute(module, _SCHEDULER)
    done = f"turns that {_SCHEDULER} keeps can be renewed"
    if is_patched(owner, "request_finished"):
        return done
    for (name, method), used in _USED.items():
        function = attribute(attribute(module, name), method)
        missing = [word for word in used if not mentions(function, word)]
        if missing:
            raise NotApplicable(f"{name}.{method} does not use {missing[0]}")
    for method, expected in _ARGUMENTS.items():
        if list(inspect.signature(getattr(owner, method)).parameters) != expected:
            raise NotApplicable(f"{_SCHEDULER}.{method} takes other arguments")
    for method, wrapped in (
        ("update_state_after_alloc", granting),
        ("update_connector_output", forgetting),
        ("request_finished", answering),
    ):
        replace(owner, method, wrapped(getattr(owner, method)))
    return done


class Leases:
    """What one scheduler keeps, and until when. It is only used by the scheduler's own thread."""

    def __init__(self) -> None:
        # By request id: the deadline that was sent to the workers last.
        self.kept: dict[str, float] = {}
        # By the request that asked: what was sent to them in its step.
        self.granted: dict[str, dict[str, float]] = {}

    @classmethod
    def of(cls, scheduler: Any) -> "Leases":
        """Those of a scheduler."""
        leases: Leases = vars(scheduler).setdefault(_STATE, cls())
        return leases

    def grant(self, scheduler: Any, request: Any) -> None:
        """Send later deadlines to the workers, with this step."""
        now = time.perf_counter()
        latest = now + scheduler.decoder_kv_blocks_ttl
        granted = self.granted[request.request_id] = {}
        for request_id, until in _wanted(scheduler, request).items():
            old = self.kept.get(request_id)
            if old is None or old <= now:
                continue
            deadline = max(old, min(until, latest))
            scheduler._reqs_need_send[request_id] = deadline
            self.kept[request_id] = granted[request_id] = deadline

    def answer(self, request: Any) -> dict[str, float]:
        """What all workers have taken, of what is still there."""
        granted = self.granted.pop(request.request_id, {})
        return {name: deadline for name, deadline in granted.items() if name in self.kept}


def granting(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap what is called when a request is about to run."""

    @functools.wraps(stock)
    def update_state_after_alloc(
        self: Any, request: Any, blocks: Any, num_external_tokens: int
    ) -> Any:
        if _asked(request) is not None:
            # Nothing of it is sent or received, so the workers need not know of it.
            return _safely(Leases.of(self).grant, self, request)
        return stock(self, request, blocks, num_external_tokens)

    return update_state_after_alloc


def forgetting(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap what is called with what all workers have done in a step."""

    @functools.wraps(stock)
    def update_connector_output(self: Any, connector_output: Any) -> Any:
        kept = Leases.of(self).kept
        for request_id in getattr(connector_output, "finished_sending", None) or ():
            kept.pop(request_id, None)
        return stock(self, connector_output)

    return update_connector_output


def answering(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap what makes the `kv_transfer_params` of an answer."""

    @functools.wraps(stock)
    def request_finished(self: Any, request: Any, block_ids: Any) -> Any:
        if _asked(request) is not None:
            # Nothing is kept of it.
            return False, {_ANSWERED: _safely(Leases.of(self).answer, request) or {}}
        keeps, params = stock(self, request, block_ids)
        deadline = params.get(_EXPIRY) if keeps and params else None
        if deadline is not None:  # D's; what P keeps has a lease of its own
            Leases.of(self).kept[request.request_id] = deadline
            params[_MARK] = True
        return keeps, params

    return request_finished


def _asked(request: Any) -> Optional[Any]:
    params = request.kv_transfer_params
    return params.get(_ASKED) if isinstance(params, dict) else None


def _wanted(scheduler: Any, request: Any) -> dict[str, float]:
    """Deadlines by request id; nothing of what makes no sense, or is meant for another engine."""
    asked = _asked(request)
    if not isinstance(asked, dict) or asked.get("engine_id") != scheduler.engine_id:
        return {}
    until = asked.get("until")
    if not isinstance(until, dict):
        return {}
    return {
        name: float(deadline)
        for name, deadline in until.items()
        if isinstance(deadline, (int, float))
        and not isinstance(deadline, bool)
        and math.isfinite(deadline)
    }


def _safely(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:  # a turn that is not renewed costs a prefill, not the engine
        LOGGER.warning("pdctl plugin: lease_renewal: nothing renewed: %s", error)
        return None
