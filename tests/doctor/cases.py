"""Facts of a healthy pair, and for each check what has to change so that it finds something.

One place for both, so that no check is without a case in which it passes and one in which it does
not (`test_rows`).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pdctl.base.configfacts import (
    KEY_FILES,
    STATE,
    ConfigFacts,
    ConfigProblem,
    RoleSettings,
    Settings,
)
from pdctl.base.facts import (
    EngineMetrics,
    HostFacts,
    PairFacts,
    PairState,
    RouterFacts,
    RouterMetrics,
    ServingFacts,
    TwoTurnFacts,
)
from pdctl.base.fix import Severity
from pdctl.base.runfacts import (
    LogFacts,
    LogFinding,
    ProcessFacts,
    SideChannel,
    StartLine,
    StoreFacts,
    WeightFacts,
)
from pdctl.observe.signatures import BY_ID

NOW = 1_796_000_000.0

METRICS = EngineMetrics(
    kv_usage=0.1,
    waiting=0,
    running=0,
    nixl_bytes=1000,
    nixl_transfers=10,
    nixl_failed=0,
    nixl_expired=0,
    nixl_after_expiry=0,
    block_size=128,
    prefix_caching=True,
    process_start=NOW - 600,
)
PREFILL = ServingFacts(
    "prefill-0",
    "prefill",
    "a",
    "http://a:1",
    version="0.33.0",
    model="tiny",
    model_root="/m",
    max_model_len=8192,
    metrics=METRICS,
)
DECODE = replace(PREFILL, name="decode-0", role="decode", host="b", url="http://b:2")

_KV = "--kv-transfer-config"


def running(role: str, **extra: str) -> dict[str, str]:
    """Arguments by option, as a healthy engine of this role has them."""
    return {
        "program": "/python -m vllm.entrypoints.openai.api_server",
        "--model": "/m",
        "--dtype": "float32",
        f"{_KV} kv_connector": "NixlConnector",
        f"{_KV} kv_role": "kv_producer" if role == "prefill" else "kv_consumer",
        f"{_KV} engine_id": f"demo-{role}-0-abc",
        f"{_KV} kv_connector_extra_config.backends": '["UCX"]',
        f"{_KV} kv_connector_extra_config.bidirectional_kv_xfer": "true",
        f"{_KV} kv_connector_extra_config.decoder_kv_blocks_ttl": "480",
        **extra,
    }


def process(role: Any, host: str, **changes: Any) -> ProcessFacts:
    """A healthy engine process."""
    good = ProcessFacts(
        name=f"{role}-0",
        role=role,
        host=host,
        alive=True,
        pid=7,
        started_at=NOW - 600,
        running=running(role),
        wanted=running(role),
        engine_id=f"demo-{role}-0-abc",
        levers={"streaming_handles": "applied", "live_ttl": "applied"},
        starts=(StartLine(NOW - 600, f"demo-{role}-0-abc", {}),),
    )
    return replace(good, **changes)


SETTINGS = Settings(
    target="local",
    model="/m",
    prefill=RoleSettings("kv_producer"),
    decode=RoleSettings("kv_consumer"),
    offline_model=True,
    dtype="float32",
    vllm="0.33.0",
    nixl="1.5.1",
    version_row="0.33.0",
    streams_have_handles=True,
    buffer_device="cpu",
    backends=("UCX",),
)
LOGS = LogFacts(
    since=NOW - 3600,
    bytes_read={"prefill-0": 1000, "decode-0": 1000},
    hit=3,
    miss=1,
    misses={"first_turn": 1},
    backends={"prefill-0": ("UCX",), "decode-0": ("UCX",)},
)
WEIGHTS = WeightFacts(
    "a",
    "/m",
    {"model.safetensors": "5 bytes, aa"},
    {"architectures": "Qwen3ForCausalLM", "num_attention_heads": "4"},
)
ROUTER = RouterFacts(
    "http://r",
    ours=True,
    ready=True,
    pairs=(PairState("http://a:1", "http://b:2", True),),
    ttl=472.0,
    threshold=64,
    metrics=RouterMetrics(reasons={"HIT continued": 3, "MISS first_turn": 1}, reused_tokens=900),
    share=1.0,
    open=False,
    host="a",
)
GOOD = PairFacts(
    name="demo",
    taken_at=NOW,
    config=ConfigFacts("pd.yaml", settings=SETTINGS),
    hosts=(HostFacts("a"), HostFacts("b")),
    engines=(PREFILL, DECODE),
    router=ROUTER,
    two_turn=TwoTurnFacts(True, 200, 300, 1000, True),
    store=StoreFacts("redis://s"),
    processes=(process("prefill", "a"), process("decode", "b")),
    side_channels=(
        SideChannel("decode-0", "a", "b", 5601, True),
        SideChannel("prefill-0", "b", "a", 5600, True),
    ),
    weights=(WEIGHTS, replace(WEIGHTS, host="b")),
    logs=LOGS,
)

Change = Callable[[PairFacts], PairFacts]


def problem(key: str, message: str, *, unknown: bool = False) -> Change:
    """A configuration that has this problem, and so no settings."""
    found = ConfigProblem(key, message, unknown=unknown)
    return lambda facts: replace(facts, config=ConfigFacts("pd.yaml", problems=(found,)))


def settings(**changes: Any) -> Change:
    """A configuration that says this."""
    said = replace(SETTINGS, **changes)
    return lambda facts: replace(facts, config=ConfigFacts("pd.yaml", settings=said))


def notice(topic: str) -> Change:
    config = ConfigFacts("pd.yaml", notices={topic: "beware"}, settings=SETTINGS)
    return lambda facts: replace(facts, config=config)


def decode(**changes: Any) -> Change:
    """Decode answers this."""
    return lambda facts: replace(facts, engines=(PREFILL, replace(DECODE, **changes)))


def decode_metrics(**changes: Any) -> Change:
    return decode(metrics=replace(METRICS, **changes))


def prefill_metrics(**changes: Any) -> Change:
    engine = replace(PREFILL, metrics=replace(METRICS, **changes))
    return lambda facts: replace(facts, engines=(engine, DECODE))


def decode_process(**changes: Any) -> Change:
    """Decode's host shows this of it."""
    processes = (process("prefill", "a"), process("decode", "b", **changes))
    return lambda facts: replace(facts, processes=processes)


