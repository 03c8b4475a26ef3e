"""Lever ``quiet_queue``: processes of one engine that wait for each other without spinning.

After each message vLLM's shared-memory queue spins on ``sched_yield`` for a second before it
sleeps, in the worker and in the engine core. While decode retains blocks its engine steps every
millisecond, so that second never ends: a core is gone. And on some kernels (6.18 seen) a process
that has yielded long enough is then not run for tens of seconds while another one spins beside it:
one step of the other engine took a minute. With ``PDCTL_QUEUE_SPIN_MS=0`` the reader sleeps at
once on the socket that wakes it anyway, but never long: the writer drops a notification while an
older one is on its way, and a reader that does not spin would wait for it for ever (seen). For
local pairs; on hosts with cores to spare the spinning is what makes a step start early.
"""

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, Optional

from ._guard import ALL_OF, Lever, NotApplicable, Off, Target, attribute, is_patched, replace

_VARIABLE = "PDCTL_QUEUE_SPIN_MS"
_LONGEST_MS = 1000
_MODULE = "vllm.distributed.device_communicators.shm_broadcast"
_CLASS = "SpinCondition"
_FIELD = "busy_loop_s"
_NAP_MS = 2


def lever(env: Mapping[str, str]) -> Lever:
    """Return the lever with the time that the environment names."""
    value = env.get(_VARIABLE, "").strip()
    if not value:
        raise Off(f"{_VARIABLE} is not set")
    patch = functools.partial(_patch, spin_ms=_spin_ms(value))
    return Lever(targets=(Target(_MODULE, patch),), order=ALL_OF)


def _spin_ms(value: str) -> int:
    if not (value.isascii() and value.isdigit() and int(value) <= _LONGEST_MS):
        raise NotApplicable(f"{_VARIABLE} is not a whole number from 0 to {_LONGEST_MS}: {value!r}")
    return int(value)


def _patch(module: types.ModuleType, spin_ms: int) -> str:
    condition = attribute(module, _CLASS)
    done = f"readers of the shared-memory queue spin {spin_ms} ms before they sleep"
    if is_patched(condition, "__init__"):
        return done
    make = attribute(condition, "__init__")
    if _FIELD not in inspect.signature(make).parameters:
        raise NotApplicable(f"{_CLASS} takes no {_FIELD}")
    wait = attribute(condition, "wait")
    if "timeout_ms" not in inspect.signature(wait).parameters:
        raise NotApplicable(f"{_CLASS}.wait takes no timeout_ms")
    replace(condition, "wait", _napping(wait))
    replace(condition, "__init__", _spinning(make, spin_ms / 1000))
    return done


def _spinning(make: Callable[..., None], spin_s: float) -> Callable[..., None]:
    @functools.wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        # Writers have 0 here already, and one reader kind sets 0 by itself.
        setattr(self, _FIELD, min(getattr(self, _FIELD), spin_s))

    return init


def _napping(wait: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(wait)
    def nap(self: Any, timeout_ms: Optional[int] = None) -> None:
        # A caller looks at the queue again after every wait, whatever ended it.
        wait(self, timeout_ms=_NAP_MS if timeout_ms is None else min(timeout_ms, _NAP_MS))

    return nap
