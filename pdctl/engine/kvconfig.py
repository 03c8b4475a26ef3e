"""The `--kv-transfer-config` of one engine: only keys that the chosen vLLM reads (FACTS T8)."""

import json
from typing import Any

from pdctl.config.model import Config
from pdctl.engine import choices
from pdctl.engine.choices import EngineRole

KV_ROLES: dict[EngineRole, str] = {"prefill": "kv_producer", "decode": "kv_consumer"}
"""`kv_both` is deprecated from about 0.23 on."""


def kv_transfer_config(config: Config, role: EngineRole, engine_id: str | None) -> dict[str, Any]:
    """The dictionary, equal on both roles but for `kv_role` and `engine_id`.

    Args:
        config: a configuration without problems.
        role: which side.
        engine_id: new at every start; None leaves it to vLLM, which then makes one itself.

    Raises:
        ValueError: when vLLM is older than the version table.
    """
    known = choices.traits_of(config)
    result: dict[str, Any] = {"kv_connector": "NixlConnector", "kv_role": KV_ROLES[role]}
    if engine_id is not None:
        result["engine_id"] = engine_id
    device = choices.buffer_device(config)
    if device is not None:
        result["kv_buffer_device"] = device
    result["kv_load_failure_policy"] = config.kv.load_failure_policy
    wanted = _extra(config)
    result["kv_connector_extra_config"] = {
        key: value for key, value in wanted.items() if key in known.kv_keys.value
    }
    return result


def as_argument(kv_config: dict[str, Any]) -> str:
    """The JSON text of the argument."""
    return json.dumps(kv_config, separators=(",", ":"), ensure_ascii=False)


def _extra(config: Config) -> dict[str, Any]:
    extra: dict[str, Any] = {
        "backends": list(choices.backends(config)),
        "bidirectional_kv_xfer": config.kv.bidirectional,
        "kv_recompute_threshold": config.kv.recompute_threshold,
        "decoder_kv_blocks_ttl": _number(config.kv.decoder_ttl),
    }
    if config.kv.lease_duration is not None:
        extra["kv_lease_duration"] = _number(config.kv.lease_duration)
    return extra


def _number(seconds: float) -> int | float:
    return int(seconds) if seconds == int(seconds) else seconds
