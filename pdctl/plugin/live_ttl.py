"""Lever ``live_ttl``: D's retention time without a restart (FACTS L2).

The NIXL scheduler reads ``decoder_kv_blocks_ttl`` each time a turn finishes on D. The lever makes
that attribute a property which prefers the control file named by ``PDCTL_TTL_FILE``:
``{"decoder_ttl": seconds}``, or just a number. A file that is missing, empty or makes no sense
means the configured value. Handles that were already given out keep their deadline.
"""

import functools
import json
import math
import os
import stat
import types
from collections.abc import Mapping
from typing import Any

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

_SCHEDULER = "vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_scheduler"
_CLASS = "NixlBaseConnectorScheduler"
_TTL = "decoder_kv_blocks_ttl"
_MAX_BYTES = 4096


def lever(env: Mapping[str, str]) -> Lever:
    """Return the lever for the control file that the environment names."""
    path = env.get("PDCTL_TTL_FILE", "")
    if not path:
        raise Off("PDCTL_TTL_FILE is not set")
    return Lever(targets=(Target(_SCHEDULER, functools.partial(_patch, path=path)),))


def _patch(module: types.ModuleType, path: str) -> str:
    owner = attribute(module, _CLASS)
    done = f"{_CLASS}.{_TTL} follows {path}"
    if is_patched(owner, _TTL):
        return done
    if hasattr(owner, _TTL):
        raise NotApplicable(f"{_CLASS}.{_TTL} is not a plain attribute of the instance")
    if not mentions(owner.__init__, _TTL):
        raise NotApplicable(f"{_CLASS} does not set {_TTL}")
    replace(owner, _TTL, following(ControlFile(path)))
    return done


def following(control: "ControlFile") -> property:
    """Return a property that prefers the control file to the value that was assigned.

    The assigned value stays in the instance's ``__dict__`` under its own name, as without us.
    """

    def get(self: Any) -> Any:
        configured = _configured(self)
        wanted = control.seconds()
        return configured if wanted is None else wanted

    def put(self: Any, value: Any) -> None:
        vars(self)[_TTL] = value

    return property(get, put)


def _configured(scheduler: Any) -> Any:
    try:
        return vars(scheduler)[_TTL]
    except KeyError:
        raise AttributeError(_TTL) from None


class ControlFile:
    """A file with one number, read again only when it changed; never raises."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._version: object = None
        self._seconds: float | None = None

    def seconds(self) -> float | None:
        """Return the number of seconds that the file asks for, None if it asks for nothing."""
        version = self._current_version()
        if version != self._version:
            self._version = version
            self._change_to(None if version is None else self._read())
        return self._seconds

    def _current_version(self) -> object:
        try:
            status = os.stat(self._path)
        except (OSError, ValueError):
            return None
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would stop the scheduler
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(self) -> float | None:
        try:
            with open(self._path, "rb") as file:
                return parse(file.read(_MAX_BYTES))
        except Exception as error:
            LOGGER.warning(
                "pdctl plugin: live_ttl: %s: %s; the configured value holds", self._path, error
            )
            return None

    def _change_to(self, seconds: float | None) -> None:
        if seconds == self._seconds:
            return
        self._seconds = seconds
        LOGGER.info(
            "pdctl plugin: live_ttl: turns that finish from now on are kept for %s",
            "the configured time" if seconds is None else f"{seconds:g} s",
        )


def parse(content: bytes) -> float | None:
    """Return the seconds in a control file, None if it is empty; raise if it makes no sense."""
    if not content.strip():
        return None
    value = json.loads(content)
    if isinstance(value, dict):
        value = value.get("decoder_ttl")
        if value is None:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("decoder_ttl is not a number")
    seconds = float(value)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"decoder_ttl cannot be {seconds:g}")
    return seconds