def router(**changes: Any) -> Change:
    """The router says this."""
    return lambda facts: replace(facts, router=replace(ROUTER, **changes))


def logged(
    id: str,
    *sources: str,
    count: int = 2,
    last: float = NOW - 30,
    severity: Severity | None = None,
    follows: str | None = None,
) -> LogFinding:
    """A signature as it is found in the logs of `sources`."""
    return LogFinding(
        id=id,
        title=BY_ID[id].title,
        severity=severity or BY_ID[id].severity,
        count=count,
        first=last - 5,
        last=last,
        sources=dict.fromkeys(sources or ("prefill-0",), 1),
        line="the line itself",
        follows=follows,
    )


def logs(*findings: LogFinding, **changes: Any) -> Change:
    """The logs say this."""
    return lambda facts: replace(facts, logs=replace(LOGS, findings=findings, **changes))


def both(*changes: Change) -> Change:
    """One after the other."""

    def change(facts: PairFacts) -> PairFacts:
        for each in changes:
            facts = each(facts)
        return facts

    return change


def silent_decode(facts: PairFacts) -> PairFacts:
    asked = SideChannel("decode-0", "a", "b", 5601, False, "nobody listens there")
    return replace(facts, side_channels=(asked,))


def other_weights(facts: PairFacts) -> PairFacts:
    other = replace(WEIGHTS, host="b", parts={"model.safetensors": "5 bytes, bb"})
    return replace(facts, weights=(WEIGHTS, other))


def sliding(facts: PairFacts) -> PairFacts:
    return replace(facts, weights=(replace(WEIGHTS, config={"sliding_window": "4096"}),))


def no_proof_bytes(facts: PairFacts) -> PairFacts:
    return prefill_metrics(nixl_bytes=0)(replace(facts, two_turn=None))


RESTARTED = both(
    decode_metrics(process_start=NOW - 60), logs(logged("nixl.transfer.failed", "prefill-0"))
)

