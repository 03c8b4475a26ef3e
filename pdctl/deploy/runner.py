"""Applying a plan. What is done is saved after every step, so that it can stop anywhere."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pdctl import __version__
from pdctl.base import paths
from pdctl.base.errors import BadAnswerError, PdctlError, TemporaryError
from pdctl.base.events import Note, StepDone, StepFailed, StepProgress, StepSkipped, StepStarted
from pdctl.base.process import ProcessRef, ProcessSpec, RunningProcess, Supervision
from pdctl.config.digest import digest_of
from pdctl.config.model import Ec2Target, ExternalTarget, SshTarget
from pdctl.deploy import (
    audit,
    drains,
    facts,
    folders,
    gates,
    install,
    services,
    teardown,
    ttl,
    warm,
)
from pdctl.deploy.interrupt import Interrupts
from pdctl.deploy.parallel import on_all
from pdctl.deploy.prepare.model import size_on
from pdctl.deploy.prepare.task import apply_on
from pdctl.deploy.survey import Survey, Wanted
from pdctl.deploy.world import World
from pdctl.engine import choices
from pdctl.plan.build import BY_UP
from pdctl.plan.chosen import completed
from pdctl.plan.model import (
    Action,
    Admit,
    ChoosePorts,
    Drain,
    EndGenerations,
    EndLeftovers,
    Install,
    MakeDirectories,
    Part,
    Prepare,
    ProvePairs,
    ReturnTtl,
    Start,
    Step,
    Stop,
    Verify,
    WaitHealthy,
    WriteFiles,
)
from pdctl.render.keeper import edition_of
from pdctl.render.model import SHOWN, Chosen
from pdctl.state.model import (
    DeploymentState,
    Intervals,
    ProcessRecord,
    Proof,
    merged,
    record_of,
)
from pdctl.state.store import StateStore
from pdctl.targets import hostlog
from pdctl.targets.base import Host

_LOADED_PER_S = 200e6  # bytes, from a slow network disk
_ROUTER_LIMIT_S = 60.0
_LINE_LENGTH = 120


@dataclass(frozen=True)
class Proven:
    """What the two-turn proof gives back: the tokens it saw reused, and all it found."""

    reused_tokens: int
    report: object


Prove = Callable[[DeploymentState], Proven]
"""Runs the proof on started processes. Raises `BadAnswerError` when it fails."""


@dataclass(frozen=True)
class Outcome:
    """A deployment that runs; `proven` is None when the proof had not to be run."""

    state: DeploymentState
    changed: bool
    proven: Proven | None


def up(world: World, wanted: Wanted, store: StateStore, found: Survey, *, prove: Prove) -> Outcome:
    """Apply the plan of a survey made under the same lock.

    Raises:
        TemporaryError: a port is taken, no space is left, or a limit passed.
        UnreachableError: a process ended while it was starting.
        BadAnswerError: the user's own engine does not fit, a command of the installation
            failed, or the proof did.
        KeyboardInterrupt: after saying what keeps running.
    """
    if found.plan.unfit:
        raise BadAnswerError(
            "your engine cannot run this configuration; nothing was started",
            where=f"key `engine.python`: {wanted.config.engine.python}",
            detail=found.plan.unfit,
        )
    if found.plan.conflicts:
        raise _ports_taken(found.plan.conflicts)
    return _Run(world, wanted, store, found, prove).apply()


def _ports_taken(conflicts: tuple[str, ...]) -> TemporaryError:
    return TemporaryError(
        "a port that is needed is taken; nothing was started",
        detail=conflicts,
        hints=[
            "end what holds it, choose another port in the file, or write 0 and pdctl chooses one"
        ],
    )


class _Run:
    """One application of a plan."""

    def __init__(
        self, world: World, wanted: Wanted, store: StateStore, found: Survey, prove: Prove
    ) -> None:
        self._world, self._wanted, self._store, self._found = world, wanted, store, found
        self._prove = prove
        self._deployment = found.deployment
        self._chosen = found.chosen
        self._state = _renewed(found.state, wanted, world.now())
        self._proven: Proven | None = None
        self._interrupts = Interrupts()

    def apply(self) -> Outcome:
        """Apply step by step; whatever ends it early, say what runs and how to go on."""
        plan = self._found.plan
        with self._interrupts:
            try:
                if any(step.action is not None for step in plan.steps):
                    self._require_space()
                    self._save(replace(self._state, phase="starting"))
                for step in plan.steps:
                    self._apply_step(step)
                final = replace(self._state, phase="running")
                if final != self._found.state:
                    self._save(final)
            except (PdctlError, KeyboardInterrupt) as stop:
                self._tell_what_runs(interrupted=isinstance(stop, KeyboardInterrupt))
                raise
        return Outcome(self._state, plan.changes, self._proven)

    def _apply_step(self, step: Step) -> None:
        if step.action is None:
            self._world.listen(StepSkipped(step.id, step.what, step.why))
            return
        began = self._world.monotonic()
        self._world.listen(StepStarted(step.id, step.what))
        try:
            result = self._do(step, step.action)
        except PdctlError as error:
            seconds = self._world.monotonic() - began
            self._world.listen(StepFailed(step.id, step.what, seconds, error.message))
            raise
        seconds = self._world.monotonic() - began
        self._world.listen(StepDone(step.id, step.what, seconds, result))

    def _do(self, step: Step, action: Action) -> str:  # noqa: C901 - one line a kind of action
        match action:
            case EndLeftovers():
                return self._end_leftovers()
            case MakeDirectories():
                return self._make_directories()
            case Prepare():
                return self._prepare(step, action)
            case Install():
                return self._install(step, action)
            case WriteFiles():
                return self._write_files(action)
            case ChoosePorts():
                return self._choose_ports(action)
            case Stop():
                return self._stop(action)
            case Start():
                return self._start(action)
            case WaitHealthy():
                return self._wait_healthy(step, action)
            case Drain():
                return self._drain(step, action)
            case Part():
                return self._part(action)
            case ProvePairs():
                return self._routers().wait_proven(step.id, self._state, action.names)
            case Admit():
                return self._admit(action)
            case EndGenerations():
                return self._end_generations()
            case ReturnTtl():
                return self._return_ttl()
            case Verify():
                return self._verify()

    # --- before anything starts ---------------------------------------------------------

    def _require_space(self) -> None:
        recipe = self._deployment.recipe
        steps = [step.action for step in self._found.plan.steps]
        if recipe and any(isinstance(a, Install) and a.step in recipe.steps for a in steps):
            for host in self._engine_hosts():
                install.require_space(host, recipe)

    def _end_leftovers(self) -> str:
        found = self._leftovers()
        pids = teardown.end_leftovers(
            self._world, self._wanted.config.name, found, timeout=self._state.stop_timeout
        )
        if left := self._leftovers():
            raise TemporaryError(
                "what an interrupted run left will not end",
                detail=[f"pid {each.ref.pid} on {host}" for host, each in left],
            )
        return f"ended pid {', '.join(map(str, pids))}" if pids else "they had ended"

    def _leftovers(self) -> list[tuple[str, RunningProcess]]:
        alive = self._found.facts.alive
        hosts = list(self._world.hosts.values())
        found = on_all(hosts, lambda host: host.find(self._wanted.marks))
        return [
            (name, each)
            for name, running in zip(self._world.hosts, found, strict=True)
            for each in facts.leftovers({name: running}, self._found.state, alive)
        ]

    def _make_directories(self) -> str:
        self._world.prepare()
        folders.make(self._world, self._deployment)
        made = [str(each.path) for each in self._deployment.directories]
        self._save(replace(self._state, directories=merged(self._state.directories, made)))
        self._audit(f"make {len(made)} folders", *self._world.hosts)
        return ""

    def _prepare(self, step: Step, action: Prepare) -> str:
        task = next(each for each in self._wanted.tasks if each.id == action.task)
        hosts = [self._world.hosts[name] for name in action.hosts]

        def tell(host: Host, line: str) -> None:
            text = f"{host.name}: {line.strip()}"[:_LINE_LENGTH]
            self._world.listen(StepProgress(step.id, text))

        apply_on(task, hosts, tell)
        self._audit(task.what, *action.hosts)
        return ""

    def _install(self, step: Step, action: Install) -> str:
        recipe = self._deployment.recipe
        of_recipe = recipe is not None and action.step in recipe.steps
        root = recipe.layout.root if recipe and of_recipe else action.step.marker.parent
        log = paths.log_dir(self._wanted.config.name) / "install.log"
        check = recipe.check if recipe and of_recipe else None
        hosts = self._engine_hosts()
        did = install.apply(self._world, hosts, step.id, action, root=root, log=log, check=check)
        self._audit(f"{action.step.what} in {root}", *(host.name for host in hosts))
        return did

    def _write_files(self, action: WriteFiles) -> str:
        files = [file for file in self._deployment.files if str(file.path) in action.paths]

        def write(host: Host) -> None:
            for file in files:
                if file.host == host.name:
                    host.write_file(file.path, file.content, mode=file.mode)

        names = dict.fromkeys(file.host for file in files)
        on_all([self._world.hosts[name] for name in names], write)
        self._audit(f"write {len(files)} files", *(file.host for file in files))
        return ""

    def _choose_ports(self, action: ChoosePorts) -> str:
        shown = self._wanted.rendered(SHOWN).processes
        self._chosen = chosen = completed(
            self._chosen,
            shown,
            action.starting,
            choose_port=lambda spec: self._host(spec).choose_port(spec.binds or spec.address),
            new_id=self._new_id,
        )
        self._deployment = self._wanted.rendered(chosen)
        starting = [s for s in self._deployment.processes if s.name in action.starting]
        held = [held for spec in starting for held in facts.find_held(self._host(spec), spec)]
        if held:
            raise _ports_taken(tuple(map(str, held)))
        state = self._state
        for spec in starting:
            state = state.with_process(self._intent(spec, chosen))
        # Written before anything is started: from here on an interrupted run is recognised.
        self._save(state)
        return ", ".join(f"{spec.name} {spec.port}" for spec in starting)

    def _new_id(self, spec: ProcessSpec) -> str | None:
        if self._supervision(spec) != "none":
            return None  # each start has its own, and not all of them are ours
        return f"{self._wanted.config.name}-{spec.name}-{self._world.suffix()}"

    def _supervision(self, spec: ProcessSpec) -> Supervision:
        return self._found.facts.supervision.get(spec.host, "none")

    def _intent(self, spec: ProcessSpec, chosen: Chosen) -> ProcessRecord:
        how = self._supervision(spec)
        log = services.log_of(spec, self._wanted.config.name, self._wanted.place, how)
        engine_id = chosen.engine_ids.get(spec.name)
        record = record_of(spec, log=log, engine_id=engine_id, supervision=how)
        offset = hostlog.size(self._host(spec), log)
        return replace(record, log_offset=offset, keeper=edition_of(how))

    def _return_ttl(self) -> str:
        ttl.set_ttl(
            self._world,
            self._store,
            self._state,
            self._state.kv,
            self._wanted.keys,
            choices.served_name(self._wanted.config),
        )
        self._save(replace(self._state, live_ttl=None))
        return ""

    # --- what routers send where --------------------------------------------------------

    def _routers(self) -> drains.Routers:
        return drains.Routers.of(self._world, self._state, self._wanted.keys.admin)

    def _drain(self, step: Step, action: Drain) -> str:
        mine = [name for name in action.names if not self._state.drained.get(name)]
        state = self._state.with_drained(mine, BY_UP)
        self._save(state)
        routers = self._routers()
        routers.tell(state)
        self._audit(f"drain {', '.join(action.names)}", *routers.hosts)
        limit = drains.limit_of(self._wanted.config)
        return routers.wait_idle(step.id, state, action.names, limit=limit)

    def _part(self, action: Part) -> str:
        self._save(self._state.with_generation(action.names, action.generation))
        routers = self._routers()
        routers.tell(self._state)
        self._audit(f"let {', '.join(action.names)} work with each other only", *routers.hosts)
        return ""

    def _admit(self, action: Admit) -> str:
        """But for those that somebody drained by hand."""
        mine = [name for name in action.names if self._state.drained.get(name) == BY_UP]
        self._save(self._state.with_drained(mine, ""))
        routers = self._routers()
        routers.tell(self._state)
        self._audit(f"admit {', '.join(mine)}", *routers.hosts)
        return ""

    def _end_generations(self) -> str:
        self._save(replace(self._state, generations={}))
        routers = self._routers()
        routers.tell(self._state)
        self._audit("let all engines work together again", *routers.hosts)
        return ""

    # --- processes ----------------------------------------------------------------------

    def _stop(self, action: Stop) -> str:
        record = self._state.processes[action.name]
        timeout = self._state.stop_timeout
        teardown.end_process(self._world, self._wanted.config.name, record, timeout)
        if any(spec.name == action.name for spec in self._deployment.processes):
            # Where it was is not forgotten: routers look for it there, and it starts there again.
            state = self._state.with_process(replace(record, ref=None, healthy_at=None))
        else:
            state = self._state.without_process(action.name)
            state = state.with_drained([action.name], "").with_generation([action.name], "")
        self._save(state)
        return ""

    def _start(self, action: Start) -> str:
        spec = next(s for s in self._deployment.processes if s.name == action.name)
        record = self._state.processes[action.name]
        if file := ttl.file_of(record):
            # What was set while an earlier one ran is not meant for this one.
            self._host(spec).remove_tree(file)
        with self._interrupts.held():
            ref = services.start(
                self._host(spec),
                spec,
                record.log,
                supervision=record.supervision,
                deployment=self._deployment,
                config=self._wanted.config,
                place=self._wanted.place,
            )
            started = replace(record, ref=ref, started_at=self._world.now())
            self._save(self._state.with_process(started))
        said = f"start {spec.name} pid={ref.pid} port={spec.port} log={record.log}"
        self._audit(said, spec.host)
        return f"pid {ref.pid}, port {spec.port}"

    def _wait_healthy(self, step: Step, action: WaitHealthy) -> str:
        records = [self._state.processes[name] for name in action.names]
        limit = _ROUTER_LIMIT_S if records[0].role == "router" else self._start_limit()
        gates.wait_healthy(
            self._world, step.id, records, limit=limit, on_healthy=self._mark_healthy
        )
        if records[0].role == "router" and self._found.tells:
            self._routers().tell(self._state)
        if isinstance(self._wanted.config.target, SshTarget | Ec2Target):
            for record in records:
                self._warm_up(record, limit)
        return ""

    def _warm_up(self, record: ProcessRecord, limit: float) -> None:
        """Engines only: a router proves its pairs by itself."""
        if record.role != "router":
            warm.warm_up(
                self._world.near(record),
                name=record.name,
                model=choices.served_name(self._wanted.config),
                key=self._wanted.keys.engine,
                limit=limit,
            )

    def _mark_healthy(self, record: ProcessRecord) -> None:
        healthy = replace(record, healthy_at=self._world.now())
        self._save(self._state.with_process(healthy))

    def _verify(self) -> str:
        # Whatever the proof says, nothing of `up` is left to be done.
        self._save(replace(self._state, phase="running"))
        self._proven = self._prove(self._state)
        tokens = self._proven.reused_tokens
        proof = Proof(self._world.now(), tokens, tuple(self._now()))
        self._save(replace(self._state, proof=proof))
        return f"{tokens} tokens reused"

    def _now(self) -> Iterator[ProcessRef]:
        """What the recorded processes are now, started again or not."""
        for _, record in sorted(self._state.processes.items()):
            host = self._world.hosts.get(record.host)
            kept = host.kept(record.ref) if host and record.ref else None
            if kept is not None and kept.ref is not None:
                yield kept.ref

    # --- small things -------------------------------------------------------------------

    def _save(self, state: DeploymentState) -> None:
        self._state = state
        self._store.save(state)

    def _audit(self, change: str, *hosts: str) -> None:
        audit.note_on(self._world, hosts, self._wanted.config.name, change)

    def _host(self, spec: ProcessSpec) -> Host:
        return self._world.hosts[spec.host]

    def _engine_hosts(self) -> list[Host]:
        engines = (s for s in self._deployment.processes if s.role != "router")
        return [self._world.hosts[name] for name in dict.fromkeys(s.host for s in engines)]

    def _start_limit(self) -> float:
        target = self._wanted.config.target
        assert not isinstance(target, ExternalTarget)
        hosts = [self._world.hosts[s.host] for s in self._deployment.processes]
        place, config = self._wanted.place, self._wanted.config
        size = max((size_on(host, config, place) for host in set(hosts)), default=0)
        # What is written in the file is meant; the default knows nothing of the model's size.
        more = 0.0 if "start_timeout" in target.model_fields_set else size / _LOADED_PER_S
        return target.start_timeout + more

    def _tell_what_runs(self, *, interrupted: bool) -> None:
        name = self._wanted.config.name
        try:
            running = [
                f"{record.name} (pid {record.ref.pid})"
                for record in self._state.processes.values()
                if record.ref and self._world.hosts[record.host].alive(record.ref)
            ]
        except PdctlError as error:  # the error that ended it is the one to tell
            runs = f"what runs cannot be asked: {error.message}"
        else:
            runs = f"still running: {', '.join(running)}" if running else "nothing of it runs"
        what = "interrupted; " if interrupted else ""
        self._world.listen(
            Note(
                f"{what}{runs}; `pdctl up -f {self._wanted.file}` goes on from here, "
                f"`pdctl down --name {name}` ends it; logs are in {paths.log_dir(name)}",
                warning=True,
            )
        )


def _renewed(state: DeploymentState | None, wanted: Wanted, now: float) -> DeploymentState:
    """The recorded state with what the configuration says now, or a new one."""
    config = wanted.config
    target = config.target
    fresh = DeploymentState(
        name=config.name,
        target=target.kind,
        phase="running",
        pdctl_version=__version__,
        config_file=str(wanted.file.absolute()),
        config_digest=digest_of(config),
        created_at=now,
        stop_timeout=0.0 if isinstance(target, ExternalTarget) else target.stop_timeout,
        kv=Intervals(config.kv.decoder_ttl, choices.router_ttl(config)),
    )
    if state is None:
        return fresh
    return replace(
        fresh,
        created_at=state.created_at,
        processes=state.processes,
        directories=state.directories,
        proof=state.proof,
        phase=state.phase,
        live_ttl=None if state.live_ttl == fresh.kv else state.live_ttl,
        drained=state.drained,
        generations=state.generations,
    )
