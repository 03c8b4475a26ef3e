"""Configuration, rendered deployment, recorded state and facts to an ordered plan. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pdctl.base.durations import format_duration
from pdctl.base.process import ProcessSpec, Supervision
from pdctl.base.words import listed
from pdctl.config.digest import digest_of
from pdctl.config.model import Config, Ec2Target, ExternalTarget
from pdctl.engine import choices
from pdctl.plan.differences import TTL_OPTIONS, differences
from pdctl.plan.facts import Facts
from pdctl.plan.model import (
    Admit,
    ChoosePorts,
    Drain,
    EndGenerations,
    EndLeftovers,
    Install,
    MakeDirectories,
    Part,
    Plan,
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
from pdctl.plan.rolling import Group, Member, changes_kind, groups_of
from pdctl.render.keeper import edition_of
from pdctl.render.model import Deployment
from pdctl.state.model import DeploymentState, Intervals, ProcessRecord

BY_UP = "pdctl replaces it"
"""Why an engine is drained that `up` itself will admit again."""
KEY_ENV = "VLLM_API_KEY"
_SHORT_DIGEST = 12
_SHOWN_DIFFERENCES = 4
_OTHER_KEEPER: Mapping[Supervision, str] = {
    "systemd": "this pdctl writes another unit for it than the one it runs in",
    "process": "this pdctl has another supervisor than the one that keeps it running",
}


def build(
    config: Config,
    deployment: Deployment,
    facts: Facts,
    state: DeploymentState | None,
    *,
    verify: bool = True,
    restart: Collection[str] = (),
    no_drain: str = "",
) -> Plan:
    """What `up` would do, in order.

    Args:
        deployment: rendered with what is kept of earlier choices (`plan.chosen.kept`).
        facts: the world as it is.
        state: what was recorded, or None.
        verify: whether the two-turn proof is wanted.
        restart: processes that are to be restarted though nothing of them changed.
        no_drain: why the routers do not take it from us which engines get nothing new; empty when
            they do.
    """
    work = _Work(config, deployment, facts, state, verify, frozenset(restart), no_drain)
    verdicts = {spec.name: work.verdict(spec) for spec in deployment.processes}
    members = work.members(verdicts)
    groups = groups_of(members, digest_of(config)[:_SHORT_DIGEST])
    steps = tuple(work.steps(verdicts, groups))
    return Plan(
        name=config.name,
        steps=steps,
        unfit=facts.unfit,
        conflicts=tuple(str(held) for held in facts.held_ports if verdicts[held.process].start),
        consent=(
            *_of_groups(groups, verdicts, facts),
            *_of_moves(members, config),
            *_consent(steps, facts, state, deployment, groups),
            *(
                [f"requests that run on an engine that is replaced are cut off: {no_drain}"]
                if groups and not work.drains
                else []
            ),
        ),
        hourly_usd=None if isinstance(config.target, Ec2Target) else 0.0,
        notices=deployment.notices,
    )


@dataclass(frozen=True)
class _Verdict:
    """What becomes of one process: `stop` comes before `start`; neither leaves it alone."""

    start: bool
    stop: bool
    why: str


@dataclass(frozen=True)
class _Work:
    config: Config
    deployment: Deployment
    facts: Facts
    state: DeploymentState | None
    verify: bool
    restart: frozenset[str]
    no_drain: str

    def record(self, name: str) -> ProcessRecord | None:
        return self.state.processes.get(name) if self.state else None

    # --- one process --------------------------------------------------------------------

    def verdict(self, spec: ProcessSpec) -> _Verdict:
        record = self.record(spec.name)
        if record is None:
            return _Verdict(True, False, "it was never started")
        if spec.name not in self.facts.alive:
            return _Verdict(True, False, _why_dead(record))
        ignored = TTL_OPTIONS if self._ttl_holds() else ()
        moved = [f"host: {record.host} → {spec.host}"] * (record.host != spec.host)
        kept = () if moved else self._kept_otherwise(record)
        if drift := (*moved, *differences(record, spec, ignored), *kept):
            return _Verdict(True, True, f"the configuration changed: {_short(drift)}")
        if record.keeper not in ("", edition_of(record.supervision)):
            return _Verdict(True, True, _OTHER_KEEPER[record.supervision])
        now = self.facts.now.get(spec.name, record.ref)
        pid = now.pid if now else 0
        if spec.name in self.restart:
            return _Verdict(True, True, f"a restart of pid {pid} was asked for")
        if spec.name in self.facts.healthy:
            return _Verdict(False, False, f"pid {pid} runs as configured and answers")
        return _Verdict(False, False, f"pid {pid} runs as configured; it does not answer yet")

    def _ttl_holds(self) -> bool:
        """Whether what the configuration says is in force, whatever the processes began with."""
        config = self.config
        wanted = Intervals(config.kv.decoder_ttl, choices.router_ttl(config))
        return self.state is not None and self.state.ttl == wanted

    def _kept_otherwise(self, record: ProcessRecord) -> Iterator[str]:
        """`auto` leaves alone what is kept running at all."""
        wanted = self.facts.supervision.get(record.host, "none")
        kept = "none" not in (record.supervision, wanted)
        auto = getattr(self.config.target, "supervision", "auto") == "auto"
        if record.supervision != wanted and not (auto and kept):
            yield f"supervision: {record.supervision} → {wanted}"

    # --- the steps ----------------------------------------------------------------------

    def steps(self, verdicts: dict[str, _Verdict], groups: Sequence[Group]) -> Iterator[Step]:
        starting = tuple(name for name, verdict in verdicts.items() if verdict.start)
        rolled = {name for group in groups for name in group.names}
        engines = tuple(s for s in self.deployment.processes if s.role != "router")
        routers = tuple(s for s in self.deployment.processes if s.role == "router")
        first = tuple(s for s in engines if s.name not in rolled)
        yield from self._leftovers()
        yield from self._tasks("machine")
        yield self._directories()
        yield from self._engine()
        yield from self._tasks("software")
        if not any(task.id == "model" for task in self.facts.tasks):
            yield self._model()
        yield self._files()
        yield from self._ttl()
        early = _first_key(self.state, engines)
        replaced = tuple(s for s in routers if early and verdicts[s.name].stop)
        yield from self._routers(replaced, verdicts)
        gone = self._gone_names()
        yield from self._gone(self._in_the_way(gone, [s.name for s in first]))
        yield from self._started(first, routers, verdicts)
        yield from self._admitted(first, groups, starting)
        for group in groups:
            yield from self._replaced(group, verdicts, gone)
        yield from self._gone(gone)
        yield from self._routers([s for s in routers if s not in replaced], verdicts)
        yield from self._one_kind(groups)
        yield self._proof(starting)

    def _started(
        self,
        specs: Sequence[ProcessSpec],
        routers: Sequence[ProcessSpec],
        verdicts: Mapping[str, _Verdict],
    ) -> Iterator[Step]:
        """Engines that are down, all at once; the others are told of."""
        starting = tuple(s.name for s in specs if verdicts[s.name].start)
        down = tuple(
            s.name for s in routers if verdicts[s.name].start and not verdicts[s.name].stop
        )
        if starting or down or not any(verdict.start for verdict in verdicts.values()):
            yield self._ports("ports", (*starting, *down))
        for spec in specs:
            yield _start(spec, verdicts[spec.name])
        if specs:
            yield self._health("health", specs, starting)

    def _admitted(
        self, specs: Sequence[ProcessSpec], groups: Sequence[Group], starting: Sequence[str]
    ) -> Iterator[Step]:
        """What an earlier run drained and did not get to admit; what others are to rely on."""
        drained = self.state.drained if self.state else {}
        left = tuple(
            s.name
            for s in specs
            if drained.get(s.name) == BY_UP and not any(s.name in g.cell for g in groups)
        )
        fresh = tuple(s.name for s in specs if s.name in starting) if groups else ()
        names = tuple(dict.fromkeys((*left, *fresh)))
        if not self._has_switch or not self._runs_router() or not names:
            return
        label = "+".join(names)
        if provable := self._provable(names, [s.name for s in self.deployment.processes]):
            yield _pairs(label, provable)
        if left:
            yield _admit(label, left, "an earlier run drained it and did not come so far")

    def _replaced(
        self, group: Group, verdicts: Mapping[str, _Verdict], gone: list[str]
    ) -> Iterator[Step]:
        """One group: nothing new, what runs ends, the new ones start and are proven."""
        names, label = listed(group.cell), group.label
        specs = [s for s in self.deployment.processes if s.name in group.names]
        drains = self._has_switch and self._runs_router()
        if drains:
            why = "requests that run there end as they began"
            what = f"send nothing new to {names}, and wait for what runs there"
            yield Step(f"drain-{label}", what, why, True, Drain(group.cell))
        yield from self._gone(self._in_the_way(gone, group.names))
        for spec in reversed(specs):
            if verdicts[spec.name].stop:
                yield _stop(spec.name, verdicts[spec.name].why)
        yield self._ports(f"ports-{label}", group.names)
        if drains and group.generation is not None:
            # Not earlier: until they are recorded as they are to be, they are of the old kind.
            what = f"let {names} work with each other only"
            why = "what they must have in common with others changes"
            yield Step(f"part-{label}", what, why, True, Part(group.cell, group.generation))
        for spec in specs:
            yield _start(spec, verdicts[spec.name])
        yield self._health(f"health-{label}", specs, group.names)
        if drains:
            every = [s.name for s in self.deployment.processes]
            others = every if group.generation is None else group.cell
            provable = self._provable(group.cell, others)
            if provable:
                yield _pairs(label, provable)
            why = "it is proven; the next may go"
            if not provable:
                why = "routers prove it when they are restarted and know where it is"
            yield _admit(label, group.cell, why)

    def _provable(self, names: Sequence[str], others: Collection[str]) -> tuple[str, ...]:
        """Of these engines, those that routers which run can prove with one of the others.

        They look for engines where those were when they were started.
        """
        known = {
            spec.name: spec
            for spec in self.deployment.processes
            if spec.role != "router"
            and (record := self.record(spec.name)) is not None
            and _places(record) == _places(spec)
        }
        return tuple(
            name
            for name in names
            if name in known
            and any(
                known[name].role != other.role and known[name].cell == other.cell
                for other in known.values()
                if other.name in others
            )
        )

    def _gone_names(self) -> list[str]:
        """What the configuration has no more."""
        wanted = {spec.name for spec in self.deployment.processes}
        return sorted(set(self.state.processes if self.state else ()) - wanted)

    def _in_the_way(self, gone: list[str], names: Sequence[str]) -> list[str]:
        """Take out of `gone` what has a port that one of these processes is to get."""
        places = {p for s in self.deployment.processes if s.name in names for p in _places(s)}
        records = self.state.processes if self.state else {}
        found = [name for name in gone if _places(records[name]) & places]
        gone[:] = [name for name in gone if name not in found]
        return found

    def _gone(self, names: Sequence[str]) -> Iterator[Step]:
        """End what the configuration has no more."""
        engines = tuple(n for n in names if n in self.facts.alive and not n.startswith("router"))
        if engines and self._has_switch and self._runs_router():
            what = f"send nothing new to {listed(engines)}, and wait for what runs there"
            why = "the configuration has it no more"
            yield Step(f"drain-{'+'.join(engines)}", what, why, True, Drain(engines))
        for name in names:
            yield _stop(name, "the configuration has it no more")

    def _routers(
        self, specs: Sequence[ProcessSpec], verdicts: Mapping[str, _Verdict]
    ) -> Iterator[Step]:
        """One after the other where they are replaced, so that another one answers."""
        replaced = [s for s in specs if verdicts[s.name].stop]
        rest = [s for s in specs if s not in replaced]
        starting = tuple(s.name for s in rest if verdicts[s.name].start)
        for spec in rest:
            yield _start(spec, verdicts[spec.name])
        if rest:
            yield self._health("router-health", rest, starting)
        for spec in replaced:
            yield _stop(spec.name, verdicts[spec.name].why)
            yield self._ports(f"ports-{spec.name}", (spec.name,))
            yield _start(spec, verdicts[spec.name])
            yield self._health(f"health-{spec.name}", [spec], (spec.name,))

    def _one_kind(self, groups: Sequence[Group]) -> Iterator[Step]:
        told = self.state.generations if self.state else {}
        if (told or any(g.generation for g in groups)) and self._has_switch:
            what = "let all engines work together again"
            yield Step("one-kind", what, "all are of one kind now", True, EndGenerations())

    @property
    def _has_switch(self) -> bool:
        return self.config.router.kind == "pdctl" and not self.no_drain

    @property
    def drains(self) -> bool:
        """Whether engines are drained before they end."""
        return self._has_switch or not self._runs_router()

    def _runs_router(self) -> bool:
        records = self.state.processes.values() if self.state else ()
        return any(r.role == "router" and r.name in self.facts.alive for r in records)

    def members(self, verdicts: Mapping[str, _Verdict]) -> list[Member]:
        """The engines as the rolling replacement sees them."""
        return [
            self._member(spec, verdicts[spec.name])
            for spec in self.deployment.processes
            if spec.role != "router"
        ]

    def _member(self, spec: ProcessSpec, verdict: _Verdict) -> Member:
        record = self.record(spec.name)
        drained = self.state.drained.get(spec.name, "") if self.state else ""
        return Member(
            name=spec.name,
            role=spec.role,
            cell=spec.cell,
            generation=self.state.generations.get(spec.name, "") if self.state else "",
            serves=spec.name in self.facts.healthy and not drained,
            replace=verdict.stop,
            start=verdict.start,
            held=drained not in ("", BY_UP),
            new_kind=(changed := record is not None and changes_kind(record, spec)),
            as_wanted=record is not None and not changed,
            places=_places(record) if record and spec.name in self.facts.alive else frozenset(),
            wants=_places(spec),
        )

    def _leftovers(self) -> Iterator[Step]:
        found = self.facts.leftovers
        if found:
            pids = ", ".join(str(each.ref.pid) for each in found)
            yield Step(
                "leftovers",
                f"end what an interrupted run left: pid {pids}",
                "they carry this deployment's mark, and no recorded process has them",
                True,
                EndLeftovers(tuple(each.ref for each in found)),
            )

    def _directories(self) -> Step:
        what = "make the deployment's folders"
        missing = self.facts.missing_directories if self.facts.known else ("all",)
        if not missing and self.deployment.directories:
            return _nothing("directories", what, "they are there")
        if not self.deployment.directories:
            return _nothing("directories", what, "it needs none")
        why = "logs, sockets and control files of this deployment, private to this user"
        return Step("directories", what, why, True, MakeDirectories())

    def _tasks(self, phase: str) -> Iterator[Step]:
        for task in self.facts.tasks:
            if task.phase != phase:
                continue
            if not task.todo:
                yield _nothing(task.id, task.what, task.done)
                continue
            why = "; ".join(f"{host}: {reason}" for host, reason in task.todo[:_SHOWN_DIFFERENCES])
            if (more := len(task.todo) - _SHOWN_DIFFERENCES) > 0:
                why += f"; and {more} more hosts"
            action = Prepare(task.id, tuple(host for host, _ in task.todo))
            yield Step(task.id, task.what, why, True, action)

    def _engine(self) -> Iterator[Step]:
        recipe = self.deployment.recipe
        if isinstance(self.config.target, ExternalTarget):
            yield _nothing("engine", "use the engines that run", "something else runs them")
            return
        if recipe is None:
            python = self.config.engine.python or "the hosts' own"
            yield _nothing("engine", f"use the vLLM of {python}", "`engine.install` is `existing`")
            return
        pending = self.facts.pending_install
        if not self.facts.known:
            pending = tuple(step.id for step in recipe.steps)
        if self.facts.damage:
            pending = tuple(step.id for step in recipe.steps)
        if not pending:
            why = f"`{recipe.layout.key}` is complete and unchanged"
            yield _nothing("engine", "install the engine", why)
            return
        for step in recipe.steps:
            if step.id not in pending:
                why = "an earlier run did it"
                yield _nothing(f"engine-{step.id}", step.what, why)
                continue
            reset = bool(self.facts.damage) and step is recipe.steps[0]
            why = f"the environment changed: {self.facts.damage}" if reset else step.why
            yield Step(f"engine-{step.id}", step.what, why, True, Install(step, reset))

    def _model(self) -> Step:
        step = self.deployment.model_step
        if step is None:
            model = self.config.model.id
            return _nothing("model", f"use the model {model}", self._model_source())
        if self.facts.known and not self.facts.model_pending:
            return _nothing("model", step.what, "an earlier run did it")
        return Step("model", step.what, step.why, True, Install(step))

    def _model_source(self) -> str:
        if isinstance(self.config.target, ExternalTarget):
            return "the engines have it"
        return "it is a path" if choices.is_path(self.config.model.id) else "the engines load it"

    def _files(self) -> Step:
        what = "write the plugin bundle and the deployment's files"
        paths = self.facts.changed_files
        why = f"{len(paths)} of {len(self.deployment.files)} are missing or differ"
        if not self.facts.known:
            paths = tuple(str(file.path) for file in self.deployment.files)
            why = "the engines and the plugin in them read these"
        if not self.deployment.files:
            return _nothing("files", what, "there are none")
        if not paths:
            return _nothing("files", what, "they are there, as rendered")
        return Step("files", what, why, True, WriteFiles(paths))

    def _ttl(self) -> Iterator[Step]:
        """Before anything starts: what starts has the configuration's own."""
        live = self.state.live_ttl if self.state else None
        if live is not None and not self._ttl_holds():
            now = format_duration(live.decoder_ttl)
            what = f"return the TTL to {format_duration(self.config.kv.decoder_ttl)}"
            why = f"`pdctl set-ttl` made it {now}, and the configuration does not say so"
            yield Step("ttl", what, why, True, ReturnTtl())

    def _ports(self, step_id: str, starting: tuple[str, ...]) -> Step:
        what = "check ports"
        if not starting:
            return _nothing(step_id, what, "nothing starts")
        auto = any(0 in (s.port, s.side_channel_port) for s in self.deployment.processes)
        why = "before anything starts, so that a taken port is told by its holder's name"
        what += " and choose free ones" if auto else ""
        return Step(step_id, what, why, False, ChoosePorts(starting))

    def _health(self, label: str, group: Sequence[ProcessSpec], starting: tuple[str, ...]) -> Step:
        waiting = tuple(
            s.name for s in group if s.name in starting or s.name not in self.facts.healthy
        )
        what = f"wait for {listed(waiting or [s.name for s in group])} to answer"
        if not waiting:
            return _nothing(label, what, "they do" if len(group) > 1 else "it does")
        router = group[0].role == "router"
        then = "clients come here" if router else "they are of use when they answer"
        return Step(label, what, then, False, WaitHealthy(waiting))

    def _proof(self, starting: tuple[str, ...]) -> Step:
        what = "prove with two turns that KV is reused"
        if not self.verify:
            return _nothing("verify", what, "`--no-verify` was given")
        if not starting and (reused := self._proven()) is not None:
            why = f"these very processes reused {reused} tokens when it was done"
            return _nothing("verify", what, why)
        return Step("verify", what, "a pair can be healthy and reuse nothing", False, Verify())

    def _proven(self) -> int | None:
        """Reused tokens of a proof that still holds: the same processes, and all answer."""
        if self.state is None or self.state.proof is None:
            return None
        healthy = all(spec.name in self.facts.healthy for spec in self.deployment.processes)
        records = self.state.processes
        now = (self.facts.now.get(name, records[name].ref) for name in sorted(records))
        same = self.state.proof.processes == tuple(ref for ref in now if ref is not None)
        return self.state.proof.reused_tokens if healthy and same else None


