"""Looking at the world before planning. Changes nothing."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from pdctl.base.errors import BadAnswerError, NotFoundError
from pdctl.base.process import Kept, ProcessSpec, RunningProcess, Supervision
from pdctl.config.model import Config
from pdctl.deploy import folders
from pdctl.deploy.parallel import on_all
from pdctl.deploy.prepare.router import ROUTER_TASK
from pdctl.deploy.prepare.task import Task, look_at
from pdctl.deploy.world import World
from pdctl.engine import choices, example
from pdctl.engine.install import InstallStep, pending
from pdctl.engine.probe import disagreements, parse_probe, probe_command, probe_script
from pdctl.plan.facts import Facts, HeldPort
from pdctl.render.model import Deployment
from pdctl.state.model import DeploymentState, ProcessRecord
from pdctl.targets.base import Host

_CHECK_LIMIT_S = 120.0
_PROBE_LIMIT_S = 60.0
_PID = re.compile(r"pid (\d+)\b")


@dataclass(frozen=True)
class _Seen:
    """What one host says.

    Attributes:
        found: processes with the deployment's mark.
        missing: folders of the deployment that are not as they must be.
        changed: files of it that are not as rendered.
        now: its recorded processes that live, or that something is about to start again.
        healthy: of those, the ones that answer.
        held: by process, ports that somebody else has.
        supervision: what is to keep its processes running; None where it is to have none.
        pending: ids of the recipe's steps that are not done there.
        no_model: the built-in model is not made there yet.
    """

    found: list[RunningProcess]
    missing: list[str]
    changed: frozenset[str]
    now: Mapping[str, Kept]
    healthy: frozenset[str]
    held: Mapping[str, list[HeldPort]]
    supervision: Supervision | None
    pending: frozenset[str]
    no_model: bool


def gather(
    world: World,
    config: Config,
    deployment: Deployment,
    state: DeploymentState | None,
    *,
    marks: str,
    tasks: Sequence[Task] = (),
) -> Facts:
    """The facts that `plan.build` needs; all hosts are looked at at the same time.

    Args:
        marks: what the mark of every process of the deployment begins with.
        tasks: what hosts need besides.

    Raises:
        NotFoundError: the model or the interpreter that the configuration names is not there.
    """
    own_router = not any(task.id == ROUTER_TASK for task in tasks)
    hosts = list(world.hosts.values())
    on_all(hosts, lambda host: _require(host, config, deployment, own_router=own_router))
    look = _Look(world, deployment, state, marks)
    seen = dict(zip(world.hosts, on_all(hosts, look.at), strict=True))
    now = {name: kept for each in seen.values() for name, kept in each.now.items()}
    alive = frozenset(now)
    engine_hosts = _engine_hosts(world, deployment)
    pending_there = {step for each in seen.values() for step in each.pending}
    recipe = deployment.recipe
    return Facts(
        missing_directories=tuple(path for each in seen.values() for path in each.missing),
        changed_files=tuple(
            str(file.path) for file in deployment.files if str(file.path) in seen[file.host].changed
        ),
        unfit=tuple(_unfit(engine_hosts, config, deployment, alive)),
        pending_install=tuple(s.id for s in recipe.steps if s.id in pending_there)
        if recipe
        else (),
        damage="" if pending_there else _damage(engine_hosts, deployment),
        model_pending=any(each.no_model for each in seen.values()),
        alive=alive,
        healthy=frozenset(name for each in seen.values() for name in each.healthy),
        leftovers=tuple(leftovers({n: each.found for n, each in seen.items()}, state, alive)),
        held_ports=tuple(
            held for spec in deployment.processes for held in seen[spec.host].held[spec.name]
        ),
        supervision={n: each.supervision for n, each in seen.items() if each.supervision},
        tasks=look_at(tasks, world.hosts),
        now={name: kept.ref for name, kept in now.items() if kept.ref is not None},
    )


@dataclass(frozen=True)
class _Look:
    """What every host is asked for."""

    world: World
    deployment: Deployment
    state: DeploymentState | None
    marks: str

    def at(self, host: Host) -> _Seen:
        """Look at one host; several may be looked at at once."""
        mine = [spec for spec in self.deployment.processes if spec.host == host.name]
        engines = any(spec.role != "router" for spec in mine)
        found = host.find(self.marks)
        ours = {each.ref.pid for each in found}
        now = {record.name: kept for record, kept in self._now(host)}
        return _Seen(
            found=found,
            missing=[str(each.path) for each in folders.missing(host, self.deployment)],
            changed=frozenset(
                str(file.path)
                for file in self.deployment.files
                if file.host == host.name and host.read_file(file.path) != file.content
            ),
            now=now,
            healthy=frozenset(name for name in now if self._answers(name)),
            held={spec.name: list(find_held(host, spec, ours)) for spec in mine},
            supervision=self.world.supervision(host.name) if mine else None,
            pending=frozenset(self._pending(host) if engines else ()),
            no_model=engines and self._is_pending(host, self.deployment.model_step),
        )

    def _now(self, host: Host) -> Iterator[tuple[ProcessRecord, Kept]]:
        for record in self.state.processes.values() if self.state else ():
            mine = record.host == host.name and record.ref is not None
            if mine and record.ref and (kept := host.kept(record.ref)):
                yield record, kept

    def _answers(self, name: str) -> bool:
        assert self.state is not None
        record = self.state.processes[name]
        return self.world.probe(self.world.near(record) + record.health_path) is None

    def _pending(self, host: Host) -> Iterator[str]:
        if recipe := self.deployment.recipe:
            yield from (step.id for step in pending(recipe.steps, host.read_file))

    def _is_pending(self, host: Host, step: InstallStep | None) -> bool:
        return step is not None and bool(pending((step,), host.read_file))


def leftovers(
    found: Mapping[str, list[RunningProcess]],
    state: DeploymentState | None,
    alive: frozenset[str],
) -> Iterator[RunningProcess]:
    """Marked processes that belong to no recorded process that lives, by host."""
    records = state.processes.values() if state else ()
    ours = {r.ref.mark for r in records if r.name in alive and r.ref is not None}
    for processes in found.values():
        yield from (each for each in processes if each.ref.mark not in ours)


def _require(host: Host, config: Config, deployment: Deployment, *, own_router: bool) -> None:
    """What must be there before anything is begun.

    Args:
        own_router: whether the routers' environment is the user's to make.
    """
    mine = [spec for spec in deployment.processes if spec.host == host.name]
    if any(spec.role != "router" for spec in mine):
        _require_existing(host, config, deployment)
    for spec in mine:
        if spec.role != "router":
            continue
        if config.router.kind == "vllm-example":
            _require_example(host, spec, deployment)
        elif own_router:
            _require_router(host, spec)


def _require_existing(host: Host, config: Config, deployment: Deployment) -> None:
    model = config.model.id
    python = config.engine.python
    if choices.is_path(model) and not host.exists(PurePosixPath(model)):
        raise NotFoundError(
            f"there is no model at `{model}`",
            where=f"{host.name}, key `model.id`",
            expected="a folder with config.json and weights, or the id of a model on the hub",
        )
    if deployment.recipe is None and python and "/" in python:
        _require_program(host, python)


def _require_example(host: Host, spec: ProcessSpec, deployment: Deployment) -> None:
    script = PurePosixPath(spec.command.argv()[1])
    if script in {file.path for file in deployment.files} or host.exists(script):
        return
    raise NotFoundError(
        f"there is no example proxy at `{script}`",
        where=f"{host.name}, key `router.source`",
        expected="vLLM's source distribution (.tar.gz), a checkout that has it, or the .py "
        "file itself",
    )


def _require_router(host: Host, spec: ProcessSpec) -> None:
    """On other machines pdctl is no matter of course, and engines load long before the router."""
    python = spec.command.argv()[0]
    if host.exists(PurePosixPath(python)):
        return
    environment = PurePosixPath(python).parent.parent
    raise NotFoundError(
        f"there is no pdctl on the router's host: `{python}` is missing",
        where=host.name,
        expected="a Python environment that has pdctl",
        hints=[
            f"ssh {host.name} 'python3 -m venv {environment} && "
            f"{environment}/bin/pip install pdctl'"
        ],
    )


def _require_program(host: Host, python: str) -> None:
    if not host.exists(PurePosixPath(python)):
        raise NotFoundError(
            f"there is no interpreter at `{python}`",
            where=f"{host.name}, key `engine.python`",
            expected="the Python of an environment that has vLLM and NIXL",
        )


def _engine_hosts(world: World, deployment: Deployment) -> list[Host]:
    names = dict.fromkeys(s.host for s in deployment.processes if s.role != "router")
    return [world.hosts[name] for name in names]


def _unfit(
    hosts: list[Host], config: Config, deployment: Deployment, alive: frozenset[str]
) -> Iterator[str]:
    """What the user's own engine lacks. What pdctl installs is checked by its recipe."""
    python = config.engine.python
    if deployment.recipe is not None or python is None:
        return
    if all(spec.name in alive for spec in deployment.processes):
        return  # it runs, which is more than any look at its files can tell
    for found in on_all(hosts, lambda host: list(_disagreements(host, config, python))):
        yield from found


