"""How much memory the KV cache of a model takes, from its `config.json`.

What is counted is what vLLM allocates (`v1/kv_cache_interface.py`, 0.32): for each token and layer
a key and a value of every KV head, or one latent vector where attention is MLA, on each GPU. KV
heads are divided among the GPUs of a tensor parallel group, at least one on each; a latent vector
is on all of them. Layers with a window keep no more than the window, and Mamba or linear layers one
state of fixed size whatever the length.

Checked against published figures in tests/engine/test_kv_arithmetic.py: OPT-13B (vLLM, SOSP 2023,
arXiv 2309.06180, section 3), DeepSeek-V3, Qwen2.5-72B and Llama-3.1-405B ("Insights into
DeepSeek-V3", arXiv 2505.09343, table 1), Llama-2-7B, Mixtral and Jamba (arXiv 2403.19887, table 1),
and against what a real engine reports for pdctl's own small model.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["full", "window", "state"]
Config = Mapping[str, Any]

_SIZES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2, "fp8": 1, "int8": 1}
_KINDS: dict[str, Kind] = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "window",
    "chunked_attention": "window",
    "linear_attention": "state",
    "mamba": "state",
    "mamba2": "state",
    "conv": "state",
    "recurrent": "state",
}
_SPARSE_FP8 = 656
"""Bytes of a latent vector as sparse MLA keeps it in fp8: 512 values, 4 scales, and 64 values of
the position in bfloat16 (`fp8_ds_mla`)."""


class UnknownModelError(ValueError):
    """The configuration does not say what is needed."""


@dataclass(frozen=True)
class Layers:
    """Layers of one kind.

    Attributes:
        kind: `full` grows with every token, `window` up to its window, `state` not at all.
        count: how many layers.
        bytes_per_token: of one layer, on one GPU; 0 for `state`.
        window: tokens that are kept; None: all.
        state_bytes: of one layer for one sequence, on one GPU.
    """

    kind: Kind
    count: int
    bytes_per_token: int
    window: int | None = None
    state_bytes: int = 0


@dataclass(frozen=True)
class KvModel:
    """What a model keeps for each sequence.

    Attributes:
        layers: by kind.
        tensor_parallel: GPUs that the model is spread over.
        notes: what was assumed.
    """

    layers: tuple[Layers, ...]
    tensor_parallel: int
    notes: tuple[str, ...] = ()

    @property
    def gpu_bytes_per_token(self) -> int:
        """Bytes that each further token of a long sequence takes on one GPU."""
        return sum(each.count * each.bytes_per_token for each in self.layers if not each.window)

    @property
    def bytes_per_token(self) -> int:
        """The same on all GPUs together, copies included."""
        return self.gpu_bytes_per_token * self.tensor_parallel

    def gpu_sequence_bytes(self, tokens: int, *, block: int = 1) -> int:
        """Bytes of a sequence on one GPU.

        Args:
            tokens: its length.
            block: tokens that are allocated at once.
        """
        total = 0
        for each in self.layers:
            kept = tokens if each.window is None else min(tokens, each.window)
            blocks = -(-kept // block)
            total += each.count * (blocks * block * each.bytes_per_token + each.state_bytes)
        return total

    def sequence_bytes(self, tokens: int, *, block: int = 1) -> int:
        """The same on all GPUs together."""
        return self.gpu_sequence_bytes(tokens, block=block) * self.tensor_parallel

    def tokens_in(self, gpu_bytes: int, *, length: int | None = None) -> int:
        """Tokens that fit into that much KV memory on each GPU, by sequences of a length.

        Raises:
            UnknownModelError: no layer grows with the sequence, and no length is given.
        """
        if length is None:
            if not self.gpu_bytes_per_token:
                raise UnknownModelError("no layer grows with the sequence; give its length")
            return gpu_bytes // self.gpu_bytes_per_token
        return int(gpu_bytes * length / max(1, self.gpu_sequence_bytes(length)))


def kv_model(
    config: Config, *, kv_dtype: str = "auto", dtype: str | None = None, tensor_parallel: int = 1
) -> KvModel:
    """Read a model's `config.json`.

    Args:
        config: what stands in it.
        kv_dtype: `kv_cache_dtype`; `auto` is the model's own.
        dtype: of the model, where it is not that of the file.
        tensor_parallel: GPUs.

    Raises:
        UnknownModelError: a key is missing, or the numbers do not fit together.
    """
    text = _text_part(config)
    own = dtype or text.get("dtype") or text.get("torch_dtype") or _outer_dtype(config)
    size = _size(str(own) if kv_dtype == "auto" else kv_dtype)
    kinds = Counter(_kinds(text))
    notes: list[str] = []
    layers: list[Layers] = []
    for kind in ("full", "window", "state"):
        if not kinds[kind]:
            continue
        if kind == "state":
            state, note = _state_bytes(text, _size(str(own)), tensor_parallel)
            notes += [note] if note else []
            layers.append(Layers("state", kinds[kind], 0, state_bytes=state))
        else:
            window = _window(text) if kind == "window" else None
            one = _token_bytes(text, kind, size, kv_dtype, tensor_parallel)
            layers.append(Layers(kind, kinds[kind], one, window))
    if not layers:
        raise UnknownModelError("it has no layer with attention or a state")
    return KvModel(tuple(layers), tensor_parallel, tuple(notes))


def _text_part(config: Config) -> Config:
    """Of a model that also sees or hears, the part that writes."""
    for name in ("text_config", "llm_config", "language_config", "thinker_config"):
        inner = config.get(name)
        if isinstance(inner, Mapping) and _any(inner, "num_hidden_layers", "n_layer"):
            return inner
    return config


def _outer_dtype(config: Config) -> str:
    return str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")


def _size(dtype: str) -> int:
    name = dtype.removeprefix("torch.")
    if name.startswith(("fp8", "float8")):
        return 1
    if name not in _SIZES:
        raise UnknownModelError(f"`{dtype}` is no data type that is known here")
    return _SIZES[name]


def _any(config: Config, *names: str) -> int | None:
    """The first of these keys that has a number."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _need(config: Config, *names: str) -> int:
    found = _any(config, *names)
    if found is None:
        raise UnknownModelError(f"`{names[0]}` is missing")
    return found


