"""systemd units on this machine: what runs of one, and ending it for good.

Everything that changes something is done by root: by this user, or by `sudo -n`.
"""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pdctl.base.errors import PdctlError, PermissionDeniedError, TemporaryError

FOLDER = "/etc/systemd/system"
SETTINGS = "/etc/pdctl"
"""Environment files and secrets of units, as `render.formats` names them."""

_ALIVE = frozenset({"active", "activating", "reloading", "deactivating"})
_LIMIT_S = 20.0
_GRACE_S = 30.0


@dataclass(frozen=True)
class UnitState:
    """A unit now.

    Attributes:
        alive: it runs, or systemd is about to start it again.
        pid: of its main process; None while there is none.
    """

    alive: bool
    pid: int | None
    restarts: int


def files_of(unit: str) -> tuple[str, ...]:
    """All files that belong to a unit."""
    stem = unit.removesuffix(".service")
    return f"{FOLDER}/{unit}", f"{SETTINGS}/{stem}.env", f"{SETTINGS}/{stem}.secrets"


def state_of(unit: str) -> UnitState:
    """Ask systemd; needs no root.

    Raises:
        PdctlError: there is no systemd, or it does not answer.
    """
    names = ("ActiveState", "MainPID", "NRestarts")
    said = _run(["systemctl", "show", "--property", ",".join(names), unit], _LIMIT_S)
    found = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    pid = int(found.get("MainPID") or 0)
    return UnitState(
        alive=found.get("ActiveState") in _ALIVE,
        pid=pid or None,
        restarts=int(found.get("NRestarts") or 0),
    )


def end(unit: str, timeout: float) -> None:
    """Stop a unit, keep it from coming back after a reboot, and remove its files.

    Args:
        timeout: seconds that the unit's own `TimeoutStopSec=` gives its processes.

    Raises:
        PdctlError: root is needed and cannot be had, or systemd does not do it.
    """
    if Path(files_of(unit)[0]).exists():
        _as_root(["systemctl", "disable", "--now", "--quiet", unit], timeout + _GRACE_S)
        _as_root(["rm", "-f", "--", *files_of(unit)], _LIMIT_S)
        _as_root(["systemctl", "daemon-reload"], _LIMIT_S)
    # Of a unit that failed systemd remembers the name.
    subprocess.run(
        [*_sudo(), "systemctl", "reset-failed", unit],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=_LIMIT_S,
    )


def _as_root(argv: Sequence[str], limit: float) -> str:
    return _run([*_sudo(), *argv], limit)


def _sudo() -> list[str]:
    return [] if os.geteuid() == 0 else ["sudo", "-n"]


def _run(argv: Sequence[str], limit: float) -> str:
    line = " ".join(argv)
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit,
            check=False,
        )
    except FileNotFoundError as error:
        raise PdctlError(f"there is no program `{argv[0]}`") from error
    except subprocess.TimeoutExpired as error:
        raise TemporaryError(f"`{line}` did not end within {limit:g} s") from error
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.strip().splitlines()
    kind = PermissionDeniedError if "sudo" in done.stderr else PdctlError
    raise kind(f"`{line}` ended with status {done.returncode}", detail=said)