BAD: Mapping[str, Change] = {
    "config.file": lambda facts: replace(facts, config=ConfigFacts("x.yaml", error="no such file")),
    "config.keys": problem("kv.remote_pull", "`remote_pull` is not a key of `kv`", unknown=True),
    "config.version": settings(version_known=False),
    "config.connector": problem("decode.extra_args[0]", "`--kv-transfer-config` does not belong"),
    "config.ttl": settings(router_ttl=479.0),
    "config.failure_policy": problem("kv.load_failure_policy", "with `recompute` a turn hangs"),
    "config.buffer_device": problem("kv.buffer_device", "a CUDA engine never starts the read"),
    "config.backends": problem("kv.backends", "NIXL's LIBFABRIC plugin needs CUDA"),
    "config.parallel": settings(decode=RoleSettings("kv_consumer", tensor_parallel=3)),
    "config.equal": problem("decode.extra_args[0]", "`--tokenizer` belongs in `model.extra_args`"),
    "config.key_files": problem(KEY_FILES, "`router.api_keys_file` cannot be read"),
    "config.state": problem(STATE, "the state file of `x` is damaged"),
    "config.valid": problem("target.zones[0]", "zone `x` is not in `us-west-2`"),
    "config.bidirectional": settings(bidirectional=False),
    "config.prefix_caching": settings(decode=RoleSettings("kv_consumer", prefix_caching=False)),
    "config.model": sliding,
    "config.revision": settings(offline_model=False),
    "config.environment": notice("segments"),
    "host.reach": lambda facts: replace(facts, hosts=(HostFacts("a"), HostFacts("b", "no route"))),
    "engine.health": decode(error="refused"),
    "engine.side_channel": silent_decode,
    "engine.version.equal": decode(version="0.32.0"),
    "engine.model.equal": decode(model_root="/other"),
    "engine.weights.equal": other_weights,
    "engine.block_size.equal": decode_metrics(block_size=16),
    "engine.bidirectional": decode_process(
        running=running(
            "decode", **{f"{_KV} kv_connector_extra_config.bidirectional_kv_xfer": "false"}
        )
    ),
    "engine.flags.equal": decode_process(running=running("decode", **{"--dtype": "bfloat16"})),
    "engine.role": decode_process(running=running("decode", **{f"{_KV} kv_role": "kv_producer"})),
    "engine.id": decode_process(starts=(StartLine(1.0, "fixed"), StartLine(2.0, "fixed"))),
    "engine.failure_policy": decode_process(
        running=running("decode", **{f"{_KV} kv_load_failure_policy": "recompute"})
    ),
    "engine.keys": decode_process(
        running=running("decode", **{f"{_KV} kv_connector_extra_config.remote_pull_threshold": "9"})
    ),
    "engine.room": decode_metrics(kv_usage=0.9, waiting=1),
    "engine.prefix_caching": decode_metrics(prefix_caching=False),
    "engine.max_model_len.equal": decode(max_model_len=4096),
    "engine.plugin": decode_process(levers={"live_ttl": "not-applicable"}),
    "engine.streaming": both(
        decode(version="0.32.0"),
        decode_process(levers={"streaming_handles": "off"}),
        lambda facts: replace(facts, two_turn=None),
    ),
    "engine.drift": decode_process(wanted=running("decode", **{"--max-num-seqs": "8"})),
    "router.reach": router(error="refused"),
    "router.ttl": decode_process(ttl_file=30.0),
    "router.kind": router(ours=False, example=True),
    "router.store": lambda facts: replace(facts, store=StoreFacts("redis://s", "refused")),
    "router.keys": both(settings(router_open=True, router_host="0.0.0.0"), router(open=True)),
    "router.reuse": router(share=0.0),
    "router.pair": router(pairs=(PairState("http://a:1", "http://b:2", False, "no handle"),)),
    "runtime.late_reads": logs(logged("kv.read.declined")),
    "runtime.restarted": RESTARTED,
    "runtime.transfers": logs(logged("nixl.transfer.failed")),
    "runtime.transport": both(settings(backends=("LIBFABRIC",))),
    "runtime.leases": prefill_metrics(nixl_expired=50),
    "runtime.output": lambda facts: replace(
        facts, two_turn=TwoTurnFacts(False, 200, 300, 1000, False, "it differs")
    ),
    "runtime.two_turn": lambda facts: replace(
        facts, two_turn=TwoTurnFacts(False, 0, 300, 0, None, "reused nothing", "decode", ("do",))
    ),
    "runtime.bytes": no_proof_bytes,
    "runtime.misses": logs(logged("router.cache.never_hits", "router-0")),
    "logs.read": logs(problems={"decode-0": "no permission"}),
    "logs.signature": logs(logged("gpu.oom", "decode-0")),
}
