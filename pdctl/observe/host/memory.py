"""Memory, control groups, huge pages, and disks."""

import re

from pdctl.base.hostfacts import DiskFacts, MemoryFacts
from pdctl.observe.host.raw import items, mapping, maybe_text, text, whole

_LINE = re.compile(r"^(\w[\w()]*):\s+(\d{1,18})(?: (kB))?\s*$", re.MULTILINE)
_NO_LIMIT = 2**60  # control groups of version 1 show the greatest number for no limit


def read_memory(raw: object) -> MemoryFacts:
    """From the script's `memory`."""
    answer = mapping(raw)
    info = {
        match[1]: int(match[2]) * (1024 if match[3] else 1)
        for match in _LINE.finditer(text(answer.get("meminfo")))
    }
    limit, used = _tightest(answer.get("cgroup"))
    swap, free = info.get("SwapTotal"), info.get("SwapFree")
    shm = mapping(answer.get("shm"))
    return MemoryFacts(
        total=info.get("MemTotal"),
        available=info.get("MemAvailable"),
        limit=limit,
        used=used,
        swap=swap,
        swap_used=None if swap is None or free is None else swap - free,
        shm=whole(shm.get("total")),
        shm_free=whole(shm.get("free")),
        huge_pages=info.get("HugePages_Total"),
        huge_free=info.get("HugePages_Free"),
        huge_size=info.get("Hugepagesize"),
    )


def _tightest(groups: object) -> tuple[int | None, int | None]:
    """The least limit of all groups that this user's processes are in, and what counts to it."""
    found = [
        (limit, whole(mapping(each).get("used")))
        for each in items(groups)
        if (limit := whole(mapping(each).get("limit"))) is not None and 0 <= limit < _NO_LIMIT
    ]
    return min(found, key=lambda each: each[0]) if found else (None, None)


def read_disks(raw: object) -> tuple[DiskFacts, ...]:
    """From the script's `disks`."""
    return tuple(_disk(mapping(each)) for each in items(raw))


def _disk(answer: dict[str, object]) -> DiskFacts:
    inodes = whole(answer.get("inodes"))
    writable = answer.get("writable")
    return DiskFacts(
        path=text(answer.get("path")),
        at=maybe_text(answer.get("at")),
        free=whole(answer.get("free")),
        total=whole(answer.get("total")),
        # Some file systems make inodes as they need them, and count none.
        free_inodes=whole(answer.get("free_inodes")) if inodes else None,
        writable=(
            writable and answer.get("read_only") is not True if isinstance(writable, bool) else None
        ),
        done=answer.get("done") is True,
        error=text(answer.get("error")),
    )
