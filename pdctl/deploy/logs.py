"""What a process wrote to its log since it was started."""

from pathlib import PurePosixPath

from pdctl.base.command import command
from pdctl.state.model import ProcessRecord
from pdctl.targets.base import Host

_TAIL_BYTES = 262144
_LIMIT_S = 20.0


def size(host: Host, log: PurePosixPath) -> int:
    """Size of a log in bytes, 0 when there is none."""
    result = host.run(command("stat", "-c", "%s", str(log)), timeout=_LIMIT_S)
    return int(result.stdout) if result.ok and result.stdout.strip().isdigit() else 0


def last_lines(host: Host, record: ProcessRecord, count: int) -> list[str]:
    """The last lines of this start, without empty ones."""
    log = PurePosixPath(record.log)
    now = size(host, log)
    since = now - record.log_offset if now >= record.log_offset else now  # else it was rotated
    content = host.read_file(log, limit=min(since, _TAIL_BYTES)) if since else None
    lines = (content or b"").decode(errors="replace").splitlines()
    return [line.rstrip() for line in lines if line.strip()][-count:]