def _start(spec: ProcessSpec, verdict: _Verdict) -> Step:
    where = f"{spec.address}:{spec.port}" if spec.port else f"a free port of {spec.address}"
    what = f"start {spec.name} on {where}"
    if not verdict.start:
        return _nothing(spec.name, what, verdict.why)
    return Step(spec.name, what, verdict.why, True, Start(spec.name))


def _stop(name: str, why: str) -> Step:
    return Step(f"stop-{name}", f"end {name}", why, True, Stop(name))


def _pairs(label: str, names: tuple[str, ...]) -> Step:
    what = f"prove with two turns through {listed(names)} that KV goes both ways"
    why = "each router does it by itself before it sends requests there"
    return Step(f"pairs-{label}", what, why, False, ProvePairs(names))


def _admit(label: str, names: tuple[str, ...], why: str) -> Step:
    what = f"send requests to {listed(names)} again"
    return Step(f"admit-{label}", what, why, True, Admit(names))


def _places(process: ProcessSpec | ProcessRecord) -> frozenset[tuple[str, int]]:
    ports = (process.port, process.side_channel_port)
    return frozenset((process.host, port) for port in ports if port)


def _first_key(state: DeploymentState | None, engines: Iterable[ProcessSpec]) -> bool:
    """Whether engines that run are to ask for a key for the first time: routers come first then,
    since a key that nobody asks for does no harm."""
    records = state.processes if state else {}
    return any(
        KEY_ENV in spec.command.env and KEY_ENV not in records[spec.name].env
        for spec in engines
        if spec.name in records
    )


