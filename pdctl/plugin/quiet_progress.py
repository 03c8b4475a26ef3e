"""Lever ``quiet_progress``: an idle engine that leaves its core alone (FACTS 1, L7).

NIXL's Python API sets the delay of the progress thread to 0, so an idle engine polls without
pause: 99 % of a core. On a machine that two engines share that is most of the machine. The lever
fills in ``PDCTL_NIXL_PROGRESS_US`` (microseconds; 1000 gives 2 %) where NIXL says 0. For local
pairs; on a host with many cores the polling is what makes transfers start early.
"""

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

from ._guard import ANY_OF, Lever, NotApplicable, Off, Target, attribute, is_patched, replace

_VARIABLE = "PDCTL_NIXL_PROGRESS_US"
_LONGEST_US = 1_000_000
_DELAY = "pthrDelay"
_AGENT = "nixlAgent"

# ``nixl`` loads one of the others under its own name; older releases have the API right there.
_MODULES = ("nixl_cu12._api", "nixl_cu13._api", "nixl_rocm._api", "nixl._api")


def lever(env: Mapping[str, str]) -> Lever:
    """Return the lever with the delay that the environment names."""
    value = env.get(_VARIABLE, "").strip()
    if not value:
        raise Off(f"{_VARIABLE} is not set")
    patch = functools.partial(_patch, delay_us=_delay_us(value))
    return Lever(targets=tuple(Target(module, patch) for module in _MODULES), order=ANY_OF)


def _delay_us(value: str) -> int:
    if not (value.isascii() and value.isdigit() and 0 < int(value) <= _LONGEST_US):
        raise NotApplicable(f"{_VARIABLE} is not a whole number from 1 to {_LONGEST_US}: {value!r}")
    return int(value)


def _patch(module: types.ModuleType, delay_us: int) -> str:
    bindings = attribute(module, "nixlBind")
    done = f"the progress thread of {module.__name__} waits {delay_us} µs between polls"
    if is_patched(bindings, _AGENT):
        return done
    attribute(attribute(bindings, "nixlAgentConfig"), _DELAY)
    replace(bindings, _AGENT, delaying(attribute(bindings, _AGENT), delay_us))
    return done


def delaying(make_agent: Callable[..., Any], delay_us: int) -> Callable[..., Any]:
    """Wrap NIXL's agent so that a configuration without a delay gets this one."""

    def agent(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            if getattr(value, _DELAY, None) == 0:
                setattr(value, _DELAY, delay_us)
        return make_agent(*args, **kwargs)

    return agent
