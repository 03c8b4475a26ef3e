"""A configuration as facts: what it says, or what is wrong with it."""

from dataclasses import replace
from pathlib import Path

from pdctl.base.configfacts import ConfigFacts, ConfigProblem, RoleSettings, Settings
from pdctl.base.errors import PdctlError
from pdctl.base.problems import ConfigError, Problem
from pdctl.base.redact import redacted
from pdctl.config.checks import is_loopback
from pdctl.config.load import Loaded, display
from pdctl.config.model import Config, ExternalTarget
from pdctl.engine import choices, versions
from pdctl.engine.choices import EngineRole
from pdctl.engine.kvconfig import KV_ROLES
from pdctl.engine.ttl import safe_router_ttl
from pdctl.engine.validate import notices_by_topic


def facts_of(loaded: Loaded) -> ConfigFacts:
    """What a configuration without problems says."""
    return ConfigFacts(
        file=loaded.file,
        notices=notices_by_topic(loaded.config),
        settings=settings_of(loaded.config),
    )


def facts_of_error(path: Path, error: PdctlError) -> ConfigFacts:
    """A file that could not be used, and everything that is wrong in it."""
    if not isinstance(error, ConfigError):
        return ConfigFacts(file=display(path), error=error.message)
    return ConfigFacts(file=error.file, problems=tuple(map(_problem, error.problems)))


def _problem(problem: Problem) -> ConfigProblem:
    # Variables and keys without an effect are known keys in the wrong place.
    known = "env" in problem.loc or problem.message.startswith("has no effect")
    return ConfigProblem(
        problem.key,
        redacted(problem.message),
        problem.hint,
        problem.line,
        unknown=problem.on_key and not known,
    )


def settings_of(config: Config) -> Settings:
    """What it says, with what it leaves to pdctl decided."""
    router, kv = config.router, config.kv
    settings = Settings(
        target=config.target.kind,
        model=config.model.id,
        prefill=_role(config, "prefill"),
        decode=_role(config, "decode"),
        revision=config.model.revision,
        offline_model=choices.is_offline(config),
        dtype=config.model.dtype,
        block_size=config.model.block_size,
        plugin=config.engine.plugin != "off",
        buffer_device=choices.buffer_device(config),
        backends=choices.backends(config),
        bidirectional=kv.bidirectional,
        threshold=kv.recompute_threshold,
        decoder_ttl=kv.decoder_ttl,
        router_ttl=choices.router_ttl(config),
        safe_router_ttl=safe_router_ttl(kv.decoder_ttl),
        lease=kv.lease_duration,
        failure_policy=kv.load_failure_policy,
        router=router.kind,
        router_host=router.host,
        router_open=not (is_loopback(router.host) or router.api_keys_file),
        replicas=router.replicas,
        store=redacted(router.store),
        reuse_share=router.reuse_share,
    )
    if isinstance(config.target, ExternalTarget):
        return settings  # nothing is known of engines that something else runs
    vllm = choices.vllm_version(config)
    row = versions.traits(vllm)
    return replace(
        settings,
        vllm=vllm,
        nixl=choices.nixl_version(config),
        version_row=row.row,
        version_known=row.exact,
        streams_have_handles=row.streaming_handles.value,
    )


def _role(config: Config, role: EngineRole) -> RoleSettings:
    return RoleSettings(
        kv_role=KV_ROLES[role],
        prefix_caching=choices.role_of(config, role).prefix_caching,
        tensor_parallel=choices.tensor_parallel_size(config, role),
    )