def _kinds(config: Config) -> list[Kind]:
    """What each layer is, of those that keep something."""
    count = _need(config, "num_hidden_layers", "n_layer", "num_layers")
    shared = _any(config, "num_kv_shared_layers") or 0  # they use the cache of an earlier layer
    return (_listed(config, count) or _patterned(config, count))[: count - shared]


def _listed(config: Config, count: int) -> list[Kind]:
    """The file names each layer."""
    types = config.get("layer_types") or config.get("layers_block_type")
    if isinstance(types, list):
        unknown = set(map(str, types)) - _KINDS.keys()
        if unknown:
            raise UnknownModelError(f"layers of type `{min(unknown)}` are not known here")
        return [_KINDS[str(each)] for each in types[:count]]
    pattern = config.get("hybrid_override_pattern")  # Nemotron-H: Mamba, attention, no cache
    if isinstance(pattern, str):
        return [{"M": "state", "*": "full"}[each] for each in pattern if each in "M*"]  # type: ignore[misc]
    linear = config.get("linear_attn_config")  # Kimi Linear; layers are counted from 1
    if isinstance(linear, Mapping) and "full_attn_layers" in linear:
        full = {each - 1 for each in linear["full_attn_layers"]}
        return _where(count, full, "state")
    indices = config.get("attn_layer_indices")  # Bamba
    if isinstance(indices, list):
        return _where(count, set(indices), "state")
    return []


def _patterned(config: Config, count: int) -> list[Kind]:
    """The file gives a rule."""
    period = _any(config, "attn_layer_period")  # Jamba
    if period:
        offset = _any(config, "attn_layer_offset") or 0
        return _where(count, range(offset, count, period), "state")
    interval = _any(config, "full_attention_interval")  # Qwen3-Next
    if interval:
        return _where(count, range(interval - 1, count, interval), "state")
    if _window(config) is None:
        return ["full"] * count
    pattern = _any(config, "sliding_window_pattern", "_sliding_window_pattern")  # Gemma 3
    if pattern is None and config.get("model_type") == "gemma2":
        pattern = 2
    if pattern:
        return _where(count, range(pattern - 1, count, pattern), "window")
    if "max_window_layers" in config and config.get("use_sliding_window"):  # Qwen2
        return _where(count, range(_need(config, "max_window_layers")), "window")
    return ["window"] * count


def _where(count: int, full: Iterable[int], other: Kind) -> list[Kind]:
    chosen = set(full)
    return ["full" if each in chosen else other for each in range(count)]


