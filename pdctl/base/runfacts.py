"""Facts of what runs on the hosts: processes, their logs, the model's files. Fit to be saved."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pdctl.base.fix import Severity
from pdctl.base.process import RoleName

KV_FLAG = "--kv-transfer-config"
_TOP_LEVEL = ("kv_role", "kv_buffer_device", "kv_load_failure_policy")


@dataclass(frozen=True)
class StartLine:
    """vLLM's line of its arguments, written at every start.

    Attributes:
        ts: seconds since the epoch; None when the line has no date.
        engine_id: as given; None when the engine makes one itself.
        options: of the connector, by key, values as text.
    """

    ts: float | None
    engine_id: str | None
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ProcessFacts:
    """One process of a deployment as its host shows it.

    Attributes:
        alive: it is the very process that was recorded; None when nobody looked.
        pid: of the process now, else as recorded.
        started_at: seconds since the epoch, as recorded.
        running: its arguments by option, JSON values by their own keys, from `/proc/PID/cmdline`;
            empty when they could not be read.
        wanted: the same as the configuration renders them now.
        env, wanted_env: variables that pdctl set, without secrets.
        engine_id: of this start, as recorded.
        restarts: how often it was started again since `up` started it.
        ttl_file: seconds that the plugin's control file asks for; None when it asks for nothing.
        levers: state of each of the plugin's levers, such as `applied`; None without a plugin.
        starts: what the log says of starts, the oldest first.
        error: why the host could not say.
    """

    name: str
    role: RoleName
    host: str
    alive: bool | None = None
    pid: int | None = None
    started_at: float | None = None
    running: Mapping[str, str] = field(default_factory=dict)
    wanted: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    wanted_env: Mapping[str, str] = field(default_factory=dict)
    engine_id: str | None = None
    restarts: int = 0
    ttl_file: float | None = None
    levers: Mapping[str, str] | None = None
    starts: tuple[StartLine, ...] = ()
    error: str | None = None

    def connector(self, key: str) -> str | None:
        """A field of `--kv-transfer-config` in force, or a key of its extra configuration.

        From the process's own arguments, else from the last start in its log. None: not given,
        or not known (`knows_connector`).
        """
        for path in (f"kv_connector_extra_config.{key}", key):
            if (value := self.running.get(f"{KV_FLAG} {path}")) is not None:
                return value
        if self.running or not self.starts:
            return None
        return self.starts[-1].options.get(key)

    @property
    def knows_connector(self) -> bool:
        """Whether anything is known of how the connector was set up."""
        if self.running:
            return any(option.startswith(KV_FLAG) for option in self.running)
        return bool(self.starts)

    @property
    def extra_keys(self) -> frozenset[str]:
        """Keys of `kv_connector_extra_config` that it was started with."""
        path = f"{KV_FLAG} kv_connector_extra_config."
        found = [each.removeprefix(path) for each in self.running if each.startswith(path)]
        if not self.running and self.starts:
            found = [key for key in self.starts[-1].options if not key.startswith(_TOP_LEVEL)]
        return frozenset(key.partition(".")[0] for key in found)

    @property
    def bidirectional(self) -> bool | None:
        """Whether reuse is on in it; None when that is not known."""
        if not self.knows_connector:
            return None
        return (self.connector("bidirectional_kv_xfer") or "false").lower() == "true"

    def lever(self, name: str) -> bool | None:
        """Whether what the lever brings is there; None when nobody said."""
        if self.levers is None or name not in self.levers:
            return None
        return self.levers[name] in ("applied", "not-needed")


@dataclass(frozen=True)
class SideChannel:
    """Whether an engine's side channel answers to a peer.

    Attributes:
        engine: whose it is, such as `decode-0`.
        source: the host that asked.
        ok: it greeted as ZeroMQ does, which NIXL's handshake speaks.
        error: what was seen instead.
    """

    engine: str
    source: str
    address: str
    port: int
    ok: bool
    error: str = ""


@dataclass(frozen=True)
class WeightFacts:
    """The model's files on one host.

    Attributes:
        path: of the folder that was looked at.
        digest: over what `parts` counts; equal files give the same on every host.
        parts: file names with size and digest, so that a difference can be named.
        config: of the model's config.json, the keys that concern reuse.
        error: why there is nothing to compare.
    """

    host: str
    path: str
    parts: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class LogFinding:
    """One signature as it was found in the logs.

    Attributes:
        follows: id of the signature whose consequence it is; None for a cause.
        first, last: seconds since the epoch.
        sources: how often, by process.
        line: the first such line, cut.
    """

    id: str
    title: str
    severity: Severity
    count: int
    first: float | None
    last: float | None
    sources: Mapping[str, int]
    line: str
    why: Mapping[str, int] = field(default_factory=dict)
    follows: str | None = None


@dataclass(frozen=True)
class LogFacts:
    """What the logs say since the processes were started, or since `since`.

    Attributes:
        since: seconds since the epoch; what is older was not counted.
        bytes_read: by process.
        truncated: processes of whose logs only the end was read.
        hit, miss: turns.
        misses: by kind.
        signatures: how often, good ones too.
        findings: worst first, consequences of others behind them.
        backends: transports that NIXL said it had loaded, by process.
        rails: network devices that NIXL said it uses, by process.
        problems: why a log could not be read, by process.
    """

    since: float | None = None
    bytes_read: Mapping[str, int] = field(default_factory=dict)
    truncated: tuple[str, ...] = ()
    hit: int = 0
    miss: int = 0
    misses: Mapping[str, int] = field(default_factory=dict)
    signatures: Mapping[str, int] = field(default_factory=dict)
    findings: tuple[LogFinding, ...] = ()
    backends: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rails: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)

    def of(self, *ids: str) -> tuple[LogFinding, ...]:
        """The findings of these signatures."""
        return tuple(finding for finding in self.findings if finding.id in ids)


@dataclass(frozen=True)
class StoreFacts:
    """Where routers share handles; `url` without a password, `error` None when it answers."""

    url: str
    error: str | None = None
