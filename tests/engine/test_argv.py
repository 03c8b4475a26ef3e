"""The engines' commands, whole, and exactly where prefill and decode may differ."""

import json
from pathlib import PurePosixPath
from typing import Any

import pytest

from pdctl.base.command import MASK, Command, Secret
from pdctl.engine.argv import EnginePaths, EngineSecrets, engine_command
from pdctl.engine.choices import EngineRole
from pdctl.engine.kvconfig import kv_transfer_config
from tests.engine.configs import LOCAL, P5EN, config

PATHS = EnginePaths(
    temp=PurePosixPath("/t"),
    control=PurePosixPath("/s/control"),
    status=PurePosixPath("/s/plugin"),
    plugin=PurePosixPath("/c/plugin"),
)


def engine(role: EngineRole, base: dict[str, Any] = LOCAL, **change: Any) -> Command:
    on_prefill = role == "prefill"
    return engine_command(
        config(base, **change),
        role,
        python="/v/bin/python",
        model="/m" if base is LOCAL else "Qwen/Qwen3-32B",
        address="127.0.0.1" if base is LOCAL else "10.0.0.1" if on_prefill else "10.0.0.2",
        port=8100 if on_prefill else 8200,
        side_channel_port=5600 if on_prefill else 5601,
        engine_id=f"{role}-new",
        paths=PATHS,
    )


def test_local_prefill_whole() -> None:
    command = engine("prefill")
    assert command.argv() == [
        *("/v/bin/python", "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", "/m"),
        *("--served-model-name", "pdctl/tiny-random"),
        *("--host", "127.0.0.1", "--port", "8100"),
        *("--dtype", "float32"),
        *("--max-model-len", "8192"),
        *("--max-num-seqs", "8"),
        "--enforce-eager",
        "--enable-prompt-tokens-details",
        "--enable-scale-out",
        "--kv-transfer-config",
        '{"kv_connector":"NixlConnector","kv_role":"kv_producer","engine_id":"prefill-new",'
        '"kv_buffer_device":"cpu","kv_load_failure_policy":"fail","kv_connector_extra_config":'
        '{"backends":["UCX"],"bidirectional_kv_xfer":true,"kv_recompute_threshold":64,'
        '"decoder_kv_blocks_ttl":480}}',
    ]
    assert command.environ() == {
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PDCTL_NIXL_PROGRESS_US": "1000",
        "PDCTL_PLUGIN_STATUS_DIR": "/s/plugin",
        "PDCTL_QUEUE_SPIN_MS": "0",
        "PDCTL_TTL_FILE": "/s/control/decoder_ttl.json",
        "PYTHONPATH": "/c/plugin",
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": "/t",
        "TORCHDYNAMO_DISABLE": "1",
        "UCX_NET_DEVICES": "lo",
        "UCX_TLS": "tcp,self,sm",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": "5600",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_RPC_BASE_PATH": "/t",
    }
    assert command.cwd == "/t"
    assert list(command.env) == sorted(command.env)


def test_p5en_decode_whole() -> None:
    command = engine("decode", P5EN)
    assert command.argv() == [
        *("/v/bin/python", "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", "Qwen/Qwen3-32B", "--revision", "abc123"),
        *("--served-model-name", "Qwen"),
        *("--host", "10.0.0.2", "--port", "8200"),
        *("--dtype", "bfloat16"),
        *("--max-model-len", "32768"),
        *("--tensor-parallel-size", "8"),
        *("--max-num-seqs", "64"),
        "--enable-prompt-tokens-details",
        "--enable-scale-out",
        "--kv-transfer-config",
        '{"kv_connector":"NixlConnector","kv_role":"kv_consumer","engine_id":"decode-new",'
        '"kv_buffer_device":"cuda","kv_load_failure_policy":"fail","kv_connector_extra_config":'
        '{"backends":["LIBFABRIC"],"bidirectional_kv_xfer":true,"kv_recompute_threshold":64,'
        '"decoder_kv_blocks_ttl":480}}',
    ]
    assert command.environ() == {
        "DO_NOT_TRACK": "1",
        "FI_PROVIDER": "efa",
        "PDCTL_PLUGIN_STATUS_DIR": "/s/plugin",
        "PDCTL_TTL_FILE": "/s/control/decoder_ttl.json",
        "PYTHONPATH": "/c/plugin",
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": "/t",
        "VLLM_API_KEY": "",  # `up` makes one
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.2",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": "5601",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_RPC_BASE_PATH": "/t",
    }


