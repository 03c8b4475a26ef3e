"""Telling the outside which levers are active: ``plugin-<pid>.json``, one file per process.

``{"pid": 123, "levers": {"live_ttl": {"state": "applied", "why": "…"}}}``. A reader takes the
files of processes that are alive (an engine that was killed leaves its file behind) and counts a
lever as active if it is ``applied`` or ``not-needed`` in any of them: the front end has no KV
scheduler, the engine core no HTTP endpoints.
"""

import atexit
import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping

from ._guard import LOGGER, Outcome, Report


def reporter(directory: str) -> Report:
    """Return what writes the status into a directory; nothing is written if that is empty."""
    if not directory:
        return _nowhere
    latest: dict[str, Outcome] = {}

    def report(levers: Mapping[str, Outcome]) -> None:
        latest.update(levers)
        write(directory, latest)

    _outlive_fork(lambda: write(directory, latest))
    atexit.register(remove, directory)
    return report


def path_of(directory: str) -> str:
    """Return where this process, which may be a fork of the one that registered, writes."""
    return os.path.join(directory, f"plugin-{os.getpid()}.json")


def write(directory: str, levers: Mapping[str, Outcome]) -> None:
    """Write the status of this process in one step; a failure is only logged."""
    status = {
        "pid": os.getpid(),
        "levers": {name: {"state": o.state, "why": o.why} for name, o in levers.items()},
    }
    try:
        os.makedirs(directory, exist_ok=True)
        _replace(path_of(directory), json.dumps(status, indent=1) + "\n")
    except OSError as error:
        LOGGER.warning("pdctl plugin: cannot write the status file: %s", error)


def remove(directory: str) -> None:
    """Remove the status of this process: pids are used again."""
    with contextlib.suppress(OSError):
        os.unlink(path_of(directory))


def _replace(path: str, text: str) -> None:
    handle, scratch = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".plugin-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(scratch, 0o644)  # whoever asks may run as another user
        os.replace(scratch, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(scratch)
        raise


def _outlive_fork(write_again: Callable[[], None]) -> None:
    # vLLM forks its engine core by default: the child has the levers, but is another pid.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=write_again)


def _nowhere(levers: Mapping[str, Outcome]) -> None:
    del levers
