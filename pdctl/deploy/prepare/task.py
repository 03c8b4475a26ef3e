"""What a task is, and how it is looked at and done on several hosts at the same time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pdctl.base.errors import PermissionDeniedError
from pdctl.deploy.parallel import on_all
from pdctl.plan.facts import TaskFacts
from pdctl.targets.base import Host, OutputSink
from pdctl.targets.privilege import can_be_root

Phase = Literal["machine", "software"]
Look = Callable[[Host], str]
"""Why there is something to do on a host; empty when there is nothing."""
Apply = Callable[[Host, OutputSink], None]
"""Does it, and tells lines while it does."""


@dataclass(frozen=True)
class Task:
    """One thing that hosts need.

    Attributes:
        id: unique in a plan.
        what: in the imperative.
        done: what is said where there is nothing to do.
        hosts: names of those that need it.
        look: changes nothing.
        apply: may be repeated after an interruption.
        root: how to do it by hand, for a user who may not become root; None where no root is
            needed.
        phase: `machine` comes before the deployment's folders, `software` after the engine.
        sudo: whether `sudo -n` may be tried.
    """

    id: str
    what: str
    done: str
    hosts: tuple[str, ...]
    look: Look
    apply: Apply
    root: Callable[[Host], str] | None = None
    phase: Phase = "machine"
    sudo: bool = True


def look_at(tasks: Sequence[Task], hosts: Mapping[str, Host]) -> tuple[TaskFacts, ...]:
    """What is to be done where; all hosts at the same time."""

    def on(host: Host) -> dict[str, str]:
        return {task.id: task.look(host) for task in tasks if host.name in task.hosts}

    names = list(dict.fromkeys(name for task in tasks for name in task.hosts))
    found = dict(zip(names, on_all([hosts[name] for name in names], on), strict=True))
    return tuple(
        TaskFacts(
            id=task.id,
            what=task.what,
            done=task.done,
            phase=task.phase,
            todo=tuple((name, why) for name in task.hosts if (why := found[name][task.id])),
        )
        for task in tasks
    )


def apply_on(task: Task, hosts: Sequence[Host], tell: Callable[[Host, str], None]) -> None:
    """Do it on all these hosts at the same time; the first error is raised when all have ended.

    Raises:
        PermissionDeniedError: root is needed and cannot be had; says what to run by hand.
        PdctlError: whatever the task raises.
    """
    if task.root is not None:
        for host in hosts:
            _require_root(task, host)

    def apply(host: Host) -> None:
        task.apply(host, lambda line: tell(host, line))

    on_all(hosts, apply)


def _require_root(task: Task, host: Host) -> None:
    assert task.root is not None
    if can_be_root(host, sudo=task.sudo):
        return
    raise PermissionDeniedError(
        f"root is needed to {task.what}, and `sudo -n` does not give it"
        if task.sudo
        else f"root is needed to {task.what}, and `target.access.sudo` is off",
        where=host.name,
        hints=[f"run on the host: `{task.root(host)}`", "then `pdctl up` again"],
    )
