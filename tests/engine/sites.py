"""Small site-packages trees that look like installed engines, made from text."""

import hashlib
import textwrap
from collections.abc import Mapping
from pathlib import Path

CONNECTOR = """
    NIXL_CONNECTOR_VERSION: int = 14

    class Scheduler:
        def __init__(self, config):
            self.backends = config.kv_transfer_config.get_from_extra_config("backends", ["UCX"])
            self.on = config.kv_transfer_config.get_from_extra_config(
                "bidirectional_kv_xfer", False
            )
            self.threshold = int(config.get_from_extra_config("kv_recompute_threshold", 64))
            self.ttl = config.get_from_extra_config("decoder_kv_blocks_ttl", 480)
            self.old = config.kv_connector_extra_config.get("enable_cross_layers_blocks", "False")
            self.other = config.something_else.get("not_a_key")

        def read(self):
            logger.warning("Declining expired remote read for %s from engine %s.", 1, 2)
    """

CONFIG = """
    @config
    class KVTransferConfig:
        kv_connector: str | None = None
        engine_id: str | None = None
        kv_buffer_device: str = "cuda"
        kv_role: str | None = None
        kv_connector_extra_config: dict = {}
        kv_load_failure_policy: str = "fail"
        not_a_field = 1

    class Other:
        stray: int = 1
    """

PROTOCOL = """
    def check(kv_transfer_params):
        if kv_transfer_params.get("prompt_token_ids") is not None:
            kv_transfer_params.pop("prompt_token_ids")
    """

CHAT_QUIET = """
    class OpenAIServingChat:
        async def chat_completion_stream_generator(self, request, results):
            async for res in results:
                yield Chunk(id=1)

        async def full(self, res):
            return Response(kv_transfer_params=res.kv_transfer_params)
    """

CHAT_STREAMS = """
    class OpenAIServingChat:
        async def chat_completion_stream_generator(self, request, results):
            async for chunk in self.chat_completion_stream_generator_raw(request, results):
                yield chunk

        async def chat_completion_stream_generator_raw(self, request, results):
            async for res in results:
                yield Chunk(id=1, kv_transfer_params=res.kv_transfer_params)
    """

COMPLETION_QUIET = CHAT_QUIET.replace("chat_completion_stream", "completion_stream")
COMPLETION_STREAMS = """
    class OpenAIServingCompletion:
        async def completion_stream_generator(self, request, results):
            yield Chunk(kv_transfer_params=results.kv_transfer_params)
    """

FACTORIES = """
    def register(app):
        enabled = getattr(app.state.args, "enable_scale_out", False)
    """

ROUTER = """
    @router.post("/v1/chat/completions/render")
    async def render():
        pass
    """

SCHEDULER = """
    def finish(params):
        params["remote_prefill_cached_tokens"] = 1
    """

VLLM_0_32 = {
    "vllm/__init__.py": "raise RuntimeError('must not be imported')",
    "vllm/_version.py": "__version__ = version = '0.32.0'",
    "vllm/config/kv_transfer.py": CONFIG,
    "vllm/distributed/kv_transfer/kv_connector/v1/nixl/scheduler.py": CONNECTOR,
    "vllm/entrypoints/openai/chat_completion/protocol.py": PROTOCOL,
    "vllm/entrypoints/openai/chat_completion/serving.py": CHAT_QUIET,
    "vllm/entrypoints/openai/completion/serving.py": COMPLETION_QUIET,
    "vllm/entrypoints/scale_out/factories.py": FACTORIES,
    "vllm/entrypoints/scale_out/render/api_router.py": ROUTER,
    "vllm/v1/core/sched/scheduler.py": SCHEDULER,
}


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """Put modules under a folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return folder


def distribution(
    site: Path, name: str, version: str, files: Mapping[str, str] = {}, metadata: str = ""
) -> None:
    """Install a distribution by hand: its files, METADATA and RECORD."""
    write(site, files)
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}"
    write(site, {f"{info}/METADATA": head})
    lines = [
        f"{path},sha256={hashlib.sha256((site / path).read_bytes()).hexdigest()},"
        f"{(site / path).stat().st_size}"
        for path in [*files, f"{info}/METADATA"]
    ]
    write(site, {f"{info}/RECORD": "\n".join([*lines, f"{info}/RECORD,,", ""])})
