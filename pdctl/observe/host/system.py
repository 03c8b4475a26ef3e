"""The operating system, and limits of processes."""

import re

from pdctl.base.hostfacts import UNLIMITED, LimitFacts, SystemFacts
from pdctl.observe.host.raw import items, mapping, maybe_text, text, whole

_RELEASE = re.compile(r"^(\w+)=(?:\"([^\"]*)\"|'([^']*)'|(.*))$", re.MULTILINE)
_LOCKED = re.compile(r"^Max locked memory\s+(\d{1,20}|unlimited)\b", re.MULTILINE)
_INFINITY = 2**63 - 1


def read_system(raw: object) -> SystemFacts:
    """From the script's `system`."""
    answer = mapping(raw)
    release = {m[1]: m[2] or m[3] or m[4] or "" for m in _RELEASE.finditer(_text(answer))}
    name = " ".join(filter(None, (release.get("ID"), release.get("VERSION_ID"))))
    return SystemFacts(
        distribution=name or None,
        pretty=release.get("PRETTY_NAME") or None,
        kernel=maybe_text(answer.get("kernel")),
        machine=maybe_text(answer.get("machine")),
        python=maybe_text(answer.get("python")),
        cpus=whole(answer.get("cpus")),
        user=maybe_text(answer.get("user")),
    )


def _text(answer: dict[str, object]) -> str:
    return text(answer.get("os_release"))


def read_limits(raw: object) -> LimitFacts:
    """From the script's `limits`."""
    answer = mapping(raw)
    memlock = [_limit(each) for each in items(answer.get("memlock"))]
    nofile = [_limit(each) for each in items(answer.get("nofile"))]
    return LimitFacts(
        memlock=memlock[0] if memlock else None,
        memlock_hard=memlock[1] if len(memlock) > 1 else None,
        nofile=nofile[0] if nofile else None,
        engines=_of_processes(answer.get("engines")),
    )


def _limit(value: object) -> int | None:
    number = whole(value)
    if number is None:
        return None
    # getrlimit gives -1 for no limit, and /proc may show the greatest number instead.
    return UNLIMITED if number < 0 or number >= _INFINITY else number


def _of_processes(raw: object) -> dict[str, int]:
    found = {}
    for mark, limits in mapping(raw).items():
        line = _LOCKED.search(text(limits))
        if line is None:
            continue
        number = UNLIMITED if line[1] == "unlimited" else _limit(line[1])
        if number is not None:
            found[text(mark).rpartition("/")[2]] = number
    return found
