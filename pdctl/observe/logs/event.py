"""What a log is read into."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pdctl.base.fix import Severity
from pdctl.observe.signatures.model import Signature

_SHOWN = 4000


@dataclass(slots=True)
class Event:
    """One line that matters, or, where all are wanted, one line.

    Attributes:
        ts: seconds since the epoch; that of the line before it where it has none of its own.
        role: who wrote it; None when it cannot be told.
        source: name of the file or process.
        line: as it can be shown, cut when it is long.
        signature: None for a line without one.
        severity: that of the signature, unless what came before it says otherwise.
        fields: what the signature takes out of the line, numbers as text, and what was concluded.
        more: further lines, of a traceback.
        said: the line without what engine, container and journal put before it.
    """

    ts: float | None
    role: str | None
    source: str
    line: str
    signature: Signature | None = None
    severity: Severity | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    more: tuple[str, ...] = ()
    said: str = ""

    @property
    def id(self) -> str | None:
        """Of the signature."""
        return self.signature.id if self.signature else None

    def as_dict(self) -> dict[str, object]:
        """The shape in `logs --json`."""
        return {
            "ts": stamp(self.ts),
            "role": self.role,
            "source": self.source,
            "line": self.line,
            "signature": self.id,
            "severity": self.severity,
            "fields": self.fields,
        }


_stamps: dict[float, str] = {}


def stamp(ts: float | None) -> str | None:
    """ISO 8601 with this machine's offset, for machines."""
    if ts is None:
        return None
    if (known := _stamps.get(ts)) is None:
        if len(_stamps) > 1024:
            _stamps.clear()
        try:
            known = datetime.fromtimestamp(ts).astimezone().isoformat()
        except (ValueError, OverflowError, OSError):  # at the ends of what dates can be
            return None
        _stamps[ts] = known
    return known


def shown(text: str) -> str:
    """A line that is not too long to show."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"
