"""What pdctl runs inside vLLM, through the entry point group ``vllm.general_plugins``.

vLLM calls :func:`register` once in each of its Python processes (front end, engine core, workers,
and a short-lived one that inspects the model). Each lever changes one thing, only where
introspection says that this vLLM has the shape the lever knows, and only in the process that
loads the module in question; anywhere else it does nothing and says why, in one log line.

This package runs in the engine's environment, not in pdctl's: standard library only, nothing else
of pdctl, syntax of Python 3.10. Everything it is told comes from the environment:

=============================  ===================================================================
``PDCTL_PLUGIN=off``           do nothing at all
``PDCTL_PLUGIN_LEVERS``        comma list of the levers that are wanted; unset or empty means all
``PDCTL_TTL_FILE``             control file of ``live_ttl``
``PDCTL_LEASE_RENEWAL=on``     let D's turns be renewed: ``lease_renewal``
``PDCTL_NIXL_PROGRESS_US``     delay of NIXL's progress thread, for ``quiet_progress``
``PDCTL_QUEUE_SPIN_MS``        how long a queue's reader spins before it sleeps, for ``quiet_queue``
``PDCTL_PLUGIN_STATUS_DIR``    where each process says which levers are active
=============================  ===================================================================
"""

import os
from collections.abc import Mapping

from . import (
    _status,
    lease_renewal,
    live_ttl,
    pull_once,
    quiet_progress,
    quiet_queue,
    settled_frees,
    streaming_handles,
)
from ._guard import LOGGER, Build, Guard, Lever, Off

__all__ = ["LEVERS", "register"]

LEVERS: dict[str, Build] = {
    "streaming_handles": streaming_handles.lever,
    "live_ttl": live_ttl.lever,
    "lease_renewal": lease_renewal.lever,
    "settled_frees": settled_frees.lever,
    "pull_once": pull_once.lever,
    "quiet_progress": quiet_progress.lever,
    "quiet_queue": quiet_queue.lever,
}
"""Every lever by the name it has in the environment, the log and the status file."""


def register() -> None:
    """Apply the levers that are wanted; safe to call more than once; never raises.

    An exception here would stop the engine, and every lever is dispensable.
    """
    try:
        _register(os.environ)
    except Exception:
        LOGGER.exception("pdctl plugin: failed to start; the engine runs without it")


def _register(env: Mapping[str, str]) -> None:
    if env.get("PDCTL_PLUGIN", "").strip().lower() == "off":
        LOGGER.info("pdctl plugin: off (PDCTL_PLUGIN=off)")
        return
    guard = Guard(report=_status.reporter(env.get("PDCTL_PLUGIN_STATUS_DIR", "")))
    wanted = _wanted(env.get("PDCTL_PLUGIN_LEVERS", ""))
    for name, build in LEVERS.items():
        guard.apply(name, build if name in wanted else _not_asked_for, env)


def _wanted(listed: str) -> set[str]:
    names = {name.strip() for name in listed.split(",") if name.strip()}
    unknown = sorted(names - LEVERS.keys())
    if unknown:
        LOGGER.warning(
            "pdctl plugin: no lever is called %s; there are %s",
            ", ".join(unknown),
            ", ".join(LEVERS),
        )
    return names or set(LEVERS)


def _not_asked_for(env: Mapping[str, str]) -> Lever:
    raise Off("not in PDCTL_PLUGIN_LEVERS")
