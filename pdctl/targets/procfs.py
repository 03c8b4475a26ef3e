"""What Linux tells of processes in `/proc`, and which of them belong to one that was started.

The rule rests on how the kernel hands out numbers: a pid is not used again while any process
still has it as its group or session. So a session is ours for certain while its leader, or any
member seen before, is there; otherwise `PDCTL_PROCESS` must say so.
"""

import os
import re
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pdctl.base.process import MARK_ENV, ProcessRef

_PROC = Path("/proc")
_LISTENS = "0A"
_UNIT = re.compile(r"/(pdctl-[^/\s]+\.service)(?:/|$)", re.MULTILINE)
_GONE = frozenset("ZXx")  # a zombie runs nothing; only its parent can remove the entry


@dataclass(frozen=True)
class Stat:
    """One line of `/proc/PID/stat`, as far as it says who belongs to whom."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    start_ticks: int
    threads: int = 1

    @property
    def runs(self) -> bool:
        """False for a zombie."""
        return self.state not in _GONE

    @property
    def ends(self) -> bool:
        """True for a zombie whose last threads still hold its memory, its ports and its GPUs.

        Measured: a killed server of 1.5 GB is a zombie after 5 ms and holds its port for 200 ms.
        """
        return not self.runs and self.threads > 1


Table = Mapping[int, Stat]
Seen = set[tuple[int, int]]
"""Processes known to be ours, as (pid, start ticks)."""


def parse_stat(text: str) -> Stat:
    """Read the line. The name may hold spaces and brackets; only its last bracket ends it.

    Raises:
        ValueError: for anything else than such a line.
    """
    head, _, tail = text.rpartition(")")
    pid, _, name = head.partition(" (")
    fields = tail.split()
    if len(fields) < 20:
        raise ValueError(f"not a line of /proc/PID/stat: {text!r}")
    return Stat(
        pid=int(pid),
        name=name,
        state=fields[0],
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        start_ticks=int(fields[19]),
        threads=int(fields[17]),
    )


def read_stat(pid: int) -> Stat | None:
    """One process, or None when there is none with this pid."""
    try:
        return parse_stat((_PROC / str(pid) / "stat").read_text(errors="replace"))
    except (OSError, ValueError):
        return None


def read_table() -> dict[int, Stat]:
    """All processes that can be seen now."""
    found = (read_stat(int(entry)) for entry in os.listdir(_PROC) if entry.isdigit())
    return {stat.pid: stat for stat in found if stat is not None}


def read_argv(pid: int) -> tuple[str, ...]:
    """Arguments of a process; empty when they cannot be read."""
    return tuple(_zero_separated(pid, "cmdline"))


def read_environ(pid: int) -> dict[str, str]:
    """Environment that a process was started with; empty when it cannot be read."""
    pairs = (item.partition("=") for item in _zero_separated(pid, "environ"))
    return {name: value for name, equals, value in pairs if equals}


def read_mark(pid: int) -> str:
    """The process's `PDCTL_PROCESS`, empty when it has none."""
    return read_environ(pid).get(MARK_ENV, "")


def read_unit(pid: int) -> str:
    """The systemd unit of pdctl's that a process belongs to; empty when to none."""
    try:
        groups = (_PROC / str(pid) / "cgroup").read_text(errors="replace")
    except OSError:
        return ""
    found = _UNIT.search(groups)
    return found[1] if found else ""


def read_boot_id() -> str:
    """Changes at every boot."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def read_listeners(port: int) -> Iterator[tuple[str, int]]:
    """Address and inode of every TCP socket of this network namespace that listens on a port."""
    for name in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue  # a kernel without IPv6
        for fields in map(str.split, lines):
            address, _, number = fields[1].partition(":")
            if fields[3] == _LISTENS and int(number, 16) == port:
                yield _address(address), int(fields[9])


def find_socket(inode: int) -> int | None:
    """Pid of a process that has the socket open; None when it is none that may be looked at."""
    wanted = f"socket:[{inode}]"
    for entry in os.listdir(_PROC):
        if not entry.isdigit():
            continue
        with suppress(OSError):
            for file in os.scandir(_PROC / entry / "fd"):
                with suppress(OSError):
                    if os.readlink(file.path) == wanted:
                        return int(entry)
    return None


def _address(text: str) -> str:
    """`0100007F` to `127.0.0.1`: words of four bytes, each in this machine's byte order."""
    words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return socket.inet_ntop(socket.AF_INET6 if len(words) > 1 else socket.AF_INET, packed)


def is_mine(pid: int) -> bool:
    """True when the process runs as this user."""
    try:
        return (_PROC / str(pid)).stat().st_uid == os.getuid()
    except OSError:
        return False


def ancestors(pid: int, table: Table) -> set[int]:
    """The process itself and everything above it."""
    line: set[int] = set()
    while pid in table and pid not in line:
        line.add(pid)
        pid = table[pid].parent
    return line


def members(
    ref: ProcessRef, table: Table, *, seen: Seen, mark_of: Callable[[int], str]
) -> list[Stat]:
    """Everything that runs or still ends and belongs to a started process, wherever it went.

    Args:
        ref: the process as it was started, in this boot.
        table: all processes.
        seen: members found earlier; they stay members when they leave group and session.
        mark_of: gives a process's `PDCTL_PROCESS`.
    """
    ours = set(_of_session(ref, table, seen, mark_of))
    ours |= {pid for pid, ticks in seen if pid in table and table[pid].start_ticks == ticks}
    if ref.mark:
        ours |= {pid for pid in table if mark_of(pid) == ref.mark}
    found = [table[pid] for pid in sorted(_with_children(ours, table))]
    return [stat for stat in found if stat.runs or stat.ends]


def _of_session(
    ref: ProcessRef, table: Table, seen: Seen, mark_of: Callable[[int], str]
) -> Iterable[int]:
    leader = table.get(ref.pid)
    if leader is not None and leader.start_ticks != ref.start_ticks:
        return []  # the number was handed out again, so the old group and session are empty
    found = [s for s in table.values() if ref.pid in (s.pid, s.group, s.session)]
    certain = leader is not None or any((s.pid, s.start_ticks) in seen for s in found)
    if certain or (ref.mark and any(mark_of(s.pid) == ref.mark for s in found)):
        return [s.pid for s in found]
    return []


def _with_children(pids: set[int], table: Table) -> set[int]:
    children: dict[int, list[int]] = {}
    for stat in table.values():
        children.setdefault(stat.parent, []).append(stat.pid)
    whole, todo = set(pids), list(pids)
    while todo:
        new = [child for child in children.get(todo.pop(), []) if child not in whole]
        whole.update(new)
        todo.extend(new)
    return whole


def _zero_separated(pid: int, name: str) -> list[str]:
    try:
        content = (_PROC / str(pid) / name).read_bytes()
    except OSError:
        return []
    return [os.fsdecode(item) for item in content.split(b"\0")][:-1]
