"""What vLLM's own scheduler classes do on prefill, without the plugin and with it; one JSON object.

    ENGINE_PYTHON scheduler_cases.py MODEL_DIR BUNDLE

No engine, no worker and no KV cache: steps are scheduled, and answered as a worker would.
"""

import json
import os
import queue
import sys
import time
from collections import Counter
from typing import Any
from unittest.mock import MagicMock

os.environ.update(HF_HUB_OFFLINE="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR")

import torch
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

BLOCK, BLOCKS, PROMPT = 16, 60, 800
WORKERS = 8
COLD = {"do_remote_decode": True, "do_remote_prefill": False}


def warm(tokens: int) -> dict[str, Any]:
    """Parameters of a turn whose first tokens decode has."""
    where = {"remote_engine_id": "d", "remote_request_id": "x", "remote_host": "h"}
    blocks = [list(range(-(-tokens // BLOCK)))]
    more = {"remote_port": 1, "tp_size": 1, "remote_num_tokens": tokens}
    return {**COLD, **where, **more, "remote_block_ids": blocks}


def scheduler(model: str, role: str) -> Any:
    """As on GPUs: batches overlap."""
    transfer = KVTransferConfig(
        kv_connector="NixlConnector", kv_role=role, engine_id="p", kv_buffer_device="cpu",
        kv_connector_extra_config={
            "bidirectional_kv_xfer": True, "backends": ["UCX"], "decoder_kv_blocks_ttl": 100,
        },
    )  # fmt: skip
    config = EngineArgs(
        model=model, skip_tokenizer_init=True, kv_transfer_config=transfer, max_model_len=2048,
        max_num_batched_tokens=256, max_num_seqs=8, block_size=BLOCK, enforce_eager=True,
        dtype="float32", enable_prefix_caching=False,
    ).create_engine_config()  # fmt: skip
    config.scheduler_config.async_scheduling = True  # the CPU platform turned it off
    config.cache_config.num_gpu_blocks = BLOCKS
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=64, dtype=torch.float32)
    cache = KVCacheConfig(
        num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["l0"], spec)]
    )
    manager = StructuredOutputManager(config)
    return AsyncScheduler(
        vllm_config=config, kv_cache_config=cache, structured_output_manager=manager,
        block_size=BLOCK,
    )  # fmt: skip


def request(name: str, params: dict[str, Any], tokens: int = PROMPT) -> Request:
    """A request for one token."""
    sampling = SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": dict(params)})
    sampling.update_from_generation_config({}, 1)
    return Request(
        request_id=name, prompt_token_ids=[7] * tokens, sampling_params=sampling,
        pooling_params=None, block_hasher=None,
    )  # fmt: skip


def answer(scheduler: Any, step: Any, received: set[str] | None = None) -> None:
    """A worker's output of a step that ends no prompt."""
    ids = list(step.num_scheduled_tokens)
    output = ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={each: index for index, each in enumerate(ids)},
        sampled_token_ids=[[] for _ in ids],
        kv_connector_output=KVConnectorOutput(finished_recving=received),
    )
    scheduler.update_from_output(step, output)


def spoilt_blocks(prefill: Any) -> int:
    """Blocks of a pull that a step under way writes: a request ends while it runs."""
    ending = request("a", COLD)
    prefill.add_request(ending)
    prefill.schedule()
    prefill.schedule()  # sent off before the first has come back
    written = set(prefill.kv_cache_manager.get_block_ids("a")[0])
    prefill.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    prefill.add_request(request("b", warm(790)))
    reads = prefill.schedule().kv_connector_metadata.reqs_to_recv.values()
    return len(written & {block for read in reads for g in read.local_block_ids for block in g})


def state_after_preemption(prefill: Any) -> str:
    """Of a request that has pulled, was preempted and is scheduled anew."""
    pulled = request("b", warm(310))
    prefill.add_request(pulled)
    answer(prefill, prefill.schedule(), received={"b"})
    answer(prefill, prefill.schedule())
    prefill.running.remove(pulled)
    prefill._preempt_request(pulled, time.time())
    for _ in range(2):
        answer(prefill, prefill.schedule())
    return pulled.status.name


