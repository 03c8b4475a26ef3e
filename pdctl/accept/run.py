"""Running the steps of an acceptance one after the other, within a budget.

A step that fails does not end the run: what comes after it may still be worth knowing.
"""

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pdctl.accept.budget import Budget
from pdctl.accept.model import Found, Result
from pdctl.base.errors import PdctlError
from pdctl.base.events import Listener, StepDone, StepFailed, StepSkipped, StepStarted

Past = Mapping[str, Found]
"""What earlier steps found, by id."""


@dataclass(frozen=True)
class Step:
    """Something to try.

    Attributes:
        run: tries it; gets the seconds that are left, and what others found.
        needs: seconds without which it is not begun, because it could not be ended well.
        skip: why it is not tried at all; empty to try it.
        always: also when the budget is spent; it costs next to nothing.
    """

    id: str
    title: str
    run: Callable[[float, Past], Found]
    needs: float = 10.0
    skip: str = ""
    always: bool = False


def run_steps(steps: Sequence[Step], budget: Budget, listen: Listener) -> Iterator[Result]:
    """Try each; a result is given as soon as it is there, so that an interruption keeps it."""
    past: dict[str, Found] = {}
    for step in steps:
        result = _try(step, budget, past, listen)
        past[step.id] = result.found
        yield result


def _try(step: Step, budget: Budget, past: Past, listen: Listener) -> Result:
    if step.skip:
        return _left_out(step, step.skip, listen)
    if budget.left < step.needs and not step.always:
        why = (
            f"the budget is spent: {max(budget.left, 0.0):.0f} s are left, it needs {step.needs:g}"
        )
        return _left_out(step, why, listen, over=True)
    listen(StepStarted(step.id, step.title))
    began = budget.spent
    try:
        found = step.run(budget.left, past)
    except PdctlError as error:
        found = Found("fail", error.message, {"where": error.where, "detail": list(error.detail)})
    except Exception as error:
        # Hosts by the hour are dear: a bug in one step must not cost the others theirs.
        said = f"this is a bug in pdctl: {type(error).__name__}: {error}"
        found = Found("fail", said, {"detail": traceback.format_exception(error)})
    seconds = budget.spent - began
    if found.status == "fail":
        listen(StepFailed(step.id, step.title, seconds, found.said))
    elif found.status == "skip":
        listen(StepSkipped(step.id, step.title, found.said))
    else:
        listen(StepDone(step.id, step.title, seconds, found.said))
    return Result(step.id, step.title, found, seconds)


def _left_out(step: Step, why: str, listen: Listener, *, over: bool = False) -> Result:
    listen(StepSkipped(step.id, step.title, why))
    return Result(step.id, step.title, Found("skip", why), over_budget=over)