def _window(config: Config) -> int | None:
    if config.get("use_sliding_window") is False:
        return None
    return _any(config, "sliding_window", "sliding_window_size", "attention_chunk_size") or None


def _token_bytes(config: Config, kind: Kind, size: int, kv_dtype: str, tensor_parallel: int) -> int:
    """Bytes of a token in one layer on one GPU."""
    latent = _any(config, "kv_lora_rank")
    if latent:
        return _latent_bytes(config, latent, size, kv_dtype)
    prefix = "swa_" if kind == "window" else "global_"  # MiMo-V2, Gemma 4
    heads = _heads(config)
    kv_heads = _any(
        config,
        f"{prefix}num_key_value_heads",
        f"num_{prefix}key_value_heads",
        "num_key_value_heads",
        "num_kv_heads",
        "n_head_kv",
    )
    if kv_heads is None:
        kv_heads = 1 if config.get("multi_query") else heads
    if kv_heads > tensor_parallel and kv_heads % tensor_parallel:
        raise UnknownModelError(
            f"{kv_heads} KV heads cannot be divided among {tensor_parallel} GPUs"
        )
    key = _any(config, f"{prefix}head_dim", "head_dim", "kv_channels")
    if key is None:
        key = _need(config, "hidden_size", "n_embd", "d_model") // heads
    value = _any(config, f"{prefix}v_head_dim", "v_head_dim") or key
    return max(1, kv_heads // tensor_parallel) * (key + value) * size


def _heads(config: Config) -> int:
    return _need(config, "num_attention_heads", "n_head", "n_heads")


def _latent_bytes(config: Config, latent: int, size: int, kv_dtype: str) -> int:
    """MLA: the same vector on each GPU; sparse MLA has an index of 8-bit keys beside it."""
    width = (latent + _need(config, "qk_rope_head_dim")) * size
    index = _any(config, "index_head_dim") if config.get("index_topk") else None
    if index is None:
        return width
    if kv_dtype.startswith("fp8"):
        width = _SPARSE_FP8
    return width + index + -(-index // 128) * 4


def _state_bytes(config: Config, size: int, tensor_parallel: int) -> tuple[int, str]:
    """Of one Mamba or linear layer for one sequence on one GPU; and what is not known of it."""
    kernel = _any(config, "linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel", "conv_L_cache")
    if "linear_num_value_heads" in config:  # gated delta net
        keys = _need(config, "linear_num_key_heads") * _need(config, "linear_key_head_dim")
        values = _need(config, "linear_num_value_heads") * _need(config, "linear_value_head_dim")
        mixed = 2 * keys + values
        state = values * _need(config, "linear_key_head_dim")
    elif (heads := _any(config, "mamba_n_heads", "mamba_num_heads")) is not None:  # Mamba 2
        inner = heads * _need(config, "mamba_d_head", "mamba_head_dim")
        depth = _need(config, "mamba_d_state", "ssm_state_size")
        mixed = inner + 2 * (_any(config, "mamba_n_groups", "n_groups") or 1) * depth
        state = inner * depth
    elif "mamba_expand" in config:  # Mamba 1
        mixed = _need(config, "mamba_expand") * _need(config, "hidden_size")
        state = mixed * _need(config, "mamba_d_state")
    else:
        return 0, "the size of the state of its Mamba or linear layers is not known; left out"
    return (mixed * ((kernel or 4) - 1) + state) * size // tensor_parallel, ""


def gpu_kv_bytes(
    memory: int, weights: int, *, tensor_parallel: int = 1, utilization: float = 0.9, other: int = 0
) -> int:
    """Bytes left for KV on each GPU.

    Args:
        memory: of one GPU.
        weights: of the whole model.
        tensor_parallel: GPUs that share them.
        utilization: `gpu_memory_utilization`.
        other: bytes on each GPU for activations, graphs and libraries.
    """
    return max(0, int(memory * utilization) - -(-weights // tensor_parallel) - other)


_REPORT = re.compile(r"KV cache size: ([\d,]+) tokens")


def reported_capacity(line: str) -> int | None:
    """Tokens that an engine says it has room for, from its log; None: the line says nothing.

    vLLM writes `GPU KV cache size: 1,234,567 tokens` (or `CPU …`) when it starts.
    """
    found = _REPORT.search(line)
    return int(found.group(1).replace(",", "")) if found else None