def _of_groups(
    groups: Iterable[Group], verdicts: Mapping[str, _Verdict], facts: Facts
) -> Iterator[str]:
    """What is replaced, why, and what that means for clients."""
    for group in groups:
        serving = [name for name in group.names if name in facts.healthy]
        if not serving:
            continue
        why = verdicts[serving[0]].why
        meanwhile = group.alone or "others serve meanwhile"
        yield f"this replaces {listed(serving)} ({why}): {meanwhile}"
    if any(group.generation is not None and group.alone for group in groups):
        yield (
            "an upgrade without an outage needs two cells, each with a prefill and a decode "
            "server: this one stops service until the new engines answer"
        )


def _of_moves(members: Iterable[Member], config: Config) -> Iterator[str]:
    """What it means that engines are to be where the routers do not look for them yet."""
    moving = [member for member in members if member.moves and member.serves]
    if not moving or isinstance(config.target, ExternalTarget):
        return
    for member in moving:
        there = ", ".join(f"{host} port {port}" for host, port in sorted(member.wants))
        yield f"{member.name} moves to {there}: it is not replaced engine by engine"
    limit = format_duration(config.target.start_timeout)
    yield (
        f"the routers send nothing to {listed([member.name for member in moving])} from the end of "
        "each until the routers are restarted, after all engines answer: as long as those load "
        f"(`target.start_timeout`: at most {limit}) and the routers to start"
    )


