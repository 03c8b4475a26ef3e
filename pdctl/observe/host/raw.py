"""Taking values out of what a host said, which may be anything: nothing here raises."""

import re
from typing import Any

_WHOLE = re.compile(r"[+-]?\d{1,19}")
_LARGEST = 2**63 - 1


def mapping(value: object) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def text(value: object) -> str:
    """The value if it is text, else an empty one."""
    return value if isinstance(value, str) else ""


def maybe_text(value: object) -> str | None:
    """Text that is not empty."""
    return value if isinstance(value, str) and value else None


def whole(value: object) -> int | None:
    """A whole number, also as text, of at most 63 bits."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        value = int(value)
    if not isinstance(value, int) or abs(value) > _LARGEST:
        return None
    return value


def seconds(value: object) -> float | None:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e15 else None


def said(run: object) -> str:
    """What a tool said when it failed, in one line; why there was no answer at all."""
    answer = mapping(run)
    if why := text(answer.get("why")):
        return why
    lines = [
        line.strip()
        for name in ("err", "out")
        for line in text(answer.get(name)).splitlines()
        if line.strip()
    ]
    status = answer.get("status")
    if isinstance(status, int) and status < 0:
        lines.append(f"ended by signal {-status}")
    return lines[-1][:300] if lines else f"it ended with status {status}"


def output(run: object) -> str | None:
    """What a tool printed, None when it failed."""
    answer = mapping(run)
    return text(answer.get("out")) if answer.get("status") == 0 else None


def numbers(version: str | None) -> tuple[int, ...] | None:
    """The leading numbers of a version: `2.6.0amzn1.0` is (2, 6, 0)."""
    found = re.match(r"v?(\d{1,9}(?:\.\d{1,9}){0,3})", version or "")
    return tuple(int(part) for part in found[1].split(".")) if found else None


def at_least(version: str | None, wanted: str) -> bool | None:
    """Whether a version is not below `wanted`; None when it is not known."""
    have, want = numbers(version), numbers(wanted)
    if have is None or want is None:
        return None
    size = max(len(have), len(want))
    return have + (0,) * (size - len(have)) >= want + (0,) * (size - len(want))
