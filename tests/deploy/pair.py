"""A prefill/decode pair and router made of tiny HTTP servers, as real processes on real ports."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from pdctl.base import paths
from pdctl.base.command import Command
from pdctl.base.events import Event
from pdctl.base.process import ProcessSpec, RoleName, Supervision, marked
from pdctl.config.model import Config
from pdctl.deploy import runner
from pdctl.deploy.prepare.task import Task
from pdctl.deploy.runner import Outcome, Proven
from pdctl.deploy.survey import Survey, Wanted, survey
from pdctl.deploy.teardown import Removed, tear_down
from pdctl.deploy.world import World
from pdctl.engine.install import InstallRecipe, InstallStep
from pdctl.render.model import (
    NEW_AT_EVERY_START,
    Chosen,
    Deployment,
    Place,
    RenderedDir,
    RenderedFile,
)
from pdctl.render.place import place_here
from pdctl.render.supervise import FOLDER, supervisor_path, supervisor_script
from pdctl.state.lock import hold
from pdctl.state.model import DeploymentState
from pdctl.state.store import StateStore
from pdctl.targets.base import Host
from pdctl.targets.local import LocalHost

NAME = "demo"
NAMES = ("prefill-0", "decode-0", "router-0")
SERVER = str(Path(__file__).with_name("server.py"))


def config(**target: Any) -> Config:
    return Config.model_validate(
        {
            "name": NAME,
            "model": {"id": "pdctl/tiny-random", "dtype": "float32"},
            "engine": {"install": "cpu"},
            "target": {"kind": "local", "start_timeout": 30, "stop_timeout": 1, **target},
        }
    )


@dataclass
class Pair:
    """What a test may change before or between runs; each field is then rendered.

    Attributes:
        how: by process name, how its server behaves (see `server.py`).
        more: by process name, more arguments.
        ports: by process name; 0 and missing ones are chosen.
    """

    events: list[Event] = field(default_factory=list)
    how: dict[str, str] = field(default_factory=dict)
    more: dict[str, tuple[str, ...]] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    config: Config = field(default_factory=config)
    recipe: InstallRecipe | None = None
    model_step: InstallStep | None = None
    proofs: int = 0
    supervision: Supervision = "none"
    tasks: tuple[Task, ...] = ()
    host: Host = field(default_factory=LocalHost)

    def render(self, chosen: Chosen) -> Deployment:
        """What `render.deployment.render` would give for such a pair."""
        place = PurePosixPath(paths.deployment_dir(NAME))
        temp = PurePosixPath(paths.temp_dir(NAME))
        specs = [
            marked(self.spec(role, chosen, temp), place) for role in ("prefill", "decode", "router")
        ]
        return Deployment(
            name=NAME,
            processes=tuple(specs),
            directories=(
                RenderedDir("localhost", place),
                RenderedDir("localhost", temp),
                RenderedDir("localhost", place / "control" / "prefill-0"),
                RenderedDir("localhost", place / FOLDER),
            ),
            files=(
                RenderedFile("localhost", place / "control" / "ttl", b"480"),
                RenderedFile("localhost", supervisor_path(self.place), supervisor_script()),
            ),
            recipe=self.recipe,
            model_step=self.model_step,
        )

    def spec(self, role: RoleName, chosen: Chosen, temp: PurePosixPath) -> ProcessSpec:
        name = f"{role}-0"
        engine_id = chosen.engine_ids.get(name, NEW_AT_EVERY_START)
        port = chosen.ports.get(name, self.ports.get(name, 0))
        words = (
            sys.executable,
            "-I",
            "-S",
            SERVER,
            "--port",
            str(port),
            "--how",
            self.how.get(name, "well"),
        )
        ids = () if role == "router" else ("--id", engine_id)
        command = Command((*words, *ids, *self.more.get(name, ())), cwd=str(temp))
        return ProcessSpec(
            role=role,
            index=0,
            host="localhost",
            address="127.0.0.1",
            port=port,
            side_channel_port=None,
            command=command,
            log_name=f"{name}.log",
        )

    # --- doing --------------------------------------------------------------------------

    @property
    def world(self) -> World:
        return World(
            {"localhost": self.host},
            self.events.append,
            sleep=_short,
            supervision=lambda host: self.supervision,
        )

    @property
    def store(self) -> StateStore:
        return StateStore(NAME)

    @property
    def place(self) -> Place:
        return place_here(NAME)

    @property
    def marks(self) -> str:
        return f"{paths.deployment_dir(NAME)}/"

    def wanted(self, *, verify: bool = True) -> Wanted:
        return Wanted(
            *(self.config, Path("pd.yaml"), self.marks, self.render, self.place, verify),
            tasks=self.tasks,
        )

    def up(self, *, verify: bool = True, world: World | None = None) -> Outcome:
        """As the command does it, with the lock, but for the questions."""
        world, wanted = world or self.world, self.wanted(verify=verify)
        self.events.clear()
        with hold(NAME, "pdctl up"):
            found = survey(world, wanted, self.store)
            return runner.up(world, wanted, self.store, found, prove=self.prove)

    def survey(self) -> Survey:
        return survey(self.world, self.wanted(), self.store)

    def render_now(self) -> dict[str, ProcessSpec]:
        """What the processes are to be, with what was chosen."""
        return {spec.name: spec for spec in self.survey().deployment.processes}

    def prove(self, state: DeploymentState) -> Proven:
        self.proofs += 1
        return Proven(reused_tokens=99, report=None)

    def down(self) -> Removed:
        with hold(NAME, "pdctl down"):
            return tear_down(self.world, self.store, self.store.load(), place=self.place)

    # --- seeing -------------------------------------------------------------------------

    def state(self) -> DeploymentState:
        state = self.store.load()
        assert state is not None
        return state

    def pids(self) -> dict[str, int]:
        return {n: r.ref.pid for n, r in self.state().processes.items() if r.ref is not None}

    def running(self) -> list[int]:
        """All processes of the pair, children too, recorded or not."""
        return [each.ref.pid for each in self.host.find(self.marks)]

    def told(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def log(self, name: str) -> str:
        return (paths.log_dir(NAME) / f"{name}.log").read_text()

    def end_everything(self) -> None:
        for each in self.host.find(self.marks):
            self.host.stop(each.ref, timeout=0)
        assert self.running() == []
        # Outside tmp_path, whose paths are too long for sockets; `down` was not always run.
        self.host.remove_tree(PurePosixPath(paths.temp_dir(NAME)))


def names(steps: Sequence[Any]) -> list[str]:
    return [step.id for step in steps]


def _short(seconds: float) -> None:
    time.sleep(min(seconds, 0.02))


@contextmanager
def fast_clock(world: World) -> Iterator[World]:
    """The same world, in which waiting takes no time: a second passes at each look."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += 1.0

    yield replace(world, monotonic=lambda: now[0], sleep=sleep)
