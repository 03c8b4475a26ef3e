"""What to do about something: the same shape for checks of `doctor` and signatures of logs."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["block", "degrade", "note"]
"""By consequence: it cannot work or answers may be wrong; it works slower or less safely; worth
knowing."""
SEVERITIES: tuple[Severity, ...] = ("block", "degrade", "note")
"""Worst first."""


@dataclass(frozen=True)
class Fix:
    """What to do: words, and commands that can be run as they are."""

    text: str
    commands: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """For `--json`."""
        return {"text": self.text, "commands": list(self.commands)}
