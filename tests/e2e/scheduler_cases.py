"""What vLLM's own scheduler classes do on prefill, without the plugin and with it; one JSON object.

    ENGINE_PYTHON scheduler_cases.py MODEL_DIR BUNDLE

No engine, no worker and no KV cache: steps are scheduled, and answered as a worker would.
"""

import json
import os
import sys
import time
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR")

import torch
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

BLOCK, BLOCKS, PROMPT = 16, 60, 800
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
        kv_connector_extra_config={"bidirectional_kv_xfer": True, "backends": ["UCX"]},
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


def request(name: str, params: dict[str, Any]) -> Request:
    """A prefill leg of `PROMPT` tokens."""
    sampling = SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": dict(params)})
    sampling.update_from_generation_config({}, 1)
    return Request(
        request_id=name, prompt_token_ids=[7] * PROMPT, sampling_params=sampling,
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
    print(json.dumps({"stock": stock, "plugin": cases(folder)}))
