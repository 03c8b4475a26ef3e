"""Looking at the world before planning. Changes nothing."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from pdctl.base.errors import BadAnswerError, NotFoundError
from pdctl.base.process import Kept, ProcessSpec, RunningProcess
from pdctl.config.model import Config
from pdctl.deploy import folders
from pdctl.deploy.prepare.router import ROUTER_TASK
from pdctl.deploy.prepare.task import Task, look_at
from pdctl.deploy.world import World
from pdctl.engine import choices, example
from pdctl.engine.install import InstallStep, pending
from pdctl.engine.probe import disagreements, parse_probe, probe_command, probe_script
from pdctl.plan.facts import Facts, HeldPort
from pdctl.render.model import Deployment, RenderedFile
from pdctl.state.model import DeploymentState
from pdctl.targets.base import Host

_CHECK_LIMIT_S = 120.0
_PROBE_LIMIT_S = 60.0
_PID = re.compile(r"pid (\d+)\b")


def gather(
    world: World,
    config: Config,
    deployment: Deployment,
    state: DeploymentState | None,
    *,
    marks: str,
    tasks: Sequence[Task] = (),
) -> Facts:
    """The facts that `plan.build` needs.

    Args:
        marks: what the mark of every process of the deployment begins with.
        tasks: what hosts need besides.

    Raises:
        NotFoundError: the model or the interpreter that the configuration names is not there.
    """
    _require_existing(world, config, deployment)
    _require_example(world, config, deployment)
    if not any(task.id == ROUTER_TASK for task in tasks):
        _require_router(world, config, deployment)
    now = dict(_now(world, state))
    alive = frozenset(now)
    found = {name: host.find(marks) for name, host in world.hosts.items()}
    engine_hosts = _engine_hosts(world, deployment)
    return Facts(
        missing_directories=tuple(str(each.path) for each in folders.missing(world, deployment)),
        changed_files=tuple(
            str(each.path) for each in deployment.files if not _is_as_rendered(world, each)
        ),
        unfit=tuple(_unfit(engine_hosts, config, deployment, alive)),
        pending_install=tuple(_pending_install(engine_hosts, deployment)),
        damage=_damage(engine_hosts, deployment),
        model_pending=_is_pending(engine_hosts, deployment.model_step),
        alive=alive,
        healthy=frozenset(_healthy(world, state, alive)),
        leftovers=tuple(leftovers(found, state, alive)),
        held_ports=tuple(_held_ports(world, deployment, found)),
        supervision={s.host: world.supervision(s.host) for s in deployment.processes},
        tasks=look_at(tasks, world.hosts),
        now={name: kept.ref for name, kept in now.items() if kept.ref is not None},
    )


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


def _require_existing(world: World, config: Config, deployment: Deployment) -> None:
    model = config.model.id
    python = config.engine.python
    for host in _engine_hosts(world, deployment):
        if choices.is_path(model) and not host.exists(PurePosixPath(model)):
            raise NotFoundError(
                f"there is no model at `{model}`",
                where=f"{host.name}, key `model.id`",
                expected="a folder with config.json and weights, or the id of a model on the hub",
            )
        if deployment.recipe is None and python and "/" in python:
            _require_program(host, python)


def _require_example(world: World, config: Config, deployment: Deployment) -> None:
    if config.router.kind != "vllm-example":
        return
    written = {file.path for file in deployment.files}
    for spec in deployment.processes:
        script = PurePosixPath(spec.command.argv()[1])
        if spec.role != "router" or script in written or world.hosts[spec.host].exists(script):
            continue
        raise NotFoundError(
            f"there is no example proxy at `{script}`",
            where=f"{spec.host}, key `router.source`",
            expected="vLLM's source distribution (.tar.gz), a checkout that has it, or the .py "
            "file itself",
        )


def _require_router(world: World, config: Config, deployment: Deployment) -> None:
    """On other machines pdctl is no matter of course, and engines load long before the router."""
    if config.router.kind != "pdctl":
        return
    for spec in deployment.processes:
        python = spec.command.argv()[0]
        if spec.role == "router" and not world.hosts[spec.host].exists(PurePosixPath(python)):
            environment = PurePosixPath(python).parent.parent
            raise NotFoundError(
                f"there is no pdctl on the router's host: `{python}` is missing",
                where=spec.host,
                expected="a Python environment that has pdctl",
                hints=[
                    f"ssh {spec.host} 'python3 -m venv {environment} && "
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
    for host in hosts:
        result = host.run(probe_command(python), timeout=_PROBE_LIMIT_S, stdin=probe_script())
        try:
            found = parse_probe(result.stdout)
        except BadAnswerError as error:
            said = result.stderr.strip().splitlines()[-1:] or error.detail[-1:]
            yield ": ".join([error.message, *said])
        else:
            yield from disagreements(config, found)
            if config.router.kind == "vllm-example" and found.vllm is not None:
                yield from _missing_modules(host, python)


def _missing_modules(host: Host, python: str) -> Iterator[str]:
    result = host.run(example.missing_command(python), timeout=_PROBE_LIMIT_S)
    if missing := result.stdout.split():
        yield example.missing_modules(missing)


def _now(world: World, state: DeploymentState | None) -> Iterator[tuple[str, Kept]]:
    """The recorded processes that live, or that something is about to start again."""
    for record in state.processes.values() if state else ():
        host = world.hosts.get(record.host)
        if host is not None and record.ref is not None and (kept := host.kept(record.ref)):
            yield record.name, kept


def _healthy(world: World, state: DeploymentState | None, alive: frozenset[str]) -> Iterator[str]:
    for record in state.processes.values() if state else ():
        if record.name in alive and world.probe(world.near(record) + record.health_path) is None:
            yield record.name


def _is_as_rendered(world: World, file: RenderedFile) -> bool:
    return world.hosts[file.host].read_file(file.path) == file.content


def _pending_install(hosts: list[Host], deployment: Deployment) -> list[str]:
    recipe = deployment.recipe
    if recipe is None:
        return []
    todo = {step.id for host in hosts for step in pending(recipe.steps, host.read_file)}
    return [step.id for step in recipe.steps if step.id in todo]


def _damage(hosts: list[Host], deployment: Deployment) -> str:
    recipe = deployment.recipe
    if recipe is None or _pending_install(hosts, deployment):
        return ""
    for host in hosts:
        result = host.run(recipe.check, timeout=_CHECK_LIMIT_S)
        if not result.ok:
            said = (result.stdout + result.stderr).strip().splitlines()
            return said[-1] if said else f"its check ended with status {result.exit_status}"
    return ""


def _is_pending(hosts: list[Host], step: InstallStep | None) -> bool:
    return step is not None and any(pending((step,), host.read_file) for host in hosts)


def _held_ports(
    world: World, deployment: Deployment, found: Mapping[str, list[RunningProcess]]
) -> Iterator[HeldPort]:
    """Of all processes: one that runs may have to move to a port that is taken."""
    for spec in deployment.processes:
        ours = {each.ref.pid for each in found[spec.host]}
        yield from find_held(world.hosts[spec.host], spec, ours)


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
