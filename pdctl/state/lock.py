"""One pdctl at a time works on a deployment. The kernel frees the lock of a killed holder."""

import getpass
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from pdctl.base import paths
from pdctl.base.errors import TemporaryError
from pdctl.state.store import explained, make_private

_LOCK = "lock"
_HOLDER = "lock.holder"


@dataclass(frozen=True)
class Holder:
    """Who works on the deployment; `since` is wall clock, seconds since the epoch."""

    pid: int
    user: str
    command: str
    since: float

    def __str__(self) -> str:
        when = time.strftime("%H:%M:%S", time.localtime(self.since))
        return f"pid {self.pid} (`{self.command}`, user {self.user}, since {when})"


@contextmanager
def hold(name: str, command: str, *, wait: float = 0.0) -> Iterator[None]:
    """Hold the lock of a deployment.

    Args:
        name: of the deployment.
        command: what others are told, such as `pdctl up`.
        wait: seconds to wait for another holder.

    Raises:
        TemporaryError: somebody else holds it; says who.
        PermissionDeniedError, StateError: the state directory cannot be used.
    """
    directory = paths.deployment_dir(name)
    lock = FileLock(directory / _LOCK)
    with explained(directory / _LOCK):
        make_private(directory)
        try:
            lock.acquire(timeout=wait, poll_interval=0.05)
        except Timeout as error:
            raise _busy(name, directory, wait) from error
    try:
        _write_holder(directory, Holder(os.getpid(), user_name(), command, time.time()))
        yield
    finally:
        with suppress(OSError):
            (directory / _HOLDER).unlink()
        lock.release()


def read_holder(name: str) -> Holder | None:
    """Who works on the deployment now, as far as can be told without taking the lock."""
    holder = _read_holder(paths.deployment_dir(name))
    if holder is None:
        return None
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return None  # it was killed and could not remove the file
    except PermissionError:
        pass  # another user's, so it is there
    return holder


def _busy(name: str, directory: Path, wait: float) -> TemporaryError:
    holder = read_holder(name)
    waited = f" and did not end within {wait:g} s" if wait else ""
    return TemporaryError(
        f"another pdctl works on `{name}`{waited}",
        where=str(directory / _LOCK),
        detail=[f"held by {holder}"] if holder else [],
        hints=["wait for it to end, or give `--lock-wait SECONDS`"],
    )


def _write_holder(directory: Path, holder: Holder) -> None:
    # Words for others; the lock itself is what counts, so a full disk is no reason to stop.
    with suppress(OSError):
        scratch = directory / f".{_HOLDER}.{holder.pid}"
        scratch.write_text(json.dumps(asdict(holder)))
        os.replace(scratch, directory / _HOLDER)


def _read_holder(directory: Path) -> Holder | None:
    try:
        value = json.loads((directory / _HOLDER).read_text())
        return Holder(
            int(value["pid"]), str(value["user"]), str(value["command"]), float(value["since"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def user_name() -> str:
    """Who runs pdctl, for words to others; the number where it has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
