"""Facts of a configuration file: what it says, and what is wrong with it. Fit to be saved."""

from collections.abc import Mapping
from dataclasses import dataclass, field

STATE, KEY_FILES = "the recorded state", "the files of keys"
"""Stand for the key of problems that are beside the file rather than in it."""


@dataclass(frozen=True)
class ConfigProblem:
    """One thing that is wrong.

    Attributes:
        key: empty for the whole file.
        line: 0 where there is none.
        unknown: nobody knows such a key.
    """

    key: str
    message: str
    hint: str | None = None
    line: int = 0
    unknown: bool = False

    def __str__(self) -> str:
        place = f"line {self.line}, " if self.line else ""
        key = f"`{self.key}`: " if self.key not in ("", STATE, KEY_FILES) else ""
        return f"{place}{key}{self.message}" + (f" ({self.hint})" if self.hint else "")


@dataclass(frozen=True)
class RoleSettings:
    """What the configuration gives one role; None leaves it to the engine.

    Attributes:
        kv_role: as rendered, `kv_producer` or `kv_consumer`.
        prefix_caching: its own prefix cache.
        tensor_parallel: GPUs of one copy of the model.
    """

    kv_role: str
    prefix_caching: bool | None = None
    tensor_parallel: int = 1


@dataclass(frozen=True)
class Settings:
    """What a configuration without problems says, with what it leaves to pdctl decided.

    Attributes:
        target: kind of target.
        model: id or path.
        revision: of the model; None when it is not pinned.
        offline_model: nothing of it comes from the hub.
        vllm, nixl: versions, chosen or default; None for engines that something else runs.
        version_row: release of the version table that stands for it.
        version_known: it has a row of its own.
        streams_have_handles: that release puts handles into streamed answers by itself.
        plugin: pdctl's plugin is wanted in the engines.
        buffer_device: where the KV cache lives; None leaves it to an engine of the user's.
        backends: of NIXL.
        decoder_ttl, router_ttl, lease: seconds; None leaves the lease to the engine.
        safe_router_ttl: longest router TTL that is safe for `decoder_ttl`.
        router: `pdctl` or `vllm-example`.
        router_host: where it listens; `router_open` when that is not loopback and clients need no
            key.
        store: `memory`, or where routers share handles, without a password.
        reuse_share: of conversations.
    """

    target: str
    model: str
    prefill: RoleSettings
    decode: RoleSettings
    revision: str | None = None
    offline_model: bool = False
    dtype: str = "auto"
    block_size: int | None = None
    vllm: str | None = None
    nixl: str | None = None
    version_row: str | None = None
    version_known: bool = True
    streams_have_handles: bool | None = None
    plugin: bool = True
    buffer_device: str | None = None
    backends: tuple[str, ...] = ()
    bidirectional: bool = True
    threshold: int = 64
    decoder_ttl: float = 480.0
    router_ttl: float = 472.0
    safe_router_ttl: float = 472.0
    lease: float | None = None
    failure_policy: str = "fail"
    router: str = "pdctl"
    router_host: str = "127.0.0.1"
    router_open: bool = False
    replicas: int = 1
    store: str = "memory"
    reuse_share: float = 1.0


@dataclass(frozen=True)
class ConfigFacts:
    """A configuration file as it was found.

    Attributes:
        file: how messages name it.
        error: why it could not be read; None when it could.
        missing: nobody named a file, and there is none of the usual name.
        problems: everything that is wrong in it.
        notices: what is worth knowing although nothing is wrong, in sentences, by topic.
        settings: None when there are problems.
    """

    file: str
    error: str | None = None
    missing: bool = False
    problems: tuple[ConfigProblem, ...] = ()
    notices: Mapping[str, str] = field(default_factory=dict)
    settings: Settings | None = None
