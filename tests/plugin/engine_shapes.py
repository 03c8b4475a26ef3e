"""Small stand-ins for the modules of vLLM and NIXL that the levers touch.

Each has the names, signatures and order of events of the real one (read in the sources of 0.32.0
and 0.33.0, NIXL 1.5.1), and nothing else. They are written to disk and imported for real, as the
levers act at the moment of import.
"""

from pathlib import Path

_CHAT = "vllm/entrypoints/openai/chat_completion/serving.py"
_COMPLETION = "vllm/entrypoints/openai/completion/serving.py"
_SCHEDULER = "vllm/distributed/kv_transfer/kv_connector/v1/nixl/base_scheduler.py"
_PULLS = "vllm/distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py"
_CORE = "vllm/v1/core/sched/scheduler.py"
_CONNECTOR = "vllm/distributed/kv_transfer/kv_connector/v1/nixl/connector.py"

_CHAT_032 = '''
import json

class ChatCompletionStreamResponse:
    model_fields = {"id": 1, "choices": 1, "usage": 1}

class OpenAIServingChat:
    async def chat_completion_stream_generator(
        self, request, result_generator, request_id, model_name, conversation, tokenizer,
        request_metadata, chat_template_kwargs=None, mm_token_counts=None,
    ):
        """Yield server-sent events."""
        try:
            async for res in result_generator:
                for output in res.outputs:
                    choice = {"index": output.index, "delta": {"content": output.text},
                              "finish_reason": output.finish_reason}
                    chunk = {"id": request_id, "choices": [choice], "model": model_name}
                    data = json.dumps(chunk, ensure_ascii=False, separators=(",", ":"))
                    yield f"data: {data}\\n\\n"
            if request.get("include_usage"):
                yield 'data: {"id":"1","choices":[],"usage":{"total_tokens":3}}\\n\\n'
        except Exception as e:
            yield f'data: {{"error":{{"message":"{e}"}}}}\\n\\n'
        yield "data: [DONE]\\n\\n"
'''

_COMPLETION_032 = """
import json

class CompletionStreamResponse:
    model_fields = {"id": 1, "choices": 1, "usage": 1}

class OpenAIServingCompletion:
    async def completion_stream_generator(
        self, request, engine_inputs, result_generator, request_id, created_time, model_name,
        num_prompts, tokenizer, request_metadata,
    ):
        async for prompt_idx, res in result_generator:
            for output in res.outputs:
                choice = {"index": prompt_idx, "text": output.text,
                          "finish_reason": output.finish_reason}
                yield f"data: {json.dumps({'id': request_id, 'choices': [choice]})}\\n\\n"
        yield "data: [DONE]\\n\\n"

    def request_output_to_completion_response(self, final):
        return {"kv_transfer_params": final.kv_transfer_params}
"""

_CHAT_033 = """
class ChatCompletionStreamResponse:
    model_fields = {"id": 1, "choices": 1, "usage": 1, "kv_transfer_params": 1}

class OpenAIServingChat:
    async def chat_completion_stream_generator(
        self, request, result_generator, request_id, model_name, conversation, tokenizer,
        request_metadata, chat_template_kwargs=None, mm_token_counts=None,
    ):
        async for chunk in self.chat_completion_stream_generator_raw(request, result_generator):
            yield f"data: {chunk}\\n\\n"
        yield "data: [DONE]\\n\\n"

    async def chat_completion_stream_generator_raw(self, request, result_generator):
        async for res in result_generator:
            yield dict(choices=[], kv_transfer_params=res.kv_transfer_params)
"""

_COMPLETION_033 = """
class CompletionStreamResponse:
    model_fields = {"id": 1, "choices": 1, "usage": 1, "kv_transfer_params": 1}

class OpenAIServingCompletion:
    async def completion_stream_generator(
        self, request, engine_inputs, result_generator, request_id, created_time, model_name,
        num_prompts, tokenizer, request_metadata,
    ):
        async for prompt_idx, res in result_generator:
            yield f"data: {dict(choices=[], kv_transfer_params=res.kv_transfer_params)}\\n\\n"
        yield "data: [DONE]\\n\\n"
"""

_SCHEDULER_032 = """
import time

class NixlBaseConnectorScheduler:
    def __init__(self, extra_config):
        self.kv_recompute_threshold = int(extra_config.get("kv_recompute_threshold", 64))
        self.decoder_kv_blocks_ttl = extra_config.get("decoder_kv_blocks_ttl", 480)
        self.greeting = "released after a TTL of %d seconds" % self.decoder_kv_blocks_ttl

class NixlPullConnectorScheduler(NixlBaseConnectorScheduler):
    def request_finished(self):
        return time.perf_counter() + self.decoder_kv_blocks_ttl
"""