def test_everything_the_file_can_say() -> None:
    command = engine(
        "prefill",
        P5EN,
        model={
            "quantization": "fp8",
            "kv_cache_dtype": "fp8",
            "block_size": 64,
            "attention_backend": "FLASH_ATTN",
            "speculative": {"method": "ngram", "num_speculative_tokens": 3},
            "trust_remote_code": True,
            "tool_parser": "hermes",
            "reasoning_parser": "qwen3",
            "chat_template": "/t.jinja",
            "env": {"A": "model"},
            "extra_args": ["--swap-space", "4"],
        },
        prefill={
            "tensor_parallel_size": 4,
            "data_parallel_size": 2,
            "max_num_batched_tokens": 4096,
            "gpu_memory_utilization": 0.85,
            "num_gpu_blocks_override": 99,
            "async_scheduling": False,
            "enforce_eager": False,
            "env": {"A": "role"},
            "extra_args": ["--seed", "1"],
        },
        kv={"layout": "HND", "lease_duration": "45s", "decoder_ttl": 12.5},
    )
    words = command.argv()
    assert words[3 : words.index("--kv-transfer-config")] == [
        *("--model", "Qwen/Qwen3-32B", "--revision", "abc123"),
        *("--served-model-name", "Qwen"),
        *("--host", "10.0.0.1", "--port", "8100"),
        *("--dtype", "bfloat16"),
        *("--quantization", "fp8"),
        *("--kv-cache-dtype", "fp8"),
        *("--max-model-len", "32768"),
        *("--block-size", "64"),
        *("--attention-backend", "FLASH_ATTN"),
        *("--speculative-config", '{"method":"ngram","num_speculative_tokens":3}'),
        "--trust-remote-code",
        *("--tensor-parallel-size", "4"),
        *("--data-parallel-size", "2"),
        *("--max-num-seqs", "8"),
        *("--max-num-batched-tokens", "4096"),
        *("--gpu-memory-utilization", "0.85"),
        *("--num-gpu-blocks-override", "99"),
        "--no-enable-prefix-caching",
        "--no-async-scheduling",
        "--no-enforce-eager",
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        *("--reasoning-parser", "qwen3"),
        *("--chat-template", "/t.jinja"),
        "--enable-prompt-tokens-details",
        "--enable-scale-out",
    ]
    assert words[-4:] == ["--swap-space", "4", "--seed", "1"]
    extra = json.loads(words[-5])["kv_connector_extra_config"]
    assert extra == {
        "backends": ["LIBFABRIC"],
        "bidirectional_kv_xfer": True,
        "kv_recompute_threshold": 64,
        "decoder_kv_blocks_ttl": 12.5,
        "kv_lease_duration": 45,
    }
    assert command.environ()["VLLM_KV_CACHE_LAYOUT"] == "HND"
    assert command.environ()["A"] == "role"


# --- where the two may differ --------------------------------------------------------------------

OWN_ARGUMENTS = {
    "--host",
    "--port",
    "--tensor-parallel-size",
    "--data-parallel-size",
    "--max-num-seqs",
    "--max-num-batched-tokens",
    "--gpu-memory-utilization",
    "--num-gpu-blocks-override",
    "--enable-prefix-caching",
    "--no-enable-prefix-caching",
    "--async-scheduling",
    "--no-async-scheduling",
    "--enforce-eager",
    "--no-enforce-eager",
    "--kv-transfer-config",
    "--seed",
}
"""Arguments that may differ; of `--kv-transfer-config` only `kv_role` and `engine_id`."""

