"""Models whose numbers are known without a network: those that were measured in public, and a few
that people run. Keys as in each model's `config.json`; bytes of weights are those of the
checkpoint's files, rounded."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class KnownModel:
    """What is known of a model.

    Attributes:
        config: the keys of its config.json that the KV cache depends on.
        weight_bytes: of the whole checkpoint; None: not known.
        curve: name of the published time to first token that fits it best.
    """

    config: Mapping[str, Any]
    weight_bytes: int | None
    curve: str | None = None


def _gqa(layers: int, heads: int, kv_heads: int, head_dim: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "dtype": "bfloat16",
    }


def _mla(layers: int, **more: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "dtype": "bfloat16",
    } | more


KNOWN_MODELS: dict[str, KnownModel] = {
    "Qwen/Qwen3-32B": KnownModel(_gqa(64, 64, 8, 128), 65_500_000_000, "Qwen3-32B"),
    "Qwen/Qwen3-8B": KnownModel(_gqa(36, 32, 8, 128), 16_400_000_000),
    "meta-llama/Llama-3.3-70B-Instruct": KnownModel(_gqa(80, 64, 8, 128), 141_100_000_000),
    "meta-llama/Llama-3.1-8B-Instruct": KnownModel(_gqa(32, 32, 8, 128), 16_100_000_000),
    "zai-org/GLM-5-FP8": KnownModel(
        _mla(78, index_topk=2048, index_head_dim=128), 756_000_000_000, "GLM-5-FP8"
    ),
    "deepseek-ai/DeepSeek-V3": KnownModel(_mla(61), 689_000_000_000, "GLM-5-FP8"),
}