_CONNECTOR_032 = """
import time
from collections import Counter

class NixlConnectorMetadata:
    def __init__(self):
        self.reqs_to_send = {}
        self.scheduler_clock = 0.0
        self.reqs_in_batch = set()

class NixlBaseConnectorScheduler:
    def __init__(self, engine_id, ttl):
        self.engine_id = engine_id
        self.decoder_kv_blocks_ttl = ttl
        self._reqs_need_send = {}
        self._reqs_in_batch = set()

    def build_connector_meta(self, scheduler_output):
        meta = NixlConnectorMetadata()
        meta.reqs_to_send = self._reqs_need_send
        meta.scheduler_clock = time.perf_counter()
        meta.reqs_in_batch = self._reqs_in_batch
        self._reqs_in_batch = set()
        self._reqs_need_send = {}
        return meta

    def update_connector_output(self, connector_output):
        for req_id in connector_output.finished_recving or ():
            self._stop_heartbeat(req_id)

    def _stop_heartbeat(self, req_id):
        pass

class NixlPullConnectorScheduler(NixlBaseConnectorScheduler):
    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        params = request.kv_transfer_params
        if not params:
            return
        if params.get("do_remote_decode") or params.get("do_remote_prefill"):
            self._reqs_in_batch.add(request.request_id)

    def request_finished(self, request, block_ids):
        params = request.kv_transfer_params
        if not params:
            return False, None
        is_d_node = not params.get("do_remote_decode")
        if request.status != "finished":
            return False, None
        expiry = None
        ttl = self.decoder_kv_blocks_ttl if is_d_node else 30
        self._reqs_need_send[request.request_id] = time.perf_counter() + ttl
        if is_d_node:
            expiry = self._reqs_need_send[request.request_id]
        return True, dict(
            do_remote_decode=is_d_node,
            remote_request_id=request.request_id,
            remote_blocks_expiry_time=expiry,
        )

class NixlBaseConnectorWorker:
    def __init__(self):
        self._reqs_to_send = {}
        self._reqs_to_process = set()

    def _reap_expired_send_leases(self, done_sending):
        now = time.perf_counter()
        expired = [req_id for req_id, expires in self._reqs_to_send.items() if now >= expires]
        for req_id in expired:
            self._reqs_to_process.remove(req_id)
            del self._reqs_to_send[req_id]
            done_sending.add(req_id)

class NixlPullConnectorWorker(NixlBaseConnectorWorker):
    def start_load_kv(self, metadata):
        for req_id in metadata.reqs_in_batch:
            self._reqs_to_process.add(req_id)
        now_local = time.perf_counter()
        for req_id, expiration_time in metadata.reqs_to_send.items():
            if req_id in self._reqs_to_process:
                if metadata.scheduler_clock:
                    expiration_time = now_local + (
                        expiration_time - metadata.scheduler_clock
                    )
                self._reqs_to_send[req_id] = expiration_time

    def read_by_prefill(self, req_id, done_sending):
        self._reqs_to_process.remove(req_id)
        self._reqs_to_send.pop(req_id, None)
        done_sending.add(req_id)
"""

_CORE_SCHEDULER_032 = """
class Scheduler:
    def __init__(self, vllm_config):
        self.vllm_config = vllm_config
        self.defer_block_free = False
        kv_transfer_config = self.vllm_config.kv_transfer_config
        if kv_transfer_config is not None:
            multiple_inflight_batches = self.vllm_config.max_concurrent_batches > 1
            if multiple_inflight_batches and kv_transfer_config.is_kv_consumer:
                self.defer_block_free = True
        self.sched_step_seq = 0
        self.processed_step_seq = 0
        self.deferred_frees = []
        self.free_blocks = set()

    def schedule(self, blocks):
        if self.defer_block_free:
            self.sched_step_seq += 1

    def update_from_output(self):
        if self.defer_block_free:
            self.processed_step_seq += 1
            while self.deferred_frees and self.deferred_frees[0][0] <= self.processed_step_seq:
                self.free_blocks |= self.deferred_frees.pop(0)[1]

    def free(self, blocks):
        if not self.defer_block_free or self.sched_step_seq <= self.processed_step_seq:
            self.free_blocks |= set(blocks)
        else:
            self.deferred_frees.append((self.sched_step_seq, set(blocks)))

class AsyncScheduler(Scheduler):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
"""

