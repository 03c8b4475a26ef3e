"""What an unquoted word in the file is: nothing, true or false, a number, text, or a trap.

YAML 1.1 (most tools) and YAML 1.2 (most editors) disagree about many words. Those two readings
are equal for everything accepted here; a word that they read differently is a trap and must be
written in another way. The one exception is `on`, `off`, `yes`, `no`: text, as in YAML 1.2,
because `plugin: off` is how people write it.
"""

import re
from dataclasses import dataclass

Value = str | int | float | bool | None

MAX_SHOWN = 60

_WORDS: dict[str, Value] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"0|-?[1-9][0-9]{0,17}")
_FLOAT = re.compile(r"(-?[0-9]{1,18}\.[0-9]{0,30}|\.[0-9]{1,30})([eE][-+][0-9]{1,2})?")

_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_ZEROS = re.compile(r"[-+]?0[0-9_]+")
_UNDERSCORES = re.compile(r"(?=.*_)[-+]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)([eE][-+][0-9]+)?")
_BASES = re.compile(r"[-+]?0(x[0-9a-fA-F_]+|b[01_]+|o[0-7]+)")
_EXPONENT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t][0-9: .\tZz+-]*)?")
_UNITS = {2: ("ms", "hm"), 3: ("hms",)}
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)")


@dataclass(frozen=True)
class Trap:
    """Why a word cannot stay as it is, and how to write it."""

    message: str
    hint: str


def shown(text: str) -> str:
    """Text from the file, fit for one line of a message."""
    line = "".join(char if char.isprintable() else "�" for char in text)
    return line if len(line) <= MAX_SHOWN else line[: MAX_SHOWN - 1] + "…"


def read(text: str) -> Value | Trap:
    """The value of an unquoted word."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return _trap(text) or text


def _trap(text: str) -> Trap | None:
    word, quoted = shown(text), f'"{shown(text)}"'
    for pattern, reading in _TRAPS:
        if pattern.fullmatch(text):
            return Trap(f"`{word}` is {reading}", f"write {quoted} for text, or a plain number")
    if _DATE.fullmatch(text):
        return Trap(f"`{word}` is a date in YAML 1.1 and text in YAML 1.2", f"write {quoted}")
    if _NOT_FINITE.fullmatch(text):
        return Trap(f"`{word}` is not a finite number", f"write {quoted} for text")
    if _SEXAGESIMAL.fullmatch(text):
        return _sexagesimal(text)
    return None


def _sexagesimal(text: str) -> Trap:
    """`1:30` is 90 to YAML 1.1. As a duration it may be minutes or hours, so nobody guesses."""
    parts = text.lstrip("+-").replace("_", "").split(":")
    durations = [
        "".join(f"{part}{unit}" for part, unit in zip(parts, units, strict=True))
        for units in _UNITS.get(len(parts), ())
    ]
    hint = f'write "{shown(text)}" for text'
    if durations and "." not in text:
        hint = f"write {' or '.join(durations)} for a duration, {hint.removeprefix('write ')}"
    return Trap(f"`{shown(text)}` is a number in base 60 in YAML 1.1 and text in YAML 1.2", hint)


_TRAPS = (
    (_ZEROS, "octal in YAML 1.1 and decimal in YAML 1.2"),
    (_UNDERSCORES, "a number in YAML 1.1 and text in YAML 1.2"),
    (_BASES, "a number that not every YAML reader knows"),
    (_EXPONENT, "a number in YAML 1.2 and may be text in YAML 1.1"),
    (_NUMBER, "a number in an unusual form"),
)
