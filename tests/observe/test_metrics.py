"""Scrapes become typed values; what is missing is None."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pdctl.base.errors import BadAnswerError
from pdctl.base.facts import EngineMetrics, RouterMetrics
from pdctl.observe.metrics import (
    engine_metrics,
    growth,
    parse_samples,
    router_metrics,
)


def vllm_exposition(*, engines: int = 1) -> str:
    """What vLLM exports, by the client library that it uses."""
    registry = CollectorRegistry()
    labels = ["model_name", "engine"]
    usage = Gauge("vllm:kv_cache_usage_perc", "", labels, registry=registry)
    waiting = Gauge("vllm:num_requests_waiting", "", labels, registry=registry)
    running = Gauge("vllm:num_requests_running", "", labels, registry=registry)
    info = Gauge(
        "vllm:cache_config_info",
        "",
        ["block_size", "num_gpu_blocks", "enable_prefix_caching", "engine"],
        registry=registry,
    )
    moved = Histogram("vllm:nixl_bytes_transferred", "", labels, registry=registry)
    failed = Counter("vllm:nixl_num_failed_transfers", "", labels, registry=registry)
    expired = Counter("vllm:nixl_num_kv_expired_reqs", "", labels, registry=registry)
    reasons = [*labels, "finished_reason"]
    finished = Counter("vllm:request_success", "", reasons, registry=registry)
    source = Counter("vllm:prompt_tokens_by_source", "", [*labels, "source"], registry=registry)
    for engine in map(str, range(engines)):
        usage.labels("tiny", engine).set(0.1 * (int(engine) + 1))
        waiting.labels("tiny", engine).set(2)
        running.labels("tiny", engine).set(1)
        info.labels("128", "512", "False", engine).set(1)
        for size in (1000, 2500):
            moved.labels("tiny", engine).observe(size)
        failed.labels("tiny", engine).inc(3)
        expired.labels("tiny", engine)
        source.labels("tiny", engine, "external_kv_transfer").inc(40)
        source.labels("tiny", engine, "local_compute").inc(7)
        finished.labels("tiny", engine, "stop").inc(5)
        finished.labels("tiny", engine, "length").inc(7)
    Gauge("process_start_time_seconds", "", registry=registry).set(1.75e9)
    return generate_latest(registry).decode()


def test_an_engines_values() -> None:
    assert engine_metrics(parse_samples(vllm_exposition())) == EngineMetrics(
        kv_usage=0.1,
        waiting=2,
        running=1,
        finished=12,
        nixl_bytes=3500,
        nixl_transfers=2,
        nixl_failed=3,
        nixl_expired=0,
        nixl_after_expiry=None,
        external_tokens=40,
        block_size=128,
        num_blocks=512,
        prefix_caching=False,
        process_start=1.75e9,
    )


def test_data_parallel_engines_behind_one_url_are_summed_and_the_fullest_counts() -> None:
    metrics = engine_metrics(parse_samples(vllm_exposition(engines=2)))
    assert (metrics.nixl_bytes, metrics.waiting, metrics.kv_usage) == (7000, 4, 0.2)


def test_counters_are_found_without_their_suffix_too() -> None:
    text = "vllm:nixl_num_failed_transfers 4\n"
    assert engine_metrics(parse_samples(text)).nixl_failed == 4


@pytest.mark.parametrize("text", ["", "# HELP x y\n", "other_metric 1\n"])
def test_an_engine_that_exports_nothing_known_gives_nones(text: str) -> None:
    assert engine_metrics(parse_samples(text)) == EngineMetrics()


def test_values_before_the_engine_knows_them_are_none() -> None:
    text = 'vllm:cache_config_info{block_size="None",num_gpu_blocks="None"} 1\n'
    metrics = engine_metrics(parse_samples(text))
    assert (metrics.block_size, metrics.num_blocks, metrics.prefix_caching) == (None, None, None)


def test_a_page_that_is_no_exposition_is_an_error() -> None:
    with pytest.raises(BadAnswerError, match="text format"):
        parse_samples("<html><body>not found</body></html>\n")


def test_the_routers_values() -> None:
    text = "\n".join(
        [
            'pdctl_router_turns_total{outcome="HIT",reason=""} 3',
            'pdctl_router_turns_total{outcome="MISS",reason="first_turn"} 2',
            'pdctl_router_turns_total{outcome="MISS",reason="expired"} 1',
            'pdctl_router_retries_total{cause="reuse_status"} 1',
            "pdctl_router_reused_tokens_total 900",
            "pdctl_router_prompt_tokens_total 1000",
            'pdctl_router_handles{decode="a"} 2',
            'pdctl_router_handles{decode="b"} 1',
            "pdctl_router_requests_in_flight 0",
            "",
        ]
    )
    assert router_metrics(parse_samples(text)) == RouterMetrics(
        turns={"HIT": 3.0, "MISS": 3.0},
        reasons={"HIT ": 3.0, "MISS first_turn": 2.0, "MISS expired": 1.0},
        retries={"reuse_status": 1.0},
        reused_tokens=900,
        prompt_tokens=1000,
        handles=3,
        in_flight=0,
    )


@pytest.mark.parametrize(
    ("before", "after", "grown"),
    [(None, None, None), (None, 5, 5), (3, 5, 2), (5, 5, 0), (5, 3, None), (5, None, None)],
)
def test_growth_knows_restarts_and_first_observations(
    before: int | None, after: int | None, grown: int | None
) -> None:
    assert growth(before, after) == grown
