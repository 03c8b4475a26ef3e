"""A plan: steps in order, each with what, why, and whether it changes anything. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pdctl.base.process import ProcessRef
from pdctl.engine.install import InstallStep


@dataclass(frozen=True)
class EndLeftovers:
    """End processes that carry this deployment's mark and that no state speaks of."""

    refs: tuple[ProcessRef, ...]


@dataclass(frozen=True)
class MakeDirectories:
    """Make the deployment's directories."""


@dataclass(frozen=True)
class Prepare:
    """Do one task on the hosts that need it."""

    task: str
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class Install:
    """Apply one step of a recipe; `reset` removes the whole environment first."""

    step: InstallStep
    reset: bool = False


@dataclass(frozen=True)
class WriteFiles:
    """Write rendered files; `paths` are those that are missing or differ."""

    paths: tuple[str, ...]


@dataclass(frozen=True)
class ChoosePorts:
    """See that ports are free, choose those that are 0, and record what is about to start."""

    starting: tuple[str, ...]


@dataclass(frozen=True)
class Stop:
    """End one recorded process."""

    name: str


@dataclass(frozen=True)
class Start:
    """Start one process and record it."""

    name: str


@dataclass(frozen=True)
class WaitHealthy:
    """Wait until these answer."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Drain:
    """Have the routers send nothing new to engines, and wait until what they have is done."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """Tell the routers that from now on these engines work with each other only."""

    names: tuple[str, ...]
    generation: str


@dataclass(frozen=True)
class ProvePairs:
    """Wait until every router has seen blocks go both ways through each of these engines."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Admit:
    """Have the routers send requests to these engines again."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class EndGenerations:
    """Tell the routers that all engines are of one kind again."""


@dataclass(frozen=True)
class ReturnTtl:
    """Undo TTLs that were set while it ran."""


@dataclass(frozen=True)
class Verify:
    """Run the two-turn proof."""


Action = (
    EndLeftovers
    | MakeDirectories
    | Prepare
    | Install
    | WriteFiles
    | ChoosePorts
    | Stop
    | Start
    | WaitHealthy
    | Drain
    | Part
    | ProvePairs
    | Admit
    | EndGenerations
    | ReturnTtl
    | Verify
)


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        id: unique in the plan.
        what: what it does, in the imperative.
        why: the reason; for a step without an action, why there is nothing to do.
        changes: whether anything differs afterwards. Waiting and proving change nothing.
        action: what to apply; None when there is nothing to do.
    """

    id: str
    what: str
    why: str
    changes: bool
    action: Action | None


@dataclass(frozen=True)
class Instance:
    """A machine that the plan needs; `zone` is None until it is known.

    Attributes:
        interfaces: network interfaces as card, device and kind.
    """

    role: str
    type: str
    zone: str | None
    interfaces: tuple[tuple[int, int, str], ...] = ()


@dataclass(frozen=True)
class Plan:
    """What `up` would do.

    Attributes:
        unfit: why the user's own engine cannot run the configuration.
        conflicts: ports in the way, each with its holder.
        consent: what a user must agree to first, in sentences; empty when nothing is at stake.
        instances: machines, for targets that make them.
        hourly_usd, as_of: cost of those machines; None where nobody has looked it up.
        notices: what the user should know, in sentences.
    """

    name: str
    steps: tuple[Step, ...]
    unfit: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    consent: tuple[str, ...] = ()
    instances: tuple[Instance, ...] = ()
    hourly_usd: float | None = 0.0
    as_of: str | None = None
    notices: tuple[str, ...] = field(default=())

    @property
    def changes(self) -> bool:
        """Whether any step changes anything."""
        return any(step.changes for step in self.steps)

    @property
    def starting(self) -> tuple[str, ...]:
        """Names of the processes that would be started."""
        return tuple(s.action.name for s in self.steps if isinstance(s.action, Start))

    def as_dict(self) -> Mapping[str, object]:
        """The shape of `plan --json`."""
        return {
            "steps": [
                {"id": step.id, "what": step.what, "why": step.why, "changes": step.changes}
                for step in self.steps
            ],
            "resources": {
                "instances": [
                    {
                        "role": each.role,
                        "type": each.type,
                        "zone": each.zone,
                        "interfaces": [
                            {"card": card, "device": device, "type": kind}
                            for card, device, kind in each.interfaces
                        ],
                    }
                    for each in self.instances
                ]
            },
            "cost": {"hourly_usd": self.hourly_usd, "as_of": self.as_of},
        }
