"""What a process wrote to its log since it was started."""

from pdctl.state.model import ProcessRecord
from pdctl.targets import hostlog
from pdctl.targets.base import Host

_TAIL_BYTES = 262144


def last_lines(host: Host, record: ProcessRecord, count: int) -> list[str]:
    """The last lines of this start, without empty ones."""
    content = since_start(host, record, _TAIL_BYTES)
    lines = (content or b"").decode(errors="replace").splitlines()
    return [line.rstrip() for line in lines if line.strip()][-count:]


def since_start(host: Host, record: ProcessRecord, limit: int) -> bytes | None:
    """The last bytes that it wrote since it was started."""
    if not record.log.startswith(hostlog.JOURNAL):
        now = hostlog.size(host, record.log)
        since = now - record.log_offset if now >= record.log_offset else now  # else it was rotated
        limit = min(since, limit)
    return hostlog.tail(host, record.log, limit=limit, since=record.started_at) if limit else None
