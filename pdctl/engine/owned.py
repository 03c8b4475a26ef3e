"""Which engine arguments and variables have a home in the file, and which may not differ.

`extra_args` and `env` are for what the file has no key for. Anything else in them would be set
twice, or would make prefill and decode differ where the engine or its KV cache cannot bear it:
the compatibility hash (vLLM version, model, dtype, KV dtype, attention backend, speculative
config, hybrid cache manager) and what it forgets (weights, block size, KV layout, tokenizer).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_SHORT: Mapping[str, str] = {
    "-ac": "attention-config",
    "-dcp": "decode-context-parallel-size",
    "-dp": "data-parallel-size",
    "-dpa": "data-parallel-address",
    "-dpe": "data-parallel-external-lb",
    "-dph": "data-parallel-hybrid-lb",
    "-dpl": "data-parallel-size-local",
    "-dpm": "data-parallel-multi-port-external-lb",
    "-dpn": "data-parallel-rank",
    "-dpr": "data-parallel-start-rank",
    "-n": "nnodes",
    "-pcp": "prefill-context-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-q": "quantization",
    "-sc": "speculative-config",
    "-tp": "tensor-parallel-size",
}

_ROLE_KEYS = (
    "data_parallel_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "num_gpu_blocks_override",
    "async_scheduling",
    "enforce_eager",
)
_MODEL_KEYS = (
    "revision",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "max_model_len",
    "block_size",
    "attention_backend",
    "reasoning_parser",
    "chat_template",
    "trust_remote_code",
)

_SPEAKS_HTTP = "the router speaks plain HTTP to the engines"
_ONE_HOST = "an engine that spans hosts is not supported"

FLAG_HOMES: Mapping[str, str] = {
    **{key.replace("_", "-"): f"write `model.{key}` instead" for key in _MODEL_KEYS},
    **{
        key.replace("_", "-"): f"write `prefill.{key}` or `decode.{key}` instead"
        for key in _ROLE_KEYS
    },
    "enable-prefix-caching": "write `prefill.prefix_caching` or `decode.prefix_caching` instead",
    "tensor-parallel-size": "write `model.tensor_parallel_size`, or the role's own, instead",
    **dict.fromkeys(
        ("speculative-config", "spec-method", "spec-model", "spec-tokens"),
        "write `model.speculative` instead",
    ),
    "disable-log-stats": "without its metrics nobody sees whether decode is full or reuse works",
    "tool-call-parser": "write `model.tool_parser` instead",
    "enable-auto-tool-choice": "write `model.tool_parser` instead",
    "model": "write `model.id` instead",
    "model-tag": "write `model.id` instead",
    "served-model-name": "write `model.served_name` instead",
    "kv-transfer-config": "the section `kv` makes it, the same for prefill and decode",
    "kv-offloading-size": "it replaces the connector that the section `kv` sets up",
    "kv-offloading-backend": "it replaces the connector that the section `kv` sets up",
    "host": "the section `target` sets it",
    "port": "the section `target` sets it",
    "uds": "the section `target` sets address and port",
    "api-key": "argv is visible to every user; write `engine.api_key_file` instead",
    "hf-token": "argv is visible to every user; set HF_TOKEN in your environment instead",
    "enable-prompt-tokens-details": "pdctl sets it: the router needs it to tell the truth",
    "enable-scale-out": "pdctl sets it where this vLLM has it",
    "config": "a file of arguments would escape every check; write them here",
    "ssl-keyfile": _SPEAKS_HTTP,
    "ssl-certfile": _SPEAKS_HTTP,
    **dict.fromkeys(
        (
            "nnodes",
            "headless",
            "data-parallel-address",
            "data-parallel-external-lb",
            "data-parallel-hybrid-lb",
            "data-parallel-multi-port-external-lb",
            "data-parallel-rank",
            "data-parallel-size-local",
            "data-parallel-start-rank",
        ),
        _ONE_HOST,
    ),
}
"""Flags that no `extra_args` may have, and what to do instead."""

EQUAL_FLAGS: frozenset[str] = frozenset(
    {
        "attention-config",
        "calculate-kv-scales",
        "chat-template-content-format",
        "code-revision",
        "config-format",
        "default-chat-template-kwargs",
        "disable-hybrid-kv-cache-manager",
        "disable-sliding-window",
        "enable-lora",
        "enable-prompt-embeds",
        "exclude-tools-when-tool-choice-none",
        "hf-config-path",
        "hf-overrides",
        "kv-cache-dtype-skip-layers",
        "kv-sharing-fast-prefill",
        "language-model-only",
        "load-format",
        "lora-dtype",
        "lora-modules",
        "mamba-backend",
        "mamba-block-size",
        "mamba-cache-dtype",
        "mamba-cache-mode",
        "mamba-ssm-cache-dtype",
        "max-lora-rank",
        "mm-processor-kwargs",
        "model-class-overrides",
        "model-impl",
        "model-loader-extra-config",
        "quantization-config",
        "reasoning-effort-map",
        "swa-bounded-replay",
        "tokenizer",
        "tokenizer-mode",
        "tokenizer-revision",
        "trust-request-chat-template",
    }
)
"""Flags that may stand in `model.extra_args` only."""

ONLY_ONE: Mapping[str, str] = {
    "pipeline-parallel-size": "NIXL cannot register the KV cache of several stages (vllm#22430)",
    "prefill-context-parallel-size": "vLLM refuses it together with bi-directional KV",
    "decode-context-parallel-size": "reuse is proven for 1 only: blocks would be spread otherwise",
}
"""Flags whose value must be 1, and why."""

_PDCTL_SETS = "pdctl sets it for each engine"

ENV_HOMES: Mapping[str, str] = {
    "FI_PROVIDER": "pdctl sets it to `efa` for LIBFABRIC, so that NIXL does not quietly take TCP",
    "HF_HUB_TOKEN": "it is a secret; set HF_TOKEN in your own environment, pdctl passes it on",
    "HF_TOKEN": "it is a secret; set it in your own environment, pdctl passes it on",
    "PYTHONPATH": "it carries pdctl's plugin; with `engine.plugin: off` it is yours",
    "PYTHONSAFEPATH": _PDCTL_SETS,
    "TMPDIR": _PDCTL_SETS,
    "VLLM_API_KEY": "it is a secret; write `engine.api_key_file` instead",
    "VLLM_ATTENTION_BACKEND": "write `model.attention_backend` instead",
    "VLLM_CPU_KVCACHE_SPACE": (
        "write `prefill.cpu_kv_cache_gib` or `decode.cpu_kv_cache_gib` instead"
    ),
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": (
        "a turn that is tried again has the same id, and two of one id end the engine"
    ),
    "VLLM_KV_CACHE_LAYOUT": "write `kv.layout` instead",
    "VLLM_NIXL_ABORT_REQUEST_TIMEOUT": "write `kv.decoder_ttl` instead",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "the section `target` sets it",
    "VLLM_NIXL_SIDE_CHANNEL_PORT": "the section `target` sets it",
    "VLLM_RPC_BASE_PATH": _PDCTL_SETS,
}
"""Variables that no `env` may have, and what to do instead."""

EQUAL_ENV: frozenset[str] = frozenset(
    {"VLLM_MLA_DISABLE", "VLLM_SSM_CONV_STATE_LAYOUT", "VLLM_USE_MODELSCOPE"}
)
"""Variables that may stand in `model.env` only."""


@dataclass(frozen=True)
class Flag:
    """One option in a list of arguments.

    Attributes:
        index: its place in the list.
        written: as it was written, without a value.
        name: in full where it can be told, without dashes in front, underscores, `no-` or a
            dotted path.
        value: what came with it or after it, if that is no option.
    """

    index: int
    written: str
    name: str
    value: str | None


def flags(arguments: Sequence[str]) -> Iterator[Flag]:
    """The options in a list of engine arguments, in every spelling that vLLM's parser takes."""
    for index, word in enumerate(arguments):
        written, equals, attached = word.partition("=")
        name = _full_name(written)
        if name is None:
            continue
        following = arguments[index + 1] if index + 1 < len(arguments) else None
        if following is not None and _full_name(following.partition("=")[0]) is not None:
            following = None
        yield Flag(index, written, name, attached if equals else following)


def _full_name(written: str) -> str | None:
    if written in _SHORT:
        return _SHORT[written]
    if written[:2] in _SHORT and not written.startswith("--"):
        return _SHORT[written[:2]]  # `-qfp8`
    if not re.match(r"--[A-Za-z]", written):
        return None
    name = written[2:].split()[0].split(".")[0].replace("_", "-")
    return _unabbreviated(name.removeprefix("no-") if name not in _ALL else name)


def _unabbreviated(name: str) -> str:
    # argparse takes any beginning that is unique, so `--kv-transfer-conf` would get through.
    if name in _ALL:
        return name
    candidates = [known for known in sorted(_ALL) if known.startswith(name)]
    return candidates[0] if len(candidates) == 1 else name


_ALL: frozenset[str] = frozenset(FLAG_HOMES) | EQUAL_FLAGS | frozenset(ONLY_ONE)