class Workers:
    """The lease code of a tensor parallel group's workers, without their GPUs."""

    def __init__(self) -> None:
        self.workers = [self._worker() for _ in range(WORKERS)]
        self.done: Counter[str] = Counter()

    def _worker(self) -> Any:
        worker = object.__new__(NixlPullConnectorWorker)
        worker._reqs_to_send, worker._reqs_to_process = {}, set()
        worker._recving_metadata, worker._ready_requests = {}, queue.Queue()
        worker._physical_blocks_per_logical_kv_block = 1
        worker.consumer_notification_counts_by_req = {}
        worker.expected_consumer_notifications_by_req = {}
        worker.pcp_rank, worker.pcp_dcp_sharded = 0, False
        worker.xfer_stats = worker._send_heartbeats = worker._read_blocks_for_req = MagicMock()
        worker._logical_to_kernel_block_ids = lambda blocks, ratio: blocks
        return worker

    def run(self, scheduler: Any, step: Any, received: set[str] | None = None) -> dict[str, Any]:
        """Run a step on all of them; parameters by request that has ended."""
        for worker in self.workers:
            worker.start_load_kv(step.kv_connector_metadata)
            ended: set[str] = set()
            worker._reap_expired_send_leases(ended)
            self.done.update(ended)
        ids = list(step.num_scheduled_tokens)
        output = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={each: index for index, each in enumerate(ids)},
            sampled_token_ids=[[5] for _ in ids],
            kv_connector_output=KVConnectorOutput(
                finished_recving=received,
                finished_sending={name for name in self.done if self.done[name] == WORKERS},
            ),
        )
        self.done = Counter({name: n for name, n in self.done.items() if n < WORKERS})
        outputs = scheduler.update_from_output(step, output)
        return {
            each.request_id: each.kv_transfer_params
            for of_client in outputs.values()
            for each in of_client.outputs
            if each.finish_reason is not None
        }


def renewed_turn(decode: Any) -> list[bool]:
    """Whether a turn is kept at its first deadline, and at the one it was renewed to."""
    workers, real, ahead = Workers(), time.perf_counter, 0.0
    time.perf_counter = lambda: real() + ahead
    try:
        from_prefill = {**warm(40), "do_remote_decode": False, "do_remote_prefill": True}
        decode.add_request(request("a", from_prefill, 40))
        workers.run(decode, decode.schedule(), received={"a"})
        steps = [decode.schedule(), decode.schedule()]
        (ended, _) = [workers.run(decode, step) for step in steps]
        expiry = ended["a"]["remote_blocks_expiry_time"]
        until = {"a": expiry + 50}
        ahead = 60.0
        asked = {"engine_id": ended["a"]["remote_engine_id"], "until": until}
        decode.add_request(request("q", {"do_remote_decode": True, "pdctl_renew": asked}, 3))
        steps = [decode.schedule(), decode.schedule()]
        (ended, _) = [workers.run(decode, step) for step in steps]
        assert ended["q"] == {"pdctl_renewed": until}, ended
        kept = []
        for moment in (expiry + 1, expiry + 51):
            ahead = moment - real()
            workers.run(decode, decode.schedule())
            kept.append("a" in decode.requests)
        return kept
    finally:
        time.perf_counter = real


def cases(model: str) -> dict[str, Any]:
    """All of them, each on a scheduler of its own."""
    return {
        "prefill": spoilt_blocks(scheduler(model, "kv_producer")),
        "decode": spoilt_blocks(scheduler(model, "kv_consumer")),
        "preempted": state_after_preemption(scheduler(model, "kv_producer")),
    }


if __name__ == "__main__":
    folder, bundle = sys.argv[1:]
    stock = cases(folder)
    sys.path.insert(0, bundle)
    from pdctl.plugin import register

    register()
    renewed = renewed_turn(scheduler(folder, "kv_consumer"))
    print(json.dumps({"stock": stock, "plugin": cases(folder), "renewed": renewed}))