OWN_VARIABLES = {
    "VLLM_NIXL_SIDE_CHANNEL_HOST",
    "VLLM_NIXL_SIDE_CHANNEL_PORT",
    "TORCHDYNAMO_DISABLE",
    "VLLM_CPU_KVCACHE_SPACE",
    "OWN",
}
"""Variables that may differ; `OWN` stands for `prefill.env` and `decode.env`."""


def options(command: Command) -> dict[str, str]:
    """The command's options with their values; an option without one has an empty value."""
    result: dict[str, str] = {}
    flag = ""
    for word in command.argv():
        if word.startswith("--"):
            flag = word
            result[flag] = ""
        elif flag:
            result[flag] += word
    return result


@pytest.mark.parametrize("base", [LOCAL, P5EN], ids=["local-cpu", "p5en"])
def test_prefill_and_decode_differ_here_and_nowhere_else(base: dict[str, Any]) -> None:
    def tuned(seed: int) -> dict[str, Any]:
        return {
            "tensor_parallel_size": 2 * seed,
            "data_parallel_size": seed,
            "max_num_seqs": 10 + seed,
            "max_num_batched_tokens": 1000 + seed,
            "gpu_memory_utilization": 0.5 + seed / 10,
            "cpu_kv_cache_gib": seed,
            "num_gpu_blocks_override": 50 + seed,
            "prefix_caching": seed == 1,
            "async_scheduling": seed == 1,
            "enforce_eager": seed == 1,
            "env": {"OWN": str(seed)},
            "extra_args": ["--seed", str(seed)],
        }

    change = {"prefill": tuned(1), "decode": tuned(2), "model": {"env": {"COMMON": "x"}}}
    prefill = engine("prefill", base, **change)
    decode = engine("decode", base, **change)
    ours, theirs = options(prefill), options(decode)
    differing = {flag for flag in ours | theirs if ours.get(flag) != theirs.get(flag)}
    assert differing <= OWN_ARGUMENTS
    kv_ours, kv_theirs = (json.loads(each["--kv-transfer-config"]) for each in (ours, theirs))
    differing = {key for key in kv_ours | kv_theirs if kv_ours.get(key) != kv_theirs.get(key)}
    assert differing == {"kv_role", "engine_id"}
    env_ours, env_theirs = prefill.environ(), decode.environ()
    differing = {key for key in env_ours | env_theirs if env_ours.get(key) != env_theirs.get(key)}
    assert differing <= OWN_VARIABLES
    assert prefill.argv()[:3] == decode.argv()[:3]


def test_untuned_roles_differ_only_in_what_names_them() -> None:
    change = {"prefill": {"max_num_seqs": 8}, "decode": {"max_num_seqs": 8}}
    ours, theirs = options(engine("prefill", **change)), options(engine("decode", **change))
    differing = {flag for flag in ours | theirs if ours.get(flag) != theirs.get(flag)}
    assert differing == {"--port", "--kv-transfer-config"}


# --- versions, devices, secrets ------------------------------------------------------------------


def test_a_flag_is_set_only_where_the_version_has_it() -> None:
    assert "--enable-scale-out" in engine("prefill", P5EN).argv()
    older = engine("prefill", P5EN, engine={"vllm": "0.29.0", "nixl": "1.4.1"})
    assert "--enable-scale-out" not in older.argv()


def test_keys_only_as_the_version_knows_them() -> None:
    old = config(P5EN, engine={"vllm": "0.21.0", "nixl": None}, kv={"lease_duration": 30})
    extra = kv_transfer_config(old, "prefill", None)["kv_connector_extra_config"]
    assert set(extra) == {"backends", "bidirectional_kv_xfer", "kv_recompute_threshold"}


def test_no_field_of_the_transfer_config_is_unknown_to_any_version() -> None:
    from pdctl.engine.versions import rows

    for version, row in rows().items():
        made = kv_transfer_config(
            config(P5EN, engine={"vllm": version, "nixl": None}), "decode", "id"
        )
        assert made.keys() <= row.top_level.value
        assert made["kv_connector_extra_config"].keys() <= row.kv_keys.value


