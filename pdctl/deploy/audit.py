"""One line for every change, so that later somebody can tell who did what and when.

It is kept by whoever made the change, and on the host that was changed: there are several who may
make one, and some of them are gone when it is asked for.
"""

import os
import re
import socket
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from pdctl.base import paths
from pdctl.base.command import command
from pdctl.base.errors import PdctlError
from pdctl.deploy.world import World
from pdctl.state.lock import user_name
from pdctl.targets.base import Host

FILE_NAME = "audit.log"
HERE = "here"
"""Stands for this machine where it is told who has kept a line."""

_LIMIT_S = 20.0
_MOST_BYTES = 4 << 20
_APPEND = 'umask 077; printf "%s\\n" "$1" >> "$2"'
_LINE = re.compile(
    r"(?P<at>\S+Z) pid=(?P<pid>\d+) user=(?P<user>\S+)"
    r"(?: from=(?P<machine>\S+) deployment=(?P<deployment>\S+))? (?P<change>.*)"
)


def note(name: str, change: str) -> None:
    """Append `time pid user change` to the deployment's audit log on this machine.

    Words for later, never a reason to fail: where they cannot be written, the work goes on.
    """
    with suppress(OSError):
        path = paths.deployment_dir(name) / FILE_NAME
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(handle, f"{_who()} {change}\n".encode())
        finally:
            os.close(handle)


def note_on(world: World, hosts: Iterable[str], name: str, change: str) -> None:
    """The same, and on the hosts that it changed, where those are other machines."""
    note(name, change)
    if world.trail is None:
        return
    line = f"{_who()} from={socket.gethostname()} deployment={name} {change}"
    append = command("sh", "-c", _APPEND, "sh", line, str(world.trail))
    for host in dict.fromkeys(hosts):
        with suppress(PdctlError):
            world.hosts[host].run(append, timeout=_LIMIT_S)


def _who() -> str:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return f"{stamp} pid={os.getpid()} user={user_name()}"


# --- reading -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """One change, as it was written down.

    Attributes:
        at: UTC, as `2026-11-30T04:00:00Z`.
        machine: where it was made; empty where only this machine has the line.
        kept: who has the line: `here`, and names of hosts.
    """

    at: str
    user: str
    pid: int
    machine: str
    change: str
    kept: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """The shape in `audit --json`."""
        return {
            "at": self.at,
            "user": self.user,
            "pid": self.pid,
            "from": self.machine,
            "change": self.change,
            "kept": list(self.kept),
        }


@dataclass(frozen=True)
class Trail:
    """All changes, the oldest first; `problems` are hosts that could not be asked."""

    changes: tuple[Change, ...]
    problems: tuple[str, ...]


def read(world: World, name: str) -> Trail:
    """What this machine and all hosts have written down of a deployment."""
    path = paths.deployment_dir(name) / FILE_NAME
    try:
        here = path.read_text(errors="replace")
    except OSError:
        here = ""
    found = [_parsed(here, HERE, name)]
    problems: list[str] = []
    if world.trail is not None and world.hosts:
        trail = world.trail
        with ThreadPoolExecutor(min(len(world.hosts), 32)) as pool:
            answers = pool.map(lambda each: _text_of(each, trail), world.hosts.values())
        for host, (text, problem) in zip(world.hosts, answers, strict=True):
            found.append(_parsed(text, host, name))
            problems += [problem] if problem else []
    return Trail(tuple(_merged(found)), tuple(problems))


def _text_of(host: Host, trail: PurePosixPath) -> tuple[str, str]:
    try:
        return (host.read_file(trail, limit=_MOST_BYTES) or b"").decode(errors="replace"), ""
    except PdctlError as error:
        return "", f"{host.name}: {error.message}"


def _parsed(text: str, kept: str, name: str) -> list[Change]:
    found = [_LINE.fullmatch(line) for line in text.splitlines()]
    return [
        Change(m["at"], m["user"], int(m["pid"]), m["machine"] or "", m["change"], (kept,))
        for m in found
        if m is not None and m["deployment"] in (None, name)
    ]


def _merged(found: Sequence[Sequence[Change]]) -> list[Change]:
    """Each change once, in order of time; those of one second as they were written."""
    merged: dict[tuple[str, int, str, str], Change] = {}
    for change in (each for some in found for each in some):
        key = (change.at, change.pid, change.user, change.change)
        known = merged.get(key)
        if known is None:
            merged[key] = change
        else:
            kept = tuple(dict.fromkeys((*known.kept, *change.kept)))
            merged[key] = replace(known, machine=known.machine or change.machine, kept=kept)
    return sorted(merged.values(), key=lambda change: change.at)
