"""Bytes per token against published figures and what a real engine reported."""

from pathlib import Path
from typing import Any

import pytest

from pdctl.engine.kv_arithmetic import (
    UnknownModelError,
    gpu_kv_bytes,
    kv_model,
    reported_capacity,
)
from pdctl.engine.scripts import tiny_model

KIB, GIB = 1 << 10, 1 << 30


def gqa(layers: int, heads: int, kv: int | None, hidden: int, **more: Any) -> dict[str, Any]:
    config: dict[str, Any] = {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "hidden_size": hidden,
        "torch_dtype": "bfloat16",
    }
    return config | ({} if kv is None else {"num_key_value_heads": kv}) | more


DEEPSEEK_V3 = gqa(
    61, 128, 128, 7168, kv_lora_rank=512, qk_rope_head_dim=64, v_head_dim=128, head_dim=None
)
LLAMA_3_70B = gqa(80, 64, 8, 8192)
QWEN3_32B = gqa(64, 64, 8, 5120, head_dim=128)


@pytest.mark.parametrize(
    ("config", "published"),
    [
        # "the KV cache of a single token demands 800 KB": Kwon et al., SOSP 2023, section 3.
        (gqa(40, 40, None, 5120, torch_dtype="float16"), 800 * KIB),
        # "Insights into DeepSeek-V3", ISCA 2025, table 1: KV cache per token, BF16.
        (DEEPSEEK_V3, 70_272),
        (gqa(80, 64, 8, 8192), 327_680),
        (gqa(126, 128, 8, 16384), 516_096),
    ],
    ids=["OPT-13B", "DeepSeek-V3", "Qwen2.5-72B", "Llama-3.1-405B"],
)
def test_published_bytes_per_token(config: dict[str, Any], published: int) -> None:
    assert kv_model(config).bytes_per_token == published


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (gqa(32, 32, None, 4096), 128),
        (gqa(32, 32, 8, 4096), 32),
        (gqa(32, 32, 8, 4096, attn_layer_period=8, attn_layer_offset=4), 4),
    ],
    ids=["Llama-2-7B", "Mixtral", "Jamba"],
)
def test_published_gib_at_256k(config: dict[str, Any], published: int) -> None:
    """Jamba, arXiv 2403.19887, table 1: 16 bit, 256K tokens."""
    assert kv_model(config).sequence_bytes(256 * KIB) == published * GIB


def test_tensor_parallel_divides_heads_and_copies_what_cannot_be_divided() -> None:
    one, eight, sixteen = (kv_model(LLAMA_3_70B, tensor_parallel=tp) for tp in (1, 8, 16))
    assert eight.gpu_bytes_per_token == one.gpu_bytes_per_token // 8
    assert eight.bytes_per_token == one.bytes_per_token
    assert sixteen.gpu_bytes_per_token == eight.gpu_bytes_per_token
    assert sixteen.bytes_per_token == 2 * one.bytes_per_token
    latent = kv_model(DEEPSEEK_V3, tensor_parallel=8)
    assert latent.gpu_bytes_per_token == 70_272
    assert latent.bytes_per_token == 8 * 70_272
    with pytest.raises(UnknownModelError, match="8 KV heads cannot be divided among 3 GPUs"):
        kv_model(LLAMA_3_70B, tensor_parallel=3)


def test_dtypes() -> None:
    assert kv_model(QWEN3_32B).bytes_per_token == 256 * KIB
    assert kv_model(QWEN3_32B, kv_dtype="fp8_e4m3").bytes_per_token == 128 * KIB
    assert kv_model(QWEN3_32B, dtype="float32").bytes_per_token == 512 * KIB
    with pytest.raises(UnknownModelError, match="`int3`"):
        kv_model(QWEN3_32B, kv_dtype="int3")


def test_sparse_mla_has_an_index_beside_it() -> None:
    glm5 = gqa(78, 64, 64, 6144, kv_lora_rank=512, qk_rope_head_dim=64)
    glm5 |= {"index_topk": 2048, "index_head_dim": 128}
    assert kv_model(glm5).bytes_per_token == 78 * (576 * 2 + 132)
    assert kv_model(glm5, kv_dtype="fp8").bytes_per_token == 78 * (656 + 132)


