"""`decode/1`: one process of a deployment, or all of a role, as commands take them."""

from typing import TYPE_CHECKING

from pdctl.base.errors import UnreachableError, UsageError
from pdctl.base.process import ROLES

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pdctl.state.model import DeploymentState, ProcessRecord


def named(
    text: str, state: "DeploymentState | None", roles: "Collection[str]" = ROLES
) -> "Sequence[ProcessRecord]":
    """The processes that `ROLE`, `ROLE/N` or `ROLE-N` names.

    Raises:
        UsageError: it is no name, or no such process is recorded.
        UnreachableError: nothing was started.
    """
    role, _, number = text.replace("-", "/", 1).partition("/")
    if role not in roles or not (number.isdecimal() or text == role):
        expected = " or ".join(f"`{each}/0`" for each in roles)
        raise UsageError(f"`{text}` names no process that this is for", expected=expected)
    if state is None or not state.processes:
        raise UnreachableError("nothing was started", hints=["`pdctl up` starts it"])
    found = [r for r in state.processes.values() if r.role == role]
    if number:
        found = [r for r in found if r.index == int(number)]
    if not found:
        names = ", ".join(sorted(state.processes))
        raise UsageError(f"`{state.name}` has no `{text}`", expected=f"one of {names}")
    return sorted(found, key=lambda record: record.index)