_PULLS_032 = """
class NixlPullConnectorScheduler:
    def __init__(self):
        self._reqs_need_recv = {}

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        params = request.kv_transfer_params
        if params is not None and params.get("do_remote_prefill"):
            return 100 - num_computed_tokens, True
        if params is not None and params.get("do_remote_decode") and params.get("remote_block_ids"):
            return params["remote_num_tokens"] - num_computed_tokens, True
        return 0, False

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        params = request.kv_transfer_params
        if not params:
            return
        if params.get("do_remote_prefill") or (
            params.get("do_remote_decode") and not params.get("_remote_blocks_processed")
        ):
            if params.get("remote_block_ids"):
                self._reqs_need_recv[request.request_id] = num_external_tokens
            params["do_remote_prefill"] = False
            params["_remote_blocks_processed"] = True
"""

_SCHEDULER_OLDER = """
class NixlBaseConnectorScheduler:
    def __init__(self, extra_config):
        self.kv_recompute_threshold = 64
"""

_NIXL_BINDINGS = """
class nixlAgentConfig:
    pthrDelay = 7
    lthrDelay = 7

class nixlAgent:
    def __init__(self, name, config):
        self.name, self.config = name, config
"""

_NIXL_API = """
from . import _bindings as nixlBind

class nixl_agent:
    def __init__(self, agent_name, delay=0):
        agent_config = nixlBind.nixlAgentConfig()
        agent_config.pthrDelay = delay
        agent_config.lthrDelay = 100000
        self.agent = nixlBind.nixlAgent(agent_name, agent_config)
"""

_NIXL_META = """
import importlib, sys

for name in ("_bindings", "_api"):
    module = importlib.import_module(f"nixl_cu12.{name}")
    sys.modules[f"nixl.{name}"] = module
    setattr(sys.modules[__name__], name, module)
"""

SCHEDULER = {_CORE: _CORE_SCHEDULER_032}
"""The scheduler of the engine core: when it reuses blocks."""
PULLS = {_PULLS: _PULLS_032}
_SCHEDULERS = {_SCHEDULER: _SCHEDULER_032, **PULLS, **SCHEDULER}
VLLM_032 = {_CHAT: _CHAT_032, _COMPLETION: _COMPLETION_032, **_SCHEDULERS}
VLLM_033 = {_CHAT: _CHAT_033, _COMPLETION: _COMPLETION_033, **_SCHEDULERS}
VLLM_OLDER_SCHEDULER = {**VLLM_032, _SCHEDULER: _SCHEDULER_OLDER}
VLLM_LEASES = {_CONNECTOR: _CONNECTOR_032}
VLLM_WITHOUT_ANY = {"vllm/__init__.py": ""}
VLLM_CHANGED = {
    _CHAT: "class OpenAIServingChat: pass\nclass ChatCompletionStreamResponse: pass\n",
    _COMPLETION: _COMPLETION_032.replace("result_generator", "outputs"),
    _SCHEDULER: "raise_if_used = 1\n",
}
NIXL_151 = {
    "nixl/__init__.py": _NIXL_META,
    "nixl/_api.py": "",
    "nixl_cu12/__init__.py": "from ._api import nixl_agent\n",
    "nixl_cu12/_api.py": _NIXL_API,
    "nixl_cu12/_bindings.py": _NIXL_BINDINGS,
}
NIXL_ONE_PACKAGE = {
    "nixl/__init__.py": "",
    "nixl/_api.py": _NIXL_API,
    "nixl/_bindings.py": _NIXL_BINDINGS,
}


def write(root: Path, *trees: dict[str, str]) -> None:
    """Write modules below ``root``, and the packages that they are in."""
    for path, source in ((p, s) for tree in trees for p, s in tree.items()):
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
        for parent in file.relative_to(root).parents:
            package = root / parent / "__init__.py"
            if parent != Path() and not package.exists():
                package.write_text("")


QUEUE = {
    "vllm/__init__.py": "",
    "vllm/distributed/__init__.py": "",
    "vllm/distributed/device_communicators/__init__.py": "",
    "vllm/distributed/device_communicators/shm_broadcast.py": """
class SpinCondition:
    def __init__(self, is_reader, busy_loop_s=1):
        self.busy_loop_s = busy_loop_s if is_reader else 0

    def wait(self, timeout_ms=None):
        self.waited = timeout_ms
""",
}
"""The reader of the shared-memory queue, 0.32.0."""
