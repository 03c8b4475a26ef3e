"""The logs of a deployment, from its state."""

from pdctl.base.errors import NotFoundError, UsageError
from pdctl.base.process import ROLES
from pdctl.observe.logs.read import Source, rotated
from pdctl.state.model import DeploymentState


def sources_of(name: str, state: DeploymentState | None, role: str | None = None) -> list[Source]:
    """One for each process, with what was put aside of its log; only those of `role`.

    Raises:
        NotFoundError: nothing was started.
        UsageError: its logs are on other machines.
    """
    if state is None or not state.processes:
        raise NotFoundError(
            f"nothing of `{name}` was started, so it has no logs",
            hints=["`pdctl up` starts it", "name files: `pdctl logs FILE…`, `-` for stdin"],
        )
    if state.target != "local":
        raise UsageError(
            f"the logs of a target of kind `{state.target}` are on its hosts",
            expected="files, or `-` for stdin",
            hints=["ssh HOST journalctl -o json -u UNIT | pdctl logs -"],
        )
    records = sorted(state.processes.values(), key=lambda r: (ROLES.index(r.role), r.index))
    return [
        Source(record.name, tuple(rotated(record.log)), record.role)
        for record in records
        if role in (None, record.role)
    ]
