"""Durations: seconds as numbers, or strings such as `8m`, `1h30m`, `90s`, `500ms`."""

import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhd]))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])")


def parse_duration(value: int | float | str) -> float:
    """Seconds.

    Raises:
        ValueError: for anything but a non-negative number or a sum of `<number><ms|s|m|h|d>`.
            `1:30` is refused: nobody agrees whether it means minutes or hours.
    """
    if isinstance(value, bool):
        raise ValueError("expected a duration such as 480 or 8m")
    if isinstance(value, int | float):
        seconds = float(value)
    else:
        text = value.strip()
        if re.fullmatch(r"\d+(?:\.\d+)?", text):
            seconds = float(text)
        elif _WHOLE.fullmatch(text):
            seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
        else:
            raise ValueError(
                f"`{value}` is not a duration; write seconds (480) or 8m, 1h30m, 500ms"
            )
    if seconds < 0 or seconds != seconds or seconds == float("inf"):
        raise ValueError("a duration is a finite number of seconds, zero or more")
    return seconds


def format_duration(seconds: float) -> str:
    """`450` → `7m30s`; below a minute with at most one decimal."""
    if seconds < 60:
        return f"{seconds:.1f}".rstrip("0").rstrip(".") + "s"
    whole = round(seconds)
    text = ""
    for unit in ("d", "h", "m", "s"):
        size = int(_UNITS[unit])
        count, whole = divmod(whole, size)
        if count:
            text += f"{count}{unit}"
    return text
