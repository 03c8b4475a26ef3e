"""The logs of a deployment, from its state."""

from pdctl.base.errors import NotFoundError
from pdctl.base.process import ROLES
from pdctl.observe.logs.read import Source, rotated
from pdctl.state.model import DeploymentState, ProcessRecord


def sources_of(name: str, state: DeploymentState | None, role: str | None = None) -> list[Source]:
    """One for each process on this machine, with what was put aside of its log; only of `role`.

    Raises:
        NotFoundError: nothing was started.
    """
    return [
        Source(record.name, tuple(rotated(record.log)), record.role)
        for record in records_of(name, state, role)
    ]


def records_of(
    name: str, state: DeploymentState | None, role: str | None = None
) -> list[ProcessRecord]:
    """The processes that have logs, in order; only those of `role`.

    Raises:
        NotFoundError: nothing was started.
    """
    if state is None or not state.processes:
        raise NotFoundError(
            f"nothing of `{name}` was started, so it has no logs",
            hints=["`pdctl up` starts it", "name files: `pdctl logs FILE…`, `-` for stdin"],
        )
    records = sorted(state.processes.values(), key=lambda r: (ROLES.index(r.role), r.index))
    return [record for record in records if role in (None, record.role)]
