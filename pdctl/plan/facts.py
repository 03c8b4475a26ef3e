"""What planning must know of the world. `deploy.facts` gathers it; here are only the values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pdctl.base.process import RunningProcess


@dataclass(frozen=True)
class Facts:
    """The world as `up` finds it.

    Attributes:
        known: False where nobody was asked; everything is then taken to be still to do.
        missing_directories: of the deployment's directories.
        changed_files: of its files; missing ones too.
        pending_install: ids of the recipe's steps that are not done.
        damage: what the recipe's check said of a complete environment; empty when it is intact.
        model_pending: the built-in model is not made yet.
        alive: names of recorded processes that run, each the very one that was recorded.
        healthy: of those, the ones that answer.
        leftovers: processes with this deployment's mark that belong to none of `alive`.
        held_ports: by process name, who holds a port that it needs: `port 8100: pid 12 (python)`.
            Ports that the deployment's own processes hold are not among them.
    """

    known: bool = True
    missing_directories: tuple[str, ...] = ()
    changed_files: tuple[str, ...] = ()
    pending_install: tuple[str, ...] = ()
    damage: str = ""
    model_pending: bool = False
    alive: frozenset[str] = frozenset()
    healthy: frozenset[str] = frozenset()
    leftovers: tuple[RunningProcess, ...] = ()
    held_ports: Mapping[str, str] = field(default_factory=dict)
