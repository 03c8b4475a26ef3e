"""The numbers that are looked up every second, found without reading the page."""

import time

import pytest

from pdctl.observe.metrics import engine_metrics, parse_samples
from pdctl.router.vitals import Vitals, read_vitals
from tests.observe.test_metrics import vllm_exposition

CONFIG = 'vllm:cache_config_info{block_size="%s",num_gpu_blocks="%s",engine="%d"} 1.0\n'


def test_they_are_what_the_parser_finds() -> None:
    text = vllm_exposition(engines=2)
    known = engine_metrics(parse_samples(text))
    assert read_vitals(text.encode()) == Vitals(
        start=str(known.process_start),
        block_size=known.block_size,
        capacity_tokens=2 * 512 * 128,
        kv_usage=known.kv_usage,
        waiting=known.waiting,
    )


def test_requests_whose_blocks_are_on_their_way_do_not_wait_for_room() -> None:
    page = (
        b'vllm:num_requests_waiting{engine="0"} 7.0\n'
        b'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 2.0\n'
        b'vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 5.0\n'
    )
    assert read_vitals(page).waiting == 2
    assert read_vitals(page.replace(b"capacity", b"other")).waiting == 7


def test_an_engine_knows_its_capacity_better_than_blocks_times_size() -> None:
    page = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="9",kv_cache_size_tokens="70"} 1'
    assert read_vitals(page).capacity_tokens == 70


def test_ranks_add_up_and_one_that_says_nothing_does_not_count() -> None:
    page = (CONFIG % ("None", "None", 0) + CONFIG % (16, 100, 1) + CONFIG % (16, 50, 2)).encode()
    vitals = read_vitals(page)
    assert (vitals.block_size, vitals.capacity_tokens) == (16, 2400)


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"\n\n",
        b"\xff\xfe{",
        b"vllm:cache_config_info",
        b"vllm:cache_config_info{",
        b"vllm:cache_config_info{} ",
        b"vllm:cache_config_info_of_another{block_size=\"4\"} 1\n",
        b'vllm:cache_config_info{block_size="4"} x\n',
        b'vllm:cache_config_info{block_size="-4"} 1\n',
        b'vllm:cache_config_info{block_size="' + b"9" * 5000 + b'"} 1\n',
        b"# vllm:kv_cache_usage_perc 0.5\n",
        b"x vllm:kv_cache_usage_perc 0.5\n",
        b"vllm:kv_cache_usage_perc NaN\n",
        b"vllm:kv_cache_usage_perc -1\n",
        b"vllm:num_requests_waiting +Inf\n",
        b"process_start_time_seconds \n",
    ],
)  # fmt: skip
def test_what_is_not_as_it_should_be_tells_nothing(page: bytes) -> None:
    assert read_vitals(page) == Vitals()


def test_braces_and_quotes_in_labels_do_no_harm() -> None:
    page = rb'vllm:kv_cache_usage_perc{model_name="a}\" b{",engine="0"} 0.25' + b"\r\n"
    assert read_vitals(page).kv_usage == 0.25


def test_a_big_page_takes_less_than_a_millisecond() -> None:
    other = "".join(f'vllm:some_other_bucket{{engine="0",le="{n}"}} {n}\n' for n in range(10_000))
    page = (other + vllm_exposition(engines=8)).encode()
    assert len(page) > 450_000

    def cost() -> float:
        began = time.perf_counter()
        assert read_vitals(page).kv_usage == 0.8
        return time.perf_counter() - began

    assert min(cost() for _ in range(40)) < 0.001
