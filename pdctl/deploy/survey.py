"""Looking before leaping: the world as it is, and the plan that follows. Changes nothing."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

from pdctl.config.model import Config
from pdctl.deploy import drains, facts
from pdctl.deploy.prepare.task import Task
from pdctl.deploy.ttl import Keys
from pdctl.deploy.world import World
from pdctl.plan.build import build
from pdctl.plan.chosen import kept
from pdctl.plan.facts import Facts, HeldPort
from pdctl.plan.model import Plan
from pdctl.render.model import SHOWN, Chosen, Deployment, Place
from pdctl.state.model import DeploymentState
from pdctl.state.store import StateStore


@dataclass(frozen=True)
class Wanted:
    """What the user asks for.

    Attributes:
        config: without problems (`render.check.load_checked`).
        file: the file it came from.
        marks: what the mark of every process of the deployment begins with.
        rendered: gives the deployment with what a start chose.
        place: where its things are on the hosts.
        verify: whether the two-turn proof is part of it.
        keys: for what is changed over HTTP.
        tasks: what its hosts need besides.
    """

    config: Config
    file: Path
    marks: str
    rendered: Callable[[Chosen], Deployment]
    place: Place
    verify: bool = True
    keys: Keys = field(default_factory=Keys)
    tasks: tuple[Task, ...] = ()


@dataclass(frozen=True)
class Survey:
    """The world as it is, and what follows from it. Nothing was changed.

    Attributes:
        tells: the routers take it from us which engines get nothing new.
    """

    state: DeploymentState | None
    facts: Facts
    chosen: Chosen
    deployment: Deployment
    plan: Plan
    tells: bool = False


def survey(
    world: World, wanted: Wanted, store: StateStore, *, restart: Collection[str] = ()
) -> Survey:
    """Look at the world and plan.

    Args:
        restart: processes that are to be restarted though nothing of them changed.

    Raises:
        StateError: the state file cannot be used.
        NotFoundError: the model or interpreter that is named is not there.
    """
    state = store.load()
    shown = wanted.rendered(SHOWN)
    chosen = kept(shown.processes, state)
    deployment = wanted.rendered(chosen)
    seen = facts.gather(
        world, wanted.config, deployment, state, marks=wanted.marks, tasks=wanted.tasks
    )
    if lost := _lost_ports(chosen, seen):
        chosen = kept(shown.processes, state, not_again={held.process for held in lost})
        deployment = wanted.rendered(chosen)
        in_the_way = tuple(held for held in seen.held_ports if held not in lost)
        seen = replace(seen, held_ports=in_the_way)
    no_drain = drains.why_not(wanted.config, wanted.keys.admin)
    plan = build(
        wanted.config,
        deployment,
        seen,
        state,
        verify=wanted.verify,
        restart=restart,
        no_drain=no_drain,
    )
    return Survey(state, seen, chosen, deployment, plan, not no_drain)


def _lost_ports(chosen: Chosen, seen: Facts) -> list[HeldPort]:
    """Ports that pdctl chose earlier, and that a stranger took when their process was dead."""
    return [
        held
        for held in seen.held_ports
        if held.process not in seen.alive
        and held.port
        in (chosen.ports.get(held.process), chosen.side_channel_ports.get(held.process))
    ]