def _nothing(step_id: str, what: str, why: str) -> Step:
    return Step(step_id, what, why, False, None)


def _why_dead(record: ProcessRecord) -> str:
    if record.ref is None:
        return "an earlier run did not get to start it"
    return f"pid {record.ref.pid} is gone"


def _short(lines: tuple[str, ...]) -> str:
    more = len(lines) - _SHOWN_DIFFERENCES
    tail = f"; and {more} more" if more > 0 else ""
    return "; ".join(lines[:_SHOWN_DIFFERENCES]) + tail


def _consent(
    steps: Iterable[Step],
    facts: Facts,
    state: DeploymentState | None,
    deployment: Deployment,
    groups: Iterable[Group],
) -> Iterator[str]:
    actions = [step.action for step in steps]
    told = {name for group in groups for name in group.names}
    ended = [a.name for a in actions if isinstance(a, Stop)]
    serving = [name for name in ended if name in facts.healthy and name not in told]
    if serving:
        yield f"this ends {', '.join(serving)}, which serve{'s' * (len(serving) == 1)} now"
    if state is None and facts.leftovers:
        pids = ", ".join(str(each.ref.pid) for each in facts.leftovers)
        yield f"this ends pid {pids}: they carry this deployment's mark, but it has no state"
    if deployment.recipe and any(isinstance(a, Install) and a.reset for a in actions):
        key = deployment.recipe.layout.key
        yield f"this rebuilds the engine environment `{key}`, which other deployments may use"
