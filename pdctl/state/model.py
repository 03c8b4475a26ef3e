"""What pdctl remembers of a deployment, as values; `store` keeps them in a file.

Nothing here is secret: commands are kept as they are shown, with secrets masked.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from pdctl.base.process import ProcessRef, ProcessSpec, RoleName, Supervision, url_of

_T = TypeVar("_T")

SCHEMA_VERSION = 1
"""Raised when an older pdctl could no longer read what this one writes."""

Phase = Literal["starting", "running", "stopping"]
"""`starting` from the first change of `up` to its end; `stopping` from the first of `down`."""


@dataclass(frozen=True)
class ProcessRecord:
    """One process: as it was meant, and, once started, what it became.

    Attributes:
        argv, env, cwd: its command as shown. Compared with a new rendering, not run.
        log: file that its output is appended to.
        log_offset: size of that file when it was started.
        engine_id: of this start; None for the router, and where what keeps it running makes one
            at every start.
        supervision: what starts it again when it dies.
        keeper: which edition of that it was started by (`render.keeper`); empty where nothing
            does, and for what an older pdctl started.
        ref: None until it is started, or when it was stopped.
        started_at, healthy_at: wall clock, seconds since the epoch.
    """

    name: str
    role: RoleName
    index: int
    host: str
    address: str
    port: int
    side_channel_port: int | None
    health_path: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None
    log: str
    engine_id: str | None = None
    log_offset: int = 0
    ref: ProcessRef | None = None
    started_at: float | None = None
    healthy_at: float | None = None
    supervision: Supervision = "none"
    keeper: str = ""

    @property
    def url(self) -> str:
        """Base URL of its HTTP port."""
        return url_of(self.address, self.port)


def record_of(
    spec: ProcessSpec, *, log: str, engine_id: str | None, supervision: Supervision = "none"
) -> ProcessRecord:
    """A process that is about to start."""
    return ProcessRecord(
        name=spec.name,
        role=spec.role,
        index=spec.index,
        host=spec.host,
        address=spec.address,
        port=spec.port,
        side_channel_port=spec.side_channel_port,
        health_path=spec.health_path,
        argv=tuple(spec.command.masked_argv()),
        env=spec.command.masked_environ(),
        cwd=spec.command.cwd,
        log=log,
        engine_id=engine_id,
        supervision=supervision,
    )


@dataclass(frozen=True)
class Proof:
    """The last two-turn proof that succeeded, and exactly which processes it was about.

    Attributes:
        processes: in order of their names; never a supervisor, but what it had started.
    """

    at: float
    reused_tokens: int
    processes: tuple[ProcessRef, ...]


@dataclass(frozen=True)
class Intervals:
    """The TTLs in force, seconds."""

    decoder_ttl: float
    router_ttl: float


@dataclass(frozen=True)
class DeploymentState:
    """Everything `up`, `down` and `status` must know without the configuration file.

    Attributes:
        config_file: absolute path of the file of the last `up`.
        config_digest: of its content as it was then.
        target: kind of target, such as `local`.
        stop_timeout: seconds a process may take to end.
        directories: made for this deployment; `down` removes them, but for the logs.
        proof: None until the two-turn proof succeeded.
        live_ttl: TTLs that were set while it ran; None when those of the configuration hold.
        drained: by engine, why the routers send it nothing new.
        generations: by engine, of those that were replaced while others still are to be.
    """

    name: str
    target: str
    phase: Phase
    pdctl_version: str
    config_file: str
    config_digest: str
    created_at: float
    stop_timeout: float
    kv: Intervals
    processes: Mapping[str, ProcessRecord] = field(default_factory=dict)
    directories: tuple[str, ...] = ()
    proof: Proof | None = None
    live_ttl: Intervals | None = None
    drained: Mapping[str, str] = field(default_factory=dict)
    generations: Mapping[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def with_process(self, record: ProcessRecord) -> "DeploymentState":
        """The same with one process added or replaced."""
        return replace(self, processes={**self.processes, record.name: record})

    def without_process(self, name: str) -> "DeploymentState":
        """The same without one process."""
        return replace(self, processes=_without(self.processes, name))

    def with_drained(self, names: Iterable[str], why: str) -> "DeploymentState":
        """The same with engines drained, for a reason; empty for no longer."""
        rest = {key: value for key, value in self.drained.items() if key not in set(names)}
        return replace(self, drained=rest | (dict.fromkeys(names, why) if why else {}))

    def with_generation(self, names: Iterable[str], generation: str) -> "DeploymentState":
        """The same with engines of a generation; empty for that of all others."""
        rest = {key: value for key, value in self.generations.items() if key not in set(names)}
        new = dict.fromkeys(names, generation) if generation else {}
        return replace(self, generations=rest | new)

    @property
    def ttl(self) -> Intervals:
        """The TTLs in force."""
        return self.live_ttl or self.kv

    def of_role(self, role: RoleName) -> list[ProcessRecord]:
        """The processes of one role, in order."""
        records = [record for record in self.processes.values() if record.role == role]
        return sorted(records, key=lambda record: record.index)

    def refs(self) -> tuple[ProcessRef, ...]:
        """All processes that were started, in order of their names."""
        found = (self.processes[name].ref for name in sorted(self.processes))
        return tuple(ref for ref in found if ref is not None)


def _without(values: Mapping[str, _T], name: str) -> dict[str, _T]:
    return {key: value for key, value in values.items() if key != name}


def merged(old: Iterable[str], new: Iterable[str]) -> tuple[str, ...]:
    """Both, in order, each once."""
    return tuple(dict.fromkeys((*old, *new)))
