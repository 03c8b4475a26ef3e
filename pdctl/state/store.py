"""The state file: replaced atomically, private, and never overwritten when it cannot be read."""

import errno
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from pdctl.base import paths
from pdctl.base.errors import PdctlError, PermissionDeniedError, TemporaryError
from pdctl.state.model import SCHEMA_VERSION, DeploymentState

FILE_NAME = "state.json"
FORGET_OPTION = "--forget-damaged-state"
_ADAPTER = TypeAdapter(DeploymentState)


class StateError(PdctlError):
    """The state file cannot be used as it is; it was left untouched."""


class DamagedStateError(StateError):
    """The state file is not what pdctl writes: cut, edited or overwritten."""


class NewerStateError(StateError):
    """A newer pdctl wrote the state file."""


def move_aside(path: Path) -> Path:
    """Keep a file that cannot be used under another name beside it, and return that name."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    kept = path.with_name(f"{path.name}.damaged-{stamp}")
    number = 1
    while kept.exists():
        number += 1
        kept = path.with_name(f"{path.name}.damaged-{stamp}-{number}")
    with explained(path):
        os.rename(path, kept)
    return kept


class StateStore:
    """The state file of one deployment."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.directory = paths.deployment_dir(name)
        self.path = self.directory / FILE_NAME

    def load(self) -> DeploymentState | None:
        """What was saved last; None when there is nothing.

        Raises:
            DamagedStateError, NewerStateError: the file is there and cannot be used.
            PermissionDeniedError: it may not be read.
        """
        with explained(self.path):
            try:
                content = self.path.read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None
        return self._parse(content)

    def save(self, state: DeploymentState) -> None:
        """Replace the file; after a crash or a full disk it holds the old or the new, whole.

        Raises:
            PermissionDeniedError, TemporaryError: not allowed; no space left.
        """
        content = json.dumps(_ADAPTER.dump_python(state, mode="json"), indent=1).encode()
        write_private(self.path, content + b"\n")

    def remove(self) -> None:
        """Forget the deployment; not an error when there is nothing to forget."""
        with explained(self.path):
            self.path.unlink(missing_ok=True)

    def move_aside(self) -> Path:
        """Keep a file that cannot be used under another name, and return that name."""
        return move_aside(self.path)

    def _parse(self, content: bytes) -> DeploymentState:
        try:
            value = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise self._damaged(f"it is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise self._damaged("it is not a JSON object")
        version = value.get("schema_version")
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise NewerStateError(
                f"the state of `{self.name}` was written by a newer pdctl "
                f"({value.get('pdctl_version', 'unknown')}, state version {version})",
                where=str(self.path),
                expected=f"state version {SCHEMA_VERSION} or older",
                hints=["use that pdctl, or a newer one", *self._ways_on()],
            )
        try:
            state = _ADAPTER.validate_python(value)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise self._damaged(f"{place}: {first['msg']}") from error
        if state.name != self.name:
            raise self._damaged(f"it is the state of `{state.name}`")
        return state

    def _damaged(self, reason: str) -> DamagedStateError:
        return DamagedStateError(
            f"the state file of `{self.name}` is damaged: {reason}",
            where=str(self.path),
            expected="what pdctl wrote; it was left as it is",
            hints=["put back a good copy of the file, if there is one", *self._ways_on()],
        )

    def _ways_on(self) -> tuple[str, ...]:
        return (
            f"pdctl down --name {self.name} {FORGET_OPTION} keeps the file under another name "
            "and ends the processes that carry this deployment's mark",
        )


def write_private(path: Path, content: bytes) -> None:
    """Replace a file of this user alone, whole or not at all; its folder is made if need be.

    Raises:
        PermissionDeniedError, TemporaryError: not allowed; no space left.
    """
    with explained(path):
        make_private(path.parent)
        handle, scratch = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:  # mkstemp makes it 0600
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(scratch)
            raise
        _sync_directory(path.parent)


def make_private(directory: Path) -> None:
    """Make a directory that only its owner can enter."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if directory.stat().st_mode & 0o077:
        directory.chmod(0o700)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the system's refusal to read or write `path` into words.

    Raises:
        PermissionDeniedError, TemporaryError, StateError: not allowed; no space left; else.
    """
    try:
        yield
    except PermissionError as error:
        raise PermissionDeniedError(
            f"no permission for `{error.filename or path}`",
            where=str(path),
            hints=[f"set {paths.STATE_DIR_ENV} to a folder of yours"],
        ) from error
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise TemporaryError(
                "no space left to save the state; what was saved before is still there",
                where=str(path),
                hints=["free some space and run the command again"],
            ) from error
        raise StateError(
            f"the state cannot be kept: {error.strerror or error}",
            where=str(path),
            hints=[f"set {paths.STATE_DIR_ENV} to a folder of yours"],
        ) from error
