"""Configurations for tests, written as people write them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pdctl.base.problems import ConfigError, Problem
from pdctl.config.load import loads
from pdctl.config.model import Config
from pdctl.engine.validate import problems

LOCAL: dict[str, Any] = {
    "name": "local-cpu",
    "model": {"id": "pdctl/tiny-random", "dtype": "float32", "max_model_len": 8192},
    "prefill": {"max_num_seqs": 8},
    "decode": {"max_num_seqs": 8},
    "engine": {"install": "cpu"},
    "target": {"kind": "local"},
}
P5EN: dict[str, Any] = {
    "name": "qwen",
    "model": {
        "id": "Qwen/Qwen3-32B",
        "revision": "abc123",
        "served_name": "Qwen",
        "dtype": "bfloat16",
        "tensor_parallel_size": 8,
        "max_model_len": 32768,
    },
    "prefill": {"max_num_seqs": 8, "prefix_caching": False},
    "decode": {"max_num_seqs": 64},
    "engine": {"vllm": "0.33.0", "nixl": "1.5.0"},
    "target": {
        "kind": "ssh",
        "hosts": {
            "prefill": [{"address": "p.example", "private_address": "10.0.0.1"}],
            "decode": [{"address": "d.example", "private_address": "10.0.0.2"}],
        },
    },
    "kv": {"backends": ["LIBFABRIC"]},
}


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with some keys changed, section by section."""
    result = dict(base)
    for key, value in change.items():
        inner = result.get(key)
        both = isinstance(inner, dict) and isinstance(value, dict)
        result[key] = merged(inner, value) if both else value
    return result


def config(base: Mapping[str, Any] = LOCAL, **change: Any) -> Config:
    """A configuration that is valid as far as no knowledge of vLLM is needed."""
    text = yaml.safe_dump(merged(base, change))
    return loads(text.encode(), file="pd.yaml", base=Path("/srv")).config


def found(base: Mapping[str, Any] = LOCAL, **change: Any) -> list[tuple[str, str]]:
    """What the engine's rules find: key and message."""
    return [(problem.key, problem.message) for problem in problems(config(base, **change))]


def in_file(text: str) -> list[Problem]:
    """All problems of a file, as a user would see them, placed."""
    try:
        loads(text.encode(), file="pd.yaml", base=Path("/srv"), checks=[problems])
    except ConfigError as error:
        return list(error.problems)
    return []