def _disagreements(host: Host, config: Config, python: str) -> Iterator[str]:
    result = host.run(probe_command(python), timeout=_PROBE_LIMIT_S, stdin=probe_script())
    try:
        found = parse_probe(result.stdout)
    except BadAnswerError as error:
        said = result.stderr.strip().splitlines()[-1:] or error.detail[-1:]
        yield ": ".join([error.message, *said])
        return
    yield from disagreements(config, found)
    if config.router.kind == "vllm-example" and found.vllm is not None:
        yield from _missing_modules(host, python)


def _missing_modules(host: Host, python: str) -> Iterator[str]:
    result = host.run(example.missing_command(python), timeout=_PROBE_LIMIT_S)
    if missing := result.stdout.split():
        yield example.missing_modules(missing)


def _damage(hosts: list[Host], deployment: Deployment) -> str:
    recipe = deployment.recipe
    if recipe is None:
        return ""

    def of(host: Host) -> str:
        result = host.run(recipe.check, timeout=_CHECK_LIMIT_S)
        if result.ok:
            return ""
        said = (result.stdout + result.stderr).strip().splitlines()
        return said[-1] if said else f"its check ended with status {result.exit_status}"

    return next(filter(None, on_all(hosts, of)), "")


def find_held(host: Host, spec: ProcessSpec, ours: Collection[int] = ()) -> Iterator[HeldPort]:
    """Ports of this process that somebody else holds.

    Args:
        ours: pids whose ports do not count, because they are the deployment's own.
    """
    # One that binds all addresses needs the port on each of them.
    address = spec.binds or spec.address
    for port in (spec.port, spec.side_channel_port):
        holder = host.port_holder(address, port) if port else None
        pid = _PID.match(holder) if holder else None
        if port and holder and not (pid and int(pid[1]) in ours):
            yield HeldPort(spec.name, port, holder)
