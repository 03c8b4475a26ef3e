"""Configuration, rendered deployment, recorded state and facts to an ordered plan. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pdctl.base.durations import format_duration
from pdctl.base.process import ProcessSpec
from pdctl.base.words import listed
from pdctl.config.model import Config, Ec2Target, ExternalTarget
from pdctl.engine import choices
from pdctl.plan.differences import differences
from pdctl.plan.facts import Facts
from pdctl.plan.model import (
    ChoosePorts,
    EndLeftovers,
    Install,
    Instance,
    MakeDirectories,
    Plan,
    ReturnTtl,
    Start,
    Step,
    Stop,
    Verify,
    WaitHealthy,
    WriteFiles,
)
from pdctl.render.model import Deployment
from pdctl.state.model import DeploymentState, ProcessRecord

_SHOWN_DIFFERENCES = 4


def build(
    config: Config,
    deployment: Deployment,
    facts: Facts,
    state: DeploymentState | None,
    *,
    verify: bool = True,
) -> Plan:
    """What `up` would do, in order.

    Args:
        deployment: rendered with what is kept of earlier choices (`plan.chosen.kept`).
        facts: the world as it is.
        state: what was recorded, or None.
        verify: whether the two-turn proof is wanted.
    """
    work = _Work(config, deployment, facts, state, verify)
    verdicts = {spec.name: work.verdict(spec) for spec in deployment.processes}
    steps = tuple(work.steps(verdicts))
    return Plan(
        name=config.name,
        steps=steps,
        unfit=facts.unfit,
        conflicts=tuple(str(held) for held in facts.held_ports if verdicts[held.process].start),
        consent=tuple(_consent(steps, facts, state, deployment)),
        instances=tuple(_instances(config)),
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

    def record(self, name: str) -> ProcessRecord | None:
        return self.state.processes.get(name) if self.state else None

    # --- one process --------------------------------------------------------------------

    def verdict(self, spec: ProcessSpec) -> _Verdict:
        record = self.record(spec.name)
        if record is None:
            return _Verdict(True, False, "it was never started")
        if spec.name not in self.facts.alive:
            return _Verdict(True, False, _why_dead(record))
        if drift := (*differences(record, spec), *self._kept_otherwise(record)):
            return _Verdict(True, True, f"the configuration changed: {_short(drift)}")
        now = self.facts.now.get(spec.name, record.ref)
        pid = now.pid if now else 0
        if spec.name in self.facts.healthy:
            return _Verdict(False, False, f"pid {pid} runs as configured and answers")
        return _Verdict(False, False, f"pid {pid} runs as configured; it does not answer yet")

    def _kept_otherwise(self, record: ProcessRecord) -> Iterator[str]:
        """`auto` leaves alone what is kept running at all."""
        wanted = self.facts.supervision.get(record.host, "none")
        kept = "none" not in (record.supervision, wanted)
        auto = getattr(self.config.target, "supervision", "auto") == "auto"
        if record.supervision != wanted and not (auto and kept):
            yield f"supervision: {record.supervision} → {wanted}"

    # --- the steps ----------------------------------------------------------------------

    def steps(self, verdicts: dict[str, _Verdict]) -> Iterator[Step]:
        starting = tuple(name for name, verdict in verdicts.items() if verdict.start)
        yield from self._leftovers()
        yield self._directories()
        yield from self._engine()
        yield self._model()
        yield self._files()
        yield from self._ttl()
        yield from self._stops(verdicts)
        yield self._ports(starting)
        engines = tuple(s for s in self.deployment.processes if s.role != "router")
        routers = tuple(s for s in self.deployment.processes if s.role == "router")
        for group, label in ((engines, "health"), (routers, "router-health")):
            for spec in group:
                yield _start(spec, verdicts[spec.name])
            if group:
                yield self._health(label, group, starting)
        yield self._proof(starting)

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
        if live is not None:
            now = format_duration(live.decoder_ttl)
            what = f"return the TTL to {format_duration(self.config.kv.decoder_ttl)}"
            why = f"`pdctl set-ttl` made it {now}, and the configuration does not say so"
            yield Step("ttl", what, why, True, ReturnTtl())

    def _stops(self, verdicts: dict[str, _Verdict]) -> Iterator[Step]:
        """Routers first, so that no request meets an engine that ends."""
        for spec in reversed(self.deployment.processes):
            if verdicts[spec.name].stop:
                why = verdicts[spec.name].why
                yield Step(f"stop-{spec.name}", f"end {spec.name}", why, True, Stop(spec.name))
        for name in sorted(self.state.processes if self.state else ()):
            if name not in verdicts:
                why = "the configuration has it no more"
                yield Step(f"stop-{name}", f"end {name}", why, True, Stop(name))

    def _ports(self, starting: tuple[str, ...]) -> Step:
        what = "check ports"
        if not starting:
            return _nothing("ports", what, "nothing starts")
        auto = any(0 in (s.port, s.side_channel_port) for s in self.deployment.processes)
        why = "before anything starts, so that a taken port is told by its holder's name"
        what += " and choose free ones" if auto else ""
        return Step("ports", what, why, False, ChoosePorts(starting))

    def _health(
        self, label: str, group: tuple[ProcessSpec, ...], starting: tuple[str, ...]
    ) -> Step:
        waiting = tuple(
            s.name for s in group if s.name in starting or s.name not in self.facts.healthy
        )
        what = f"wait for {listed(waiting or [s.name for s in group])} to answer"
        if not waiting:
            return _nothing(label, what, "they do" if len(group) > 1 else "it does")
        then = "the router starts when they answer" if label == "health" else "clients come here"
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
    steps: Iterable[Step], facts: Facts, state: DeploymentState | None, deployment: Deployment
) -> Iterator[str]:
    actions = [step.action for step in steps]
    serving = [a.name for a in actions if isinstance(a, Stop) and a.name in facts.healthy]
    if serving:
        yield f"this ends {', '.join(serving)}, which serve{'s' * (len(serving) == 1)} now"
    if state is None and facts.leftovers:
        pids = ", ".join(str(each.ref.pid) for each in facts.leftovers)
        yield f"this ends pid {pids}: they carry this deployment's mark, but it has no state"
    if deployment.recipe and any(isinstance(a, Install) and a.reset for a in actions):
        key = deployment.recipe.layout.key
        yield f"this rebuilds the engine environment `{key}`, which other deployments may use"


def _instances(config: Config) -> Iterator[Instance]:
    target = config.target
    if not isinstance(target, Ec2Target):
        return
    for role, wanted in (
        ("prefill", target.prefill),
        ("decode", target.decode),
        ("router", target.router),
    ):
        for _ in range(wanted.count if wanted else 0):
            kind = (wanted.instance_type if wanted else None) or target.instance_type
            zone = target.zones[0] if len(target.zones) == 1 else None
            yield Instance(role, kind, zone)
