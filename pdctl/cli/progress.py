"""What the library tells while it works, as lines on stderr."""

import time

from pdctl.base.events import (
    Event,
    Note,
    StepDone,
    StepFailed,
    StepProgress,
    StepSkipped,
    StepStarted,
    StepWaiting,
)
from pdctl.cli import ui


class Progress:
    """Turns events into lines; a repeated progress of one step is told at most every 5 s."""

    def __init__(self, verbose: bool) -> None:
        self._verbose = verbose
        self._told: dict[str, float] = {}

    def __call__(self, event: Event) -> None:
        match event:
            case StepStarted(what=what) if self._verbose:
                ui.say(f"… {what}", "dim")
            case StepProgress(id=step, text=text) if self._due(step):
                ui.say(f"… {text}{_share(event)}", "dim")
            case StepWaiting(id=step) if self._due(step):
                ui.say(
                    f"… waiting for {event.waiting_for} "
                    f"({event.elapsed_s:.0f} of at most {event.deadline_s:.0f} s)",
                    "dim",
                )
            case StepSkipped(what=what, reason=reason):
                ui.say(f"{ui.mark('skip')} {what}: nothing to do, because {reason}", "dim")
            case StepDone(what=what, seconds=seconds, result=result):
                tail = f": {result}" if result else ""
                ui.say(f"{ui.mark('ok')} {what}{tail} ({seconds:.1f} s)", "ok")
            case StepFailed(what=what, message=message, seconds=seconds):
                ui.say(f"{ui.mark('bad')} {what}: {message} ({seconds:.1f} s)", "bad")
            case Note(text=text, warning=warning):
                ui.say(
                    f"{ui.mark('warn')} {text}" if warning else text, "warn" if warning else "plain"
                )

    def _due(self, step: str) -> bool:
        now = time.monotonic()
        if now - self._told.get(step, -10.0) < 5.0:
            return False
        self._told[step] = now
        return True


def _share(event: StepProgress) -> str:
    if event.done is None or not event.total:
        return ""
    return f" ({event.done / event.total:.0%})"
