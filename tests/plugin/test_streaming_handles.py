"""The handle in streamed answers."""

import asyncio
import importlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

from pdctl.plugin import _guard, streaming_handles
from pdctl.plugin._guard import Guard, Outcome
from tests.plugin import engine_shapes
from tests.plugin.conftest import InstallEngine

CHAT = "vllm.entrypoints.openai.chat_completion.serving"
COMPLETION = "vllm.entrypoints.openai.completion.serving"
HANDLE = {"remote_block_ids": [[1, 2]], "remote_engine_id": "d", "remote_host": "ü"}


@dataclass
class Output:
    text: str
    finish_reason: str | None = None
    index: int = 0


@dataclass
class Result:
    outputs: list[Output]
    kv_transfer_params: object = None


@dataclass
class Engine:
    """What vLLM's engine client gives: results, and it notices when nobody listens any more."""

    results: list[Any]
    error: Exception | None = None
    closed: list[bool] = field(default_factory=list)

    async def generate(self) -> AsyncIterator[Any]:
        try:
            for result in self.results:
                await asyncio.sleep(0)
                yield result
            if self.error:
                raise self.error
        finally:
            self.closed.append(True)


def _apply() -> Outcome:
    guard = Guard(report=lambda outcomes: None)
    guard.apply("x", streaming_handles.lever, {})
    for name in (CHAT, COMPLETION):
        importlib.import_module(name)
    return guard.outcomes["x"]


def _chat(engine: Engine, request: dict[str, Any] | None = None) -> AsyncIterator[str]:
    serving: Any = importlib.import_module(CHAT).OpenAIServingChat()
    stream: AsyncIterator[str] = serving.chat_completion_stream_generator(
        request or {}, engine.generate(), "id", "m", [], None, None, mm_token_counts=None
    )
    return stream


def _completion(engine: Engine) -> AsyncIterator[str]:
    serving: Any = importlib.import_module(COMPLETION).OpenAIServingCompletion()
    stream: AsyncIterator[str] = serving.completion_stream_generator(
        {}, [], engine.generate(), "id", 1, "m", num_prompts=2, tokenizer=None, request_metadata={}
    )
    return stream


async def _all(stream: AsyncIterator[str]) -> list[str]:
    return [chunk async for chunk in stream]


def _events(chunks: list[str]) -> list[dict[str, Any]]:
    return [json.loads(chunk[6:]) for chunk in chunks if chunk.startswith("data: {")]


def _turn(handle: object = HANDLE) -> list[Result]:
    last = Result([Output("né}", "stop")], handle)
    return [Result([Output("a")]), Result([Output("b}\n")]), last]


async def test_the_finish_chunk_and_no_other_has_the_handle(install_engine: InstallEngine) -> None:
    install_engine(engine_shapes.VLLM_032)
    importlib.import_module(CHAT)
    request = {"include_usage": True}
    stock = await _all(_chat(Engine(_turn()), request))
    assert _apply().state == "applied"

    chunks = await _all(_chat(Engine(_turn()), request))

    assert len(chunks) == len(stock) == 5
    assert chunks[:2] + chunks[3:] == stock[:2] + stock[3:]
    added = ',"kv_transfer_params":' + json.dumps(HANDLE, separators=(",", ":"))
    assert chunks[2] == stock[2].removesuffix("}\n\n") + added + "}\n\n"
    assert _events(chunks)[2]["kv_transfer_params"] == HANDLE


async def test_nothing_changes_without_a_handle(install_engine: InstallEngine) -> None:
    install_engine(engine_shapes.VLLM_032)
    importlib.import_module(CHAT)
    stock = await _all(_chat(Engine(_turn(handle=None))))
    _apply()
    assert await _all(_chat(Engine(_turn(handle=None)))) == stock


async def test_each_of_several_prompts_has_its_own(install_engine: InstallEngine) -> None:
    install_engine(engine_shapes.VLLM_032)
    _apply()
    first, second = {"remote_request_id": "0"}, {"remote_request_id": "1"}
    results = [
        (0, Result([Output("a")])),
        (1, Result([Output("b", "length")], second)),
        (0, Result([Output("c")])),
        (0, Result([Output("d", "stop")], first)),
    ]
    events = _events(await _all(_completion(Engine(results))))
    assert [event.get("kv_transfer_params") for event in events] == [None, second, None, first]


async def test_a_handle_that_is_no_json_is_left_out(
    install_engine: InstallEngine, caplog: pytest.LogCaptureFixture
) -> None:
    install_engine(engine_shapes.VLLM_032)
    _apply()
    events = _events(await _all(_chat(Engine(_turn(handle={"bad": object()})))))
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    assert "kv_transfer_params" not in events[-1]
    assert "chunk left as it was" in caplog.text


