"""What the library tells while it works; the command line, the run log and `--json` listen."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class StepStarted:
    """A step of a plan begins."""

    id: str
    what: str


@dataclass(frozen=True)
class StepSkipped:
    """A step had nothing to do. The reason is never empty."""

    id: str
    what: str
    reason: str


@dataclass(frozen=True)
class StepProgress:
    """A long step says where it is; `done` and `total` share a unit, or are both None."""

    id: str
    text: str
    done: float | None = None
    total: float | None = None


@dataclass(frozen=True)
class StepWaiting:
    """A gate is waiting. Told at least every 30 s, with what for and how long it may still take."""

    id: str
    waiting_for: str
    elapsed_s: float
    deadline_s: float


@dataclass(frozen=True)
class StepDone:
    """A step ended well."""

    id: str
    what: str
    seconds: float
    result: str = ""


@dataclass(frozen=True)
class StepFailed:
    """A step ended badly; the exception follows on its own way."""

    id: str
    what: str
    seconds: float
    message: str


@dataclass(frozen=True)
class Note:
    """Something worth knowing that is not a step; `warning` asks for attention."""

    text: str
    warning: bool = False


Event = StepStarted | StepSkipped | StepProgress | StepWaiting | StepDone | StepFailed | Note
Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """A listener for callers who do not listen."""
