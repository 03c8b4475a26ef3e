"""What planning must know of the world. `deploy.facts` gathers it; here are only the values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pdctl.base.process import ProcessRef, RunningProcess, Supervision


@dataclass(frozen=True)
class HeldPort:
    """A port that a process needs and somebody else has: `holder` is `pid 12 (python)`."""

    process: str
    port: int
    holder: str

    def __str__(self) -> str:
        return f"port {self.port} is held by {self.holder}, which {self.process} needs"


@dataclass(frozen=True)
class TaskFacts:
    """One thing that hosts need.

    Attributes:
        id, what, done, phase: as in `deploy.prepare.task.Task`.
        todo: names of hosts where there is something to do, each with the reason.
    """

    id: str
    what: str
    done: str
    phase: Literal["machine", "software"]
    todo: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Facts:
    """The world as `up` finds it.

    Attributes:
        known: False where nobody was asked; everything is then taken to be still to do.
        missing_directories: of the deployment's directories.
        changed_files: of its files; missing ones too.
        unfit: why the user's own engine cannot run this configuration, in sentences.
        pending_install: ids of the recipe's steps that are not done.
        damage: what the recipe's check said of a complete environment; empty when it is intact.
        model_pending: the built-in model is not made yet.
        alive: names of recorded processes that run, each the very one that was recorded.
        healthy: of those, the ones that answer.
        leftovers: processes with this deployment's mark that belong to none of `alive`.
        held_ports: ports in the way, but for those that the deployment's own processes hold.
        supervision: by host, what is to keep its processes running.
        tasks: what hosts need besides, in order.
        now: by name, what the recorded processes that live are now, started again or not.
    """

    known: bool = True
    missing_directories: tuple[str, ...] = ()
    changed_files: tuple[str, ...] = ()
    unfit: tuple[str, ...] = ()
    pending_install: tuple[str, ...] = ()
    damage: str = ""
    model_pending: bool = False
    alive: frozenset[str] = frozenset()
    healthy: frozenset[str] = frozenset()
    leftovers: tuple[RunningProcess, ...] = ()
    held_ports: tuple[HeldPort, ...] = ()
    supervision: Mapping[str, Supervision] = field(default_factory=dict)
    tasks: tuple[TaskFacts, ...] = ()
    now: Mapping[str, ProcessRef] = field(default_factory=dict)