def test_windows_do_not_grow() -> None:
    gpt_oss = gqa(36, 64, 8, 2880, head_dim=64, sliding_window=128)
    gpt_oss["layer_types"] = ["sliding_attention", "full_attention"] * 18
    model = kv_model(gpt_oss)
    assert model.bytes_per_token == 18 * 2 * 8 * 64 * 2
    assert model.sequence_bytes(100) == 36 * 2 * 8 * 64 * 2 * 100
    assert model.sequence_bytes(10_000) == 18 * 2048 * 10_000 + 18 * 2048 * 128
    mistral = kv_model(gqa(32, 32, 8, 4096, sliding_window=4096))
    assert mistral.bytes_per_token == 0
    assert mistral.sequence_bytes(100_000) == mistral.sequence_bytes(4096)
    with pytest.raises(UnknownModelError):
        mistral.tokens_in(GIB)
    assert mistral.tokens_in(GIB, length=4096) == GIB // (128 * KIB)


@pytest.mark.parametrize(
    ("more", "full", "windows"),
    [
        ({"sliding_window_pattern": 6, "sliding_window": 1024}, 2, 10),
        ({"model_type": "gemma2", "sliding_window": 4096}, 6, 6),
        ({"use_sliding_window": False, "sliding_window": 4096}, 12, 0),
        ({"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 5}, 5, 7),
        ({"sliding_window": None}, 12, 0),
        ({"num_kv_shared_layers": 4}, 8, 0),
    ],
)
def test_rules_for_windows(more: dict[str, Any], full: int, windows: int) -> None:
    model = kv_model(gqa(12, 16, 8, 2048, **more))
    counts = {each.kind: each.count for each in model.layers}
    assert (counts.get("full", 0), counts.get("window", 0)) == (full, windows)


def test_hybrids_keep_a_state_of_fixed_size() -> None:
    qwen3_next = gqa(48, 16, 2, 2048, head_dim=256, full_attention_interval=4)
    qwen3_next |= {
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    }
    model = kv_model(qwen3_next)
    assert model.bytes_per_token == 12 * 2 * 2 * 256 * 2
    state = ((2 * 2048 + 4096) * 3 + 4096 * 128) * 2
    assert model.sequence_bytes(1) == 36 * state + model.bytes_per_token
    nemotron = kv_model(gqa(4, 8, 2, 1024, hybrid_override_pattern="M-M*-"))
    assert {each.kind: each.count for each in nemotron.layers} == {"full": 1, "state": 2}
    assert "not known" in nemotron.notes[0]


def test_a_model_that_also_sees_is_its_writing_part() -> None:
    inner = gqa(64, 64, 8, 5120, head_dim=128)
    assert kv_model({"text_config": inner, "torch_dtype": "bfloat16"}).bytes_per_token == 256 * KIB


@pytest.mark.parametrize(
    ("config", "word"),
    [({}, "num_hidden_layers"), ({"num_hidden_layers": 2}, "num_attention_heads")],
)
def test_what_is_missing_is_named(config: dict[str, Any], word: str) -> None:
    with pytest.raises(UnknownModelError, match=word):
        kv_model(config)
    with pytest.raises(UnknownModelError, match="`wavelet`"):
        kv_model(gqa(1, 1, 1, 64, layer_types=["wavelet"]))


def test_blocks_are_whole() -> None:
    model = kv_model(QWEN3_32B)
    assert model.sequence_bytes(17, block=16) == model.sequence_bytes(32)


def test_the_real_engine_agrees() -> None:
    """A local pair with 1 GiB of KV cache: what vLLM 0.32.0 wrote into its log."""
    config = tiny_model.config()
    model = kv_model(config, dtype="float32")
    log = (Path(__file__).parents[1] / "data/logs/decode.log").read_text()
    said = next(filter(None, map(reported_capacity, log.splitlines())))
    assert said == model.tokens_in(GIB)


def test_memory_left_for_kv() -> None:
    """Qwen3-32B on eight GPUs of 141 GB."""
    left = gpu_kv_bytes(141 * 10**9, 65_500_000_000, tensor_parallel=8, other=4 * GIB)
    model = kv_model(QWEN3_32B, tensor_parallel=8)
    assert model.tokens_in(left) == pytest.approx(3.46e6, rel=0.02)
    assert gpu_kv_bytes(10, 100) == 0
