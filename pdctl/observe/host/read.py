"""Asking a host everything with one command."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib import resources

from pdctl.base.command import Command, command
from pdctl.base.errors import PdctlError
from pdctl.base.hostfacts import HostFacts, HostWant
from pdctl.observe.host.answer import clock_of, facts_of, parts_of
from pdctl.targets.base import Host

LIMIT_S = 60.0
"""The longest that looking at one host takes."""

NO_PYTHON = "there is no python3 of 3.9 or newer"
_NO_PYTHON = 127


def read_host(
    host: Host, want: HostWant, *, limit: float = LIMIT_S, now: Callable[[], float] = time.time
) -> HostFacts:
    """Everything that one round trip tells of a host; never raises.

    Args:
        limit: seconds for the whole; parts have less.
        now: our wall clock, against which the host's is compared.
    """
    try:
        return _read(host, want, limit, now)
    except PdctlError as error:
        return HostFacts(host.name, error=error.message, want=want)
    except Exception as error:  # one host must not cost the others theirs
        return HostFacts(host.name, error=f"{type(error).__name__}: {error}", want=want)


def _read(host: Host, want: HostWant, limit: float, now: Callable[[], float]) -> HostFacts:
    arrived: list[float] = []
    sent = now()
    result = host.run(
        look_command(want),
        timeout=limit,
        stdin=look_script(want),
        on_line=lambda line: arrived.append(now()) if '"now"' in line else None,
    )
    parts = parts_of(result.stdout)
    if parts is None:
        return HostFacts(
            host.name, error=_why(result.exit_status, result.stdout, result.stderr), want=want
        )
    clock = clock_of(result.stdout, sent, arrived[0]) if arrived else None
    return replace(facts_of(host.name, want, parts, clock), seconds=result.seconds)


def _why(status: int, out: str, err: str) -> str:
    if status == _NO_PYTHON:
        return f"{NO_PYTHON} on it, with which it is looked at"
    lines = [line.strip() for line in (out + "\n" + err).splitlines() if line.strip()]
    said = f": {lines[-1][:200]}" if lines else ""
    return f"it could not be looked at (status {status}){said}"


def look_command(want: HostWant) -> Command:
    """Runs the script with the first Python that runs and is new enough: the host's, the engine's,
    or this one."""
    candidates = [
        each for each in ("python3", "/usr/bin/python3", want.engine_python, sys.executable) if each
    ]
    # A `python3` may be a shim that leads nowhere, so each is tried before it gets the script.
    line = (
        'for python in "$@"; do "$python" -Ic "import sys; sys.exit(sys.version_info < (3, 9))" '
        '</dev/null >/dev/null 2>&1 && exec "$python" -I -; done; '
        f"exit {_NO_PYTHON}"
    )
    return command("sh", "-c", line, "sh", *candidates)


def look_script(want: HostWant) -> bytes:
    """The script with a call of its `main` behind it, for standard input."""
    asked = {**asdict(want), "nixl_script": _script("nixl.py").decode()}
    call = f"\n\nmain(json.loads({json.dumps(asked)!r}))\n"
    return _script("look.py") + call.encode()


def _script(name: str) -> bytes:
    return (resources.files("pdctl.observe.scripts") / name).read_bytes()
