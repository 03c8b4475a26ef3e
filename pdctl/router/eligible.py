"""Which requests may reuse, and how their prompt's ids are asked for. Pure.

Where prefill renders a chat for others (`/v1/chat/completions/render`), it is given the request as
it is. Else `/tokenize` has to do, and there is an allow-list: every field that could change the
prompt must be one that `/tokenize` takes and treats alike (FACTS 10). Other fields pass through to
the engines untouched, but their requests run cold.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

Endpoint = Literal["/v1/chat/completions", "/v1/completions"]
CHAT: Endpoint = "/v1/chat/completions"
COMPLETIONS: Endpoint = "/v1/completions"

# Fields that never reach the prompt: sampling, streaming, bookkeeping.
_NO_EFFECT_ON_PROMPT = frozenset(
    {
        "model", "stream", "stream_options", "temperature", "top_p", "top_k", "min_p", "seed",
        "max_tokens", "max_completion_tokens", "min_tokens", "stop", "stop_token_ids",
        "ignore_eos", "include_stop_str_in_output", "skip_special_tokens",
        "spaces_between_special_tokens", "frequency_penalty", "presence_penalty",
        "repetition_penalty", "length_penalty", "logit_bias", "logprobs", "top_logprobs", "n",
        "best_of", "use_beam_search", "user", "metadata", "store", "service_tier", "priority",
        "request_id", "cache_salt", "return_token_ids", "return_tokens_as_token_ids",
        "allowed_token_ids", "bad_words", "parallel_tool_calls", "include_reasoning",
        "structured_outputs", "thinking_token_budget", "vllm_xargs", "return_prompt_text",
        "prompt_cache_key", "safety_identifier", "verbosity", "repetition_detection",
    }
)  # fmt: skip

# Fields that `/tokenize` takes and renders as the chat endpoint does.
_CHAT_RENDERED = frozenset(
    {
        "messages", "tools", "add_generation_prompt", "continue_final_message",
        "add_special_tokens", "chat_template", "chat_template_kwargs",
    }
)  # fmt: skip

_CHAT_FIELDS = _NO_EFFECT_ON_PROMPT | _CHAT_RENDERED
_COMPLETION_FIELDS = _NO_EFFECT_ON_PROMPT | {"prompt", "add_special_tokens"}

_LONGEST_SHAPE = 200

# Any value but these would need several sequences, or the prompt's own logits.
_ONLY_VALUES: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "use_beam_search": (None, False),
    "echo": (None, False),
    "prompt_logprobs": (None,),
}

# These change the prompt of some templates unless they have their default value.
_HARMLESS_VALUES: dict[str, tuple[Any, ...]] = {
    "tool_choice": ("auto",),
    "response_format": (None, {"type": "text"}),
    "suffix": (None,),
}


def excluded(endpoint: Endpoint, body: Mapping[str, Any], *, renders: bool = False) -> str | None:
    """Why a request may neither reuse nor be retained, by its fields; None when it may.

    Args:
        renders: chats are rendered from the whole request, so no field of it can be missed.

    The reason is one of a small set of words, fit for a metric's label.
    """
    for name, allowed in _ONLY_VALUES.items():
        if body.get(name) not in allowed:
            return f"excluded_{name}"
    if not (renders and endpoint == CHAT) and (reason := _lost_by_tokenize(endpoint, body)):
        return reason
    return _excluded_chat(body) if endpoint == CHAT else _excluded_completion(body)


def _lost_by_tokenize(endpoint: Endpoint, body: Mapping[str, Any]) -> str | None:
    for name, allowed in _HARMLESS_VALUES.items():
        if name in body and body[name] is not None and body[name] not in allowed:
            return f"excluded_{name}"
    fields = _CHAT_FIELDS if endpoint == CHAT else _COMPLETION_FIELDS
    known = fields | _ONLY_VALUES.keys() | _HARMLESS_VALUES.keys()
    return None if body.keys() <= known else "excluded_unknown_field"


def _excluded_chat(body: Mapping[str, Any]) -> str | None:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return "excluded_messages"
    for message in messages:
        if not isinstance(message, Mapping):
            return "excluded_messages"
        if not _is_text(message.get("content")):
            return "excluded_non_text"
    return None


def _is_text(content: object) -> bool:
    if content is None or isinstance(content, str):
        return True
    return isinstance(content, list) and all(
        isinstance(part, Mapping) and part.get("type") == "text" for part in content
    )


def _excluded_completion(body: Mapping[str, Any]) -> str | None:
    prompt = body.get("prompt")
    is_one = isinstance(prompt, str) or (isinstance(prompt, list) and all(map(_is_id, prompt)))
    return None if prompt and is_one else "excluded_prompt"


def _is_id(item: object) -> bool:
    return type(item) is int and 0 <= item < 2**32


def render_request(
    endpoint: Endpoint, body: Mapping[str, Any], *, renders: bool
) -> tuple[str, dict[str, Any]]:
    """Path and body that give the ids of the prompt of `body`.

    A completion is rendered from two fields, which `/tokenize` has too.
    """
    if endpoint == CHAT and renders:
        return f"{CHAT}/render", {**body, "stream": False, "stream_options": None}
    if endpoint == CHAT:
        names = {"model", *_CHAT_RENDERED}
    else:
        names = {"model", "prompt", "add_special_tokens"}
    rendered = {name: body[name] for name in names if body.get(name) is not None}
    if endpoint == CHAT:
        rendered["messages"] = [_as_chat_reads(message) for message in body["messages"]]
    return "/tokenize", rendered


def _as_chat_reads(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The chat endpoint takes `reasoning_content` for `reasoning`; `/tokenize` does not."""
    if "reasoning_content" not in message:
        return message
    renamed = dict(message)
    old = renamed.pop("reasoning_content")
    if renamed.get("reasoning") is None and old is not None:
        renamed["reasoning"] = old
    return renamed


def is_plain(body: Mapping[str, Any]) -> bool:
    """Whether a chat is nothing but texts and who said them, which `/tokenize` cannot miss."""
    if body.keys() & _CHAT_RENDERED != {"messages"}:
        return False
    return all(
        message.keys() == {"role", "content"} and isinstance(message["content"], str)
        for message in body["messages"]
    )


def shape(endpoint: Endpoint, body: Mapping[str, Any]) -> str:
    """Names the combination of fields of a request, to stop trusting one that proved wrong."""
    fields = ",".join(sorted(set(body) - _NO_EFFECT_ON_PROMPT))
    if len(fields) > _LONGEST_SHAPE:  # names are the client's, and may be of any length
        fields = hashlib.blake2b(fields.encode(), digest_size=16).hexdigest()
    return f"{endpoint}:{fields}"