async def test_errors_of_the_engine_pass_as_they_are(install_engine: InstallEngine) -> None:
    install_engine(engine_shapes.VLLM_032)
    _apply()
    engine = Engine([Result([Output("a")], HANDLE)], error=ValueError("dead"))
    chunks = await _all(_chat(engine))
    assert chunks[-2:] == ['data: {"error":{"message":"dead"}}\n\n', "data: [DONE]\n\n"]
    assert engine.closed == [True]


async def test_a_client_that_leaves_reaches_the_engine(install_engine: InstallEngine) -> None:
    install_engine(engine_shapes.VLLM_032)
    _apply()
    engine = Engine(_turn())
    stream: Any = _chat(engine)
    await anext(stream)
    await stream.aclose()
    await asyncio.sleep(0.01)
    assert engine.closed == [True]


async def test_a_cancelled_stream_reaches_the_engine(install_engine: InstallEngine) -> None:
    install_engine(engine_shapes.VLLM_032)
    _apply()
    engine = Engine([Result([Output("a")])] * 100_000)
    task = asyncio.create_task(_all(_chat(engine)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.closed == [True]


def test_not_needed_where_the_engine_does_it(install_engine: InstallEngine) -> None:
    install_engine(engine_shapes.VLLM_033)
    outcome = _apply()
    assert outcome.state == "not-needed"
    assert "ChatCompletionStreamResponse has kv_transfer_params" in outcome.why
    serving = importlib.import_module(CHAT).OpenAIServingChat
    assert not _guard.is_patched(serving, "chat_completion_stream_generator")


def test_not_needed_where_the_generator_mentions_it(install_engine: InstallEngine) -> None:
    # vLLM's models accept undeclared fields: the field alone is not proof enough.
    install_engine(
        {
            path: source.replace(', "kv_transfer_params": 1', "").replace("_raw", "")
            for path, source in engine_shapes.VLLM_033.items()
        }
    )
    outcome = _apply()
    assert outcome.state == "not-needed"
    assert "completion_stream_generator handles kv_transfer_params" in outcome.why


def test_applied_once(install_engine: InstallEngine) -> None:
    install_engine(engine_shapes.VLLM_032)
    first = _apply()
    serving = importlib.import_module(CHAT).OpenAIServingChat
    patched = serving.chat_completion_stream_generator
    assert _apply() == first
    assert serving.chat_completion_stream_generator is patched
    events = _events(asyncio.run(_all(_chat(Engine(_turn())))))
    assert [event.get("kv_transfer_params") for event in events] == [None, None, HANDLE]


def test_not_applicable_where_the_shape_is_another(install_engine: InstallEngine) -> None:
    install_engine(engine_shapes.VLLM_CHANGED)
    outcome = _apply()
    assert outcome == Outcome(
        "not-applicable",
        "OpenAIServingChat has no chat_completion_stream_generator; "
        "OpenAIServingCompletion.completion_stream_generator takes no result_generator",
    )


def test_not_applicable_where_it_is_no_generator(install_engine: InstallEngine) -> None:
    chat = f"{CHAT.replace('.', '/')}.py"
    source = engine_shapes.VLLM_032[chat].replace("yield ", "await ")
    install_engine({**engine_shapes.VLLM_032, chat: source})
    outcome = _apply()
    assert outcome.state == "not-applicable"
    assert outcome.why.endswith("chat_completion_stream_generator is not an async generator")


def test_not_applicable_behind_the_rust_front_end() -> None:
    with pytest.raises(_guard.NotApplicable, match="Rust"):
        streaming_handles.lever({"VLLM_USE_RUST_FRONTEND": "1"})
    assert streaming_handles.lever({"VLLM_USE_RUST_FRONTEND": "0"}).targets


async def test_the_tap_is_the_iterator_it_stands_for() -> None:
    class Results:
        note = "kept"

        def __aiter__(self) -> AsyncIterator[str]:
            return self._go()

        async def _go(self) -> AsyncIterator[str]:
            yield "one"

    tap = streaming_handles._Tap(Results())
    assert tap.note == "kept"
    assert [each async for each in tap] == ["one"]
    assert tap.handle is None


@pytest.mark.parametrize(
    "chunk",
    [
        "data: [DONE]\n\n",
        ": ping\n\n",
        "data: {broken\n\n",
        'data: {"choices":[]}\n\n',
        'data: {"choices":[{"finish_reason":null}]}\n\n',
        'data: {"choices":[{"finish_reason":"stop"}],"kv_transfer_params":null}\n\n',
        'data: {"choices":null}\n\n',
    ],
)
def test_what_is_no_finish_chunk_is_left_alone(chunk: str) -> None:
    assert streaming_handles._with_handle(chunk, HANDLE) == chunk


def test_wrapping_keeps_the_signature(install_engine: InstallEngine) -> None:
    install_engine(engine_shapes.VLLM_032)
    module: ModuleType = importlib.import_module(CHAT)
    stock = module.OpenAIServingChat.chat_completion_stream_generator
    wrapped = streaming_handles.carrying_handles(stock)
    assert (wrapped.__name__, wrapped.__doc__) == (stock.__name__, stock.__doc__)
