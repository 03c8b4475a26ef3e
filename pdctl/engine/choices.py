"""What a configuration leaves to pdctl, decided in one place: versions, backends, devices, TTL."""

import hashlib
from pathlib import PurePosixPath
from typing import Literal

from pdctl.config.model import (
    SMALL_MODEL,
    TINY_MODEL,
    Config,
    Ec2Target,
    LocalTarget,
    Role,
    SshTarget,
)
from pdctl.engine import example, versions
from pdctl.engine.ttl import safe_router_ttl
from pdctl.engine.versions import Backend, Traits

_MORE_FROM_HUB = frozenset({"--tokenizer", "--hf-config-path", "--lora-modules"})

EngineRole = Literal["prefill", "decode"]
ENGINE_ROLES: tuple[EngineRole, ...] = ("prefill", "decode")


def vllm_version(config: Config) -> str:
    """The vLLM version, chosen or default."""
    return config.engine.vllm or versions.default_vllm(config.engine.install)


def nixl_version(config: Config) -> str:
    """The NIXL version, chosen or the one that goes with vLLM."""
    return config.engine.nixl or versions.default_nixl(config.engine.install, vllm_version(config))


def traits_of(config: Config) -> Traits:
    """What the chosen vLLM can do.

    Raises:
        ValueError: when it is older than the table.
    """
    return versions.traits(vllm_version(config))


def backends(config: Config) -> tuple[Backend, ...]:
    """NIXL backends: LIBFABRIC on ec2, UCX elsewhere, unless the configuration says otherwise."""
    if config.kv.backends:
        return tuple(config.kv.backends)
    return ("LIBFABRIC",) if isinstance(config.target, Ec2Target) else ("UCX",)


def buffer_device(config: Config) -> Literal["cuda", "cpu"] | None:
    """Where the KV cache lives; None leaves it to an engine of the user's own."""
    if config.kv.buffer_device:
        return config.kv.buffer_device
    return {"cpu": "cpu", "pip": "cuda", "existing": None}[config.engine.install]


def on_cpu(config: Config) -> bool:
    """Whether the engines compute on the CPU."""
    return buffer_device(config) == "cpu"


def is_local(config: Config) -> bool:
    """Whether both engines share this machine."""
    return isinstance(config.target, LocalTarget)


def role_of(config: Config, role: EngineRole) -> Role:
    """What one role has of its own."""
    return config.prefill if role == "prefill" else config.decode


def tensor_parallel_size(config: Config, role: EngineRole) -> int:
    """GPUs of one engine copy."""
    return role_of(config, role).tensor_parallel_size or config.model.tensor_parallel_size


def served_name(config: Config) -> str:
    """The model name that clients use."""
    return config.model.served_name or config.model.id


def router_ttl(config: Config) -> float:
    """The router's TTL in seconds, chosen or the longest safe one; the example proxy's own."""
    if config.router.kind == "vllm-example":
        return example.TTL_S
    if config.router.ttl is not None:
        return config.router.ttl
    return safe_router_ttl(config.kv.decoder_ttl)


def asks_key(config: Config) -> bool:
    """Whether the engines ask for a key: they trust whoever reaches them with the KV of others.

    On this machine nobody but its users reaches them.
    """
    far = config.target.kind in ("ssh", "ec2")
    return far or config.engine.api_key_file is not None


def is_built_in(config: Config) -> bool:
    """Whether the model is one that pdctl makes."""
    return config.model.id in (TINY_MODEL, SMALL_MODEL)


def is_path(model_id: str) -> bool:
    """Whether a model id is a path rather than a name on the hub."""
    return model_id.startswith(("/", "./", "../", "~"))


def is_offline(config: Config) -> bool:
    """Whether the model needs nothing from the hub."""
    built_in = is_built_in(config)
    return built_in or is_path(config.model.id) or model_source(config) is not None


def model_source(config: Config) -> str | None:
    """An S3 prefix with the model's files."""
    return config.target.model_source if isinstance(config.target, SshTarget | Ec2Target) else None


def source_path(config: Config, hub: PurePosixPath) -> PurePosixPath | None:
    """Folder on the hosts of a model that comes from such a prefix."""
    source = model_source(config)
    if source is None:
        return None
    digest = hashlib.sha256(f"{source}@{config.model.revision}".encode()).hexdigest()[:8]
    return hub / "s3" / f"{source.rstrip('/').rpartition('/')[2]}-{digest}"


def is_fetched(config: Config) -> bool:
    """Whether pdctl downloads all that the engine would ask the hub for."""
    if not isinstance(config.target, SshTarget | Ec2Target) or is_offline(config):
        return False
    more = [*config.model.extra_args, *config.prefill.extra_args, *config.decode.extra_args]
    speculative = config.model.speculative or {}
    return "model" not in speculative and not any(
        word.partition("=")[0] in _MORE_FROM_HUB for word in map(str, more)
    )