def test_without_an_engine_id_vllm_makes_one() -> None:
    assert "engine_id" not in kv_transfer_config(config(), "prefill", None)


def test_an_existing_engine_decides_its_device_itself() -> None:
    existing = {"install": "existing", "python": "/v/bin/python", "vllm": "0.32.0"}
    command = engine("prefill", engine=existing)
    assert "kv_buffer_device" not in options(command)["--kv-transfer-config"]
    assert "VLLM_CPU_KVCACHE_SPACE" not in command.environ()
    on_cpu = engine("prefill", engine=existing, kv={"buffer_device": "cpu"})
    assert on_cpu.environ()["VLLM_CPU_KVCACHE_SPACE"] == "1"


def test_the_progress_thread_is_slowed_on_local_pairs_only() -> None:
    assert "PDCTL_NIXL_PROGRESS_US" in engine("decode").environ()
    assert "PDCTL_NIXL_PROGRESS_US" not in engine("decode", P5EN).environ()


def test_decode_alone_is_told_of_renewal_where_it_is_wanted() -> None:
    wanted = {"router": {"renew_idle": "5m"}}
    assert engine("decode", **wanted).environ()["PDCTL_LEASE_RENEWAL"] == "on"
    assert "PDCTL_LEASE_RENEWAL" not in engine("prefill", **wanted).environ()
    assert "PDCTL_LEASE_RENEWAL" not in engine("decode").environ()


def test_plugin_off() -> None:
    command = engine_command(
        config(engine={"plugin": "off"}),
        "prefill",
        python="/v/bin/python",
        model="/m",
        address="127.0.0.1",
        port=1,
        side_channel_port=2,
        engine_id="x",
        paths=EnginePaths(PATHS.temp, PATHS.control, PATHS.status, None),
    )
    env = command.environ()
    assert env["PDCTL_PLUGIN"] == "off"
    assert "PYTHONPATH" not in env
    assert "PDCTL_TTL_FILE" not in env


def test_secrets_are_in_the_environment_and_masked() -> None:
    command = engine_command(
        config(P5EN, engine={"api_key_file": "/keys/engine"}),
        "prefill",
        python="/v/bin/python",
        model="Qwen/Qwen3-32B",
        address="10.0.0.1",
        port=8100,
        side_channel_port=5600,
        engine_id="x",
        paths=PATHS,
        gpus=(4, 5),
        secrets=EngineSecrets(Secret("sesame"), Secret("hf_123")),
    )
    assert command.environ()["VLLM_API_KEY"] == "sesame"
    assert command.environ()["HF_TOKEN"] == "hf_123"
    assert command.environ()["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert command.masked_environ()["VLLM_API_KEY"] == command.masked_environ()["HF_TOKEN"] == MASK
    assert not any("sesame" in word or "/keys" in word for word in command.argv())
    assert "sesame" not in command.masked() + repr(command)


def test_a_token_for_the_hub_is_not_given_to_an_offline_engine() -> None:
    command = engine_command(
        config(),
        "prefill",
        python="p",
        model="/m",
        address="a",
        port=1,
        side_channel_port=2,
        engine_id="x",
        paths=PATHS,
        secrets=EngineSecrets(hf_token=Secret("hf_123")),
    )
    assert "HF_TOKEN" not in command.env


def test_downloads_go_where_the_hosts_keep_models() -> None:
    paths = EnginePaths(PATHS.temp, PATHS.control, PATHS.status, None, PurePosixPath("/hub"))
    common: dict[str, Any] = {
        "python": "p",
        "address": "a",
        "port": 1,
        "side_channel_port": 2,
        "engine_id": "x",
        "paths": paths,
    }
    online = engine_command(config(P5EN), "prefill", model="Qwen/Qwen3-32B", **common)
    assert online.environ()["HF_HOME"] == "/hub"
    offline = engine_command(config(P5EN, model={"id": "/w"}), "prefill", model="/w", **common)
    assert offline.environ()["HF_HUB_OFFLINE"] == "1"
    assert "HF_HOME" not in offline.env
