"""Lever ``streaming_handles``: the KV handle in streamed answers (FACTS L1, T9).

vLLM 0.32.0 and older return ``kv_transfer_params`` only in answers that are not streamed, so a
streamed turn leaves its KV pinned on D with nobody knowing how to reach it. The lever looks at the
engine's results on their way into the two stream generators and adds the handle to the chunk that
carries the ``finish_reason`` of the same result: where 0.33.0 has it. Every other byte stays.
"""

import contextlib
import functools
import inspect
import json
import types
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from ._guard import (
    LOGGER,
    Lever,
    NotApplicable,
    NotNeeded,
    Target,
    attribute,
    is_patched,
    mentions,
    replace,
)

_FIELD = "kv_transfer_params"
_RESULTS = "result_generator"
_PREFIX = "data: "

Stream = Callable[..., AsyncIterator[str]]


def lever(env: Mapping[str, str]) -> Lever:
    """Return the lever for the endpoints of chat and of completions."""
    if env.get("VLLM_USE_RUST_FRONTEND", "0").strip() not in ("", "0"):
        raise NotApplicable("the Rust front end answers instead of the Python one")
    openai = "vllm.entrypoints.openai"
    return Lever(
        targets=(
            Target(
                f"{openai}.chat_completion.serving",
                functools.partial(
                    _patch,
                    serving="OpenAIServingChat",
                    method="chat_completion_stream_generator",
                    chunk="ChatCompletionStreamResponse",
                ),
            ),
            Target(
                f"{openai}.completion.serving",
                functools.partial(
                    _patch,
                    serving="OpenAIServingCompletion",
                    method="completion_stream_generator",
                    chunk="CompletionStreamResponse",
                ),
            ),
        )
    )


def _patch(module: types.ModuleType, serving: str, method: str, chunk: str) -> str:
    owner = attribute(module, serving)
    done = f"{serving}.{method} adds {_FIELD} to the finish chunk"
    if is_patched(owner, method):
        return done
    stream = attribute(owner, method)
    _check_needed(stream, attribute(module, chunk))
    _check_shape(stream)
    replace(owner, method, carrying_handles(stream))
    return done


def _check_needed(stream: Any, chunk: Any) -> None:
    # Two signs, as vLLM's models accept fields that they do not declare.
    if _FIELD in getattr(chunk, "model_fields", {}):
        raise NotNeeded(f"{chunk.__name__} has {_FIELD} in this vLLM")
    if mentions(stream, _FIELD):
        raise NotNeeded(f"{stream.__qualname__} handles {_FIELD} in this vLLM")


def _check_shape(stream: Any) -> None:
    if not inspect.isasyncgenfunction(stream):
        raise NotApplicable(f"{stream.__qualname__} is not an async generator")
    if _RESULTS not in inspect.signature(stream).parameters:
        raise NotApplicable(f"{stream.__qualname__} takes no {_RESULTS}")


def carrying_handles(stream: Stream) -> Stream:
    """Wrap a stream generator so that its finish chunks carry the handle of their result."""
    signature = inspect.signature(stream)

    @functools.wraps(stream)
    async def carrying(*args: Any, **kwargs: Any) -> AsyncIterator[str]:
        bound = signature.bind(*args, **kwargs)
        results = _Tap(bound.arguments[_RESULTS])
        bound.arguments[_RESULTS] = results
        chunks: Any = stream(*bound.args, **bound.kwargs)
        # Closed at once when the client leaves, as it would be without this layer around it.
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                yield chunk if results.handle is None else _with_handle(chunk, results.handle)

    return carrying


class _Tap:
    """Passes the engine's results on and keeps the handle of the latest one.

    The latest and not the first: with several prompts or ``n > 1`` each finished sequence has its
    own, and a stream generator yields all chunks of a result before it asks for the next. (Where
    vLLM merges results of several sequences, handles get lost before we or 0.33.0 see them.)
    """

    def __init__(self, results: Any) -> None:
        self._results = results
        self._next = aiter(results)
        self.handle: object = None

    def __aiter__(self) -> "_Tap":
        return self

    async def __anext__(self) -> Any:
        result = await anext(self._next)
        output = result[1] if isinstance(result, tuple) else result  # (index of prompt, output)
        self.handle = getattr(output, _FIELD, None)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._results, name)  # should a version do more than iterate


def _with_handle(chunk: str, handle: object) -> str:
    try:
        if not _is_finish(chunk):
            return chunk
        end = chunk.rindex("}")
        added = json.dumps(handle, separators=(",", ":"))
        return f'{chunk[:end]},"{_FIELD}":{added}{chunk[end:]}'
    except Exception as error:  # the client's stream matters more than its reuse
        LOGGER.warning("pdctl plugin: streaming_handles: chunk left as it was: %s", error)
        return chunk


def _is_finish(chunk: str) -> bool:
    if not chunk.startswith(_PREFIX + "{"):
        return False
    event = json.loads(chunk[len(_PREFIX) :])
    if _FIELD in event:
        return False
    return any(choice.get("finish_reason") for choice in event.get("choices", ()))
