"""The interface every way of reaching a machine has. Written for SSH, so every wait has a limit.

Errors of all implementations: `UnreachableError` when the machine does not answer,
`PermissionDeniedError` when it refuses, `TemporaryError` when a limit passes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from pdctl.base.command import Command
from pdctl.base.process import Kept, ProcessRef, ProcessSpec, RunningProcess


@dataclass(frozen=True)
class Result:
    """What a finished command left. Bytes that are not UTF-8 are replaced."""

    exit_status: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def ok(self) -> bool:
        """True for exit status 0."""
        return self.exit_status == 0


class OutputSink(Protocol):
    """Gets a long command's output line by line, while it runs."""

    def __call__(self, line: str) -> None: ...


class Host(Protocol):
    """One machine. Paths are POSIX paths on that machine."""

    @property
    def name(self) -> str:
        """How messages name the machine."""
        ...

    def run(
        self,
        command: Command,
        *,
        timeout: float,
        on_line: OutputSink | None = None,
        stdin: bytes | None = None,
    ) -> Result:
        """Run to the end; a non-zero exit status is a result, not an error.

        At the limit the command's whole process group is ended.
        """
        ...

    def write_file(self, path: PurePosixPath, content: bytes, *, mode: int = 0o644) -> None:
        """Replace a file atomically, creating its directories."""
        ...

    def read_file(self, path: PurePosixPath, *, limit: int | None = None) -> bytes | None:
        """A file's bytes, the last `limit` of them if given; None when there is no such file."""
        ...

    def exists(self, path: PurePosixPath) -> bool:
        """True for a file or directory."""
        ...

    def remove_tree(self, path: PurePosixPath) -> None:
        """Remove a file or directory; not an error when it is not there."""
        ...

    def free_bytes(self, path: PurePosixPath) -> int:
        """Free space of the file system that holds `path` or its nearest existing parent."""
        ...

    def start(self, spec: ProcessSpec, log: PurePosixPath) -> ProcessRef:
        """Start in a session of its own, output appended to `log`, and return at once."""
        ...

    def alive(self, ref: ProcessRef) -> bool:
        """True only for that very process, not for another that got its pid.

        For one that is kept running: whether its unit or supervisor runs.
        """
        ...

    def kept(self, ref: ProcessRef) -> Kept | None:
        """What it is now, started again or not; None when it and what kept it running are gone."""
        ...

    def stop(self, ref: ProcessRef, *, timeout: float) -> bool:
        """SIGTERM to the process group, SIGKILL at the limit. True when nothing of it is left.

        A process that was recycled or is gone is not touched. What keeps it running ends first; a
        unit's files are removed.
        """
        ...

    def find(self, mark: str) -> list[RunningProcess]:
        """This user's processes whose `PDCTL_PROCESS` is `mark` or, for `dir/`, begins with it."""
        ...

    def port_holder(self, address: str, port: int) -> str | None:
        """Who listens on the port (`pid 12 (python)` or `another process`), None when free."""
        ...

    def choose_port(self, address: str) -> int:
        """A port that is free now."""
        ...

    def inherited_env(self) -> Mapping[str, str]:
        """The variables a started process gets besides those its command names."""
        ...

    def close(self) -> None:
        """Give connections back."""
        ...
