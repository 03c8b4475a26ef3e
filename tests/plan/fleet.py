"""A fleet of engines that a plan is tried on, without processes: only what the steps mean."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product

from pdctl.base.command import command
from pdctl.base.process import ProcessRef, ProcessSpec, RoleName
from pdctl.plan.build import BY_UP, build
from pdctl.plan.facts import Facts
from pdctl.plan.model import (
    Action,
    Admit,
    ChoosePorts,
    Drain,
    EndGenerations,
    Part,
    Plan,
    ProvePairs,
    Start,
    Stop,
    WaitHealthy,
)
from pdctl.render.model import Deployment
from pdctl.state.model import DeploymentState, Intervals, record_of
from tests.plan.samples import config


@dataclass
class Fleet:
    """What is wanted, what runs, and what the routers were told.

    Attributes:
        cells: label by engine; empty for none.
        revision: what engines must have in common.
        seqs: what a role may have of its own, by role.
        ports: of engines that are not at the usual one.
        routers: how many; their command names all engines.
        starts: how often each was started.
    """

    prefill: int = 2
    decode: int = 2
    routers: int = 1
    cells: Mapping[str, str] = field(default_factory=dict)
    revision: str = "r1"
    seqs: dict[str, str] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    alive: set[str] = field(default_factory=set)
    healthy: set[str] = field(default_factory=set)
    starts: Counter[str] = field(default_factory=Counter)
    state: DeploymentState | None = None

    def deployment(self) -> Deployment:
        engines = [
            self._spec(role, index)
            for role, count in (("prefill", self.prefill), ("decode", self.decode))
            for index in range(count)
        ]
        urls = [word for spec in engines for word in ("--engine", spec.url)]
        routers = [
            ProcessSpec(
                "router", i, f"r{i}", f"10.2.0.{i}", 8000, None, command("router", *urls), "r.log"
            )
            for i in range(self.routers)
        ]
        return Deployment("demo", (*engines, *routers), (), (), None, None)

    def _spec(self, role: str, index: int) -> ProcessSpec:
        name, kind = f"{role}-{index}", "prefill" if role == "prefill" else "decode"
        port = self.ports.get(name, 8100)
        address = f"10.{0 if role == 'prefill' else 1}.0.{index}"
        words = ("--revision", self.revision, "--max-num-seqs", self.seqs.get(role, "1"))
        where = ("--host", address, "--port", str(port))
        role_name: RoleName = "prefill" if kind == "prefill" else "decode"
        return ProcessSpec(
            role_name, index, address, address, port, 5600,
            command("vllm", *words, *where), f"{name}.log", cell=self.cells.get(name, ""),
        )  # fmt: skip

    def plan(self, restart: Iterable[str] = ()) -> Plan:
        facts = Facts(alive=frozenset(self.alive), healthy=frozenset(self.healthy & self.alive))
        # What the file says names a generation, so it says what the fleet has.
        settings = config(
            model={"id": "pdctl/tiny-random", "revision": f"{self.revision} {self.seqs}"}
        )
        return build(settings, self.deployment(), facts, self.state, restart=tuple(restart))

    def up(self, *, stop_after: int = 10_000, watch: bool = False) -> int:
        """Apply a plan, at most so many of its steps. Returns how many there were."""
        actions = [step.action for step in self.plan().steps if step.action is not None]
        for action in actions[:stop_after]:
            self.apply(action)
            self.check(pair=watch)
        return len(actions)

    def check(self, *, pair: bool) -> None:
        """What must hold after each step: routers pair what fits only, and something serves."""
        usable = self._pairs(self._serving())
        for p, d in usable:
            assert self._kind(p) == self._kind(d), f"{p} and {d} are sent each other's blocks"
        assert usable or not pair, "nothing serves"

    def _serving(self) -> set[str]:
        assert self.state is not None
        return {
            n for n in self.alive & self.healthy
            if n in self.state.processes and not self.state.drained.get(n)
        }  # fmt: skip

    def _pairs(self, names: Iterable[str]) -> list[tuple[str, str]]:
        assert self.state is not None
        told = self.state.generations
        split: dict[str, list[str]] = {"prefill": [], "decode": [], "router": []}
        for name in names:
            split[name.split("-")[0]].append(name)
        return [
            (p, d)
            for p, d in product(split["prefill"], split["decode"])
            if (self.cells.get(p, ""), told.get(p, "")) == (self.cells.get(d, ""), told.get(d, ""))
        ]

    def _kind(self, name: str) -> str:
        assert self.state is not None
        argv = self.state.processes[name].argv
        return argv[argv.index("--revision") + 1]

    # --- the steps ----------------------------------------------------------------------

    def apply(self, action: Action) -> None:  # noqa: C901 - one line a kind of action
        state = self.state or _empty()
        specs = {spec.name: spec for spec in self.deployment().processes}
        match action:
            case Stop(name):
                state = (
                    state.with_process(replace(state.processes[name], ref=None))
                    if name in specs
                    else state.without_process(name)
                )
                self.alive.discard(name)
                self.healthy.discard(name)
            case ChoosePorts(starting):
                for name in starting:
                    assert name not in self.alive
                    state = state.with_process(record_of(specs[name], log="/l", engine_id="e"))
            case Start(name):
                self.starts[name] += 1
                ref = ProcessRef(self.starts[name], len(self.starts), "boot")
                state = state.with_process(replace(state.processes[name], ref=ref))
                self.alive.add(name)
            case WaitHealthy(names):
                self.healthy |= set(names)
            case Drain(names):
                mine = [name for name in names if not state.drained.get(name)]
                state = state.with_drained(mine, BY_UP)
            case Part(names, generation):
                state = state.with_generation(names, generation)
            case ProvePairs(names):
                self.state = state
                pairs = self._pairs(self.alive & self.healthy)
                for name in names:
                    fits = [p for p in pairs if name in p and self._kind(p[0]) == self._kind(p[1])]
                    assert fits, f"{name} has nobody to be proven with"
            case Admit(names):
                state = state.with_drained([n for n in names if state.drained.get(n) == BY_UP], "")
            case EndGenerations():
                state = replace(state, generations={})
        self.state = state


def _empty() -> DeploymentState:
    return DeploymentState(
        "demo", "ssh", "running", "0", "/pd.yaml", "d", 0.0, 20.0, Intervals(480.0, 472.0)
    )


def running(**how: object) -> Fleet:
    """A fleet that was started and is whole."""
    fleet = Fleet(**how)  # type: ignore[arg-type]
    fleet.up()
    assert [s.id for s in fleet.plan().steps if s.action is not None] == ["verify"]
    fleet.starts.clear()
    return fleet
