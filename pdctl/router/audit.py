"""Is what a reused turn said of its first token what a cold run says? Pure.

Tokens and their KV are matched exactly before anything is reused; this looks at the outcome, for
what that cannot see: blocks that were read after they were given away, a transfer that garbled
them, an engine whose layout is not what was proven. The first token's distribution depends on
every token of the prompt, so it is compared, and never the text.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

from pdctl.router.eligible import CHAT, Endpoint
from pdctl.router.legs import choices_of, mapping, prefill_body

TOP = 5
# Two cold runs differ too, by how the engine batched them; so much more is a breach.
_TIMES_NOISE = 3.0

Result = Literal["ok", "breach", "unstable", "unreadable"]
Logprobs = Mapping[str, float]
"""The likeliest tokens and the natural logarithms of their probabilities."""


@dataclass(frozen=True)
class Comparison:
    """What three runs of one prompt say.

    Attributes:
        result: `unstable` when the cold runs do not agree among themselves, so that nothing can
            be said; `unreadable` when an answer has no logprobs.
        distance: between the reused run and the nearer cold one, in nats.
        noise: between the cold ones.
    """

    result: Result
    distance: float = 0.0
    noise: float = 0.0


def asking(endpoint: Endpoint) -> dict[str, Any]:
    """Fields that make an engine tell the first token's logprobs, tokens by id."""
    asked: dict[str, Any] = {"logprobs": TOP, "return_tokens_as_token_ids": True}
    return asked | {"logprobs": True, "top_logprobs": TOP} if endpoint == CHAT else asked


def cold_body(endpoint: Endpoint, body: Mapping[str, Any], salt: str) -> dict[str, Any]:
    """The same prompt computed anew: no cache has this salt, and nothing is retained for it."""
    cold = prefill_body(endpoint, body, {}) | asking(endpoint) | {"cache_salt": salt}
    del cold["kv_transfer_params"]
    return cold


def first_logprobs(answer: Mapping[str, Any]) -> Logprobs | None:
    """The first token's likeliest, from a chat or a completion; None when they are not there."""
    choices = choices_of(answer)
    said = mapping(choices[0].get("logprobs")) if choices else {}
    content, top = said.get("content"), said.get("top_logprobs")
    if isinstance(content, list) and content:
        listed = mapping(content[0]).get("top_logprobs")
        pairs = [(mapping(one).get("token"), mapping(one).get("logprob")) for one in listed or ()]
    else:
        pairs = list(mapping(top[0]).items()) if isinstance(top, list) and top else []
    found = [(str(token), value) for token, value in pairs if _is_number(value)]
    # The token that was drawn is listed too, however unlikely it was.
    return dict(sorted(found, key=lambda pair: -pair[1])[:TOP]) or None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)


def compare(
    reused: Logprobs | None, cold: Logprobs | None, again: Logprobs | None, *, floor: float
) -> Comparison:
    """Judge a reused run by two cold ones.

    Args:
        floor: nats; less than this is never a breach.
    """
    if not (reused and cold and again):
        return Comparison("unreadable")
    noise = _distance(cold, again)
    if noise == math.inf:
        return Comparison("unstable", noise=noise)
    distance = min(_distance(reused, cold), _distance(reused, again))
    breach = distance > max(floor, _TIMES_NOISE * noise)
    return Comparison("breach" if breach else "ok", distance, noise)


def _distance(one: Logprobs, other: Logprobs) -> float:
    """The least that the two can differ by, at the token where they differ most.

    A token that only one of them lists is less likely in the other than all that this one lists.
    Without a common token they have nothing to do with each other.
    """
    if not one.keys() & other.keys():
        return math.inf
    return max(_excess(one, other), _excess(other, one))


def _excess(one: Logprobs, other: Logprobs) -> float:
    least = min(other.values())
    return max(
        abs(value - other[token]) if token in other else max(0.0, value - least)
        for token, value in one.items()
    )
