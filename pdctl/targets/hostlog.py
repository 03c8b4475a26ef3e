"""The log of a process on its host: a file, or the journal for a systemd unit."""

from pathlib import PurePosixPath

from pdctl.base.command import command
from pdctl.targets.base import Host
from pdctl.targets.privilege import root_words

JOURNAL = "journal:"
"""Begins the log's name of a process that systemd keeps running; the unit's name follows."""

_LIMIT_S = 60.0
_CUT = 'n=$1; shift; "$@" | tail -c "$n"'


def size(host: Host, log: str) -> int:
    """Bytes of a log file, 0 when there is none; of a journal always 0."""
    if log.startswith(JOURNAL):
        return 0
    result = host.run(command("stat", "-c", "%s", log), timeout=_LIMIT_S)
    return int(result.stdout) if result.ok and result.stdout.strip().isdigit() else 0


def tail(host: Host, log: str, *, limit: int, since: float | None = None) -> bytes | None:
    """The last bytes; None when there is no such log.

    Args:
        limit: bytes.
        since: wall clock of the first line wanted; counts for a journal, files know no times.
    """
    if not log.startswith(JOURNAL):
        return host.read_file(PurePosixPath(log), limit=limit)
    reader = (
        *(*root_words(host), "journalctl", "--quiet", "--no-pager", "--output", "cat"),
        *("--unit", log.removeprefix(JOURNAL)),
        *(("--since", f"@{int(since)}") if since else ()),
    )
    result = host.run(command("sh", "-c", _CUT, "sh", str(limit), *reader), timeout=_LIMIT_S)
    return result.stdout.encode() if result.ok else None
