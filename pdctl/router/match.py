"""How much of a retained turn a new prompt may reuse. Pure; token ids in, a count out.

The engine never compares tokens (FACTS T3), it compares counts only. So the router must: a handle
goes to prefill only for tokens that are equal, and only as far as their KV is known to exist.
"""

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_ID_BYTES = 4
_EARLY = 64


def packed(ids: object) -> bytes | None:
    """A list of ids in the compact form that handles keep: 4 bytes each, in native order.

    None for anything that is not a list of non-negative 32-bit integers.
    """
    if not isinstance(ids, list):
        return None
    try:
        return array("I", ids).tobytes()
    except (OverflowError, TypeError):
        return None


def count(tokens: bytes) -> int:
    """Number of packed ids."""
    return len(tokens) // _ID_BYTES


def common_prefix(left: bytes, right: bytes) -> int:
    """Number of leading ids that are equal. O(n) by memcmp, bisecting to the first difference."""
    low, high = 0, min(len(left), len(right))
    # Most prompts that differ do so early.
    if left[:_EARLY] != right[:_EARLY]:
        high = min(high, _EARLY)
    if left[:high] == right[:high]:
        return high // _ID_BYTES
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low // _ID_BYTES


@dataclass(frozen=True)
class Retained:
    """What decode holds after a turn, as far as it is certain.

    Attributes:
        tokens: packed prompt ids followed by generated ids; prompt ids only when the generated
            ones are not certain (their count differs from what the engine billed).
        certain: how many leading tokens surely have KV. The last generated token has none yet,
            so it is `len(prompt) + len(generated) - 1`, and never more than `remote_num_tokens`,
            which by itself can be too high (FACTS 10).
    """

    tokens: bytes
    certain: int


def retained(
    prompt: bytes,
    generated: bytes,
    *,
    completion_tokens: int | None,
    remote_num_tokens: int | None,
) -> Retained:
    """What may be relied on from a finished turn's packed ids and the engine's own counts."""
    claimed = remote_num_tokens or 0
    if completion_tokens is None or completion_tokens != count(generated):
        # Parsers can hide ids (FACTS 10), so the positions after the prompt are unknown.
        return Retained(prompt, min(count(prompt), claimed))
    tokens = prompt + generated
    return Retained(tokens, min(count(tokens) - 1, claimed))


def reusable_tokens(held: Retained, prompt: bytes) -> int:
    """Tokens of a packed prompt that prefill may pull. Zero or more."""
    return reusable(common_prefix(held.tokens, prompt), held.certain, count(prompt))


def reusable(equal: int, certain: int, prompt: int) -> int:
    """The same from counts: equal leading tokens, those that surely have KV, and the prompt's own.

    One token is always left to compute: a request whose every token is there has nothing to run.
    """
    return max(0, min(equal, certain, prompt - 1))


def attachable(tokens: int, block_size: int) -> int:
    """`tokens`, less one where they fill their blocks exactly.

    Prefill answers only how many prompt tokens it did not compute, its own prefix cache included
    (`remote_prefill_cached_tokens`). Its own cache holds whole blocks. So a count that equals an
    attached count which is no multiple of a block says for certain that blocks were pulled.
    """
    return tokens - 1 if tokens % block_size == 0 else tokens


def worth_claiming(tokens: int, certain: int, *, own: bool) -> bool:
    """Whether to use a handle of `certain` tokens up for `tokens` of them.

    A handle is gone after its first use, but the turn's own handle then holds the shared part. So
    what may be lost is the rest of it. In its own conversation that rest was most likely edited
    away, unless it is by far the greater part: then this is a side call with the same system
    prompt. Another conversation's handle is for that one, unless the prompt goes on from it.
    """
    return 4 * tokens >= certain if own else 10 * tokens >= 9 * certain


def unproven(params: Mapping[str, Any]) -> str | None:
    """Why this handle's blocks cannot be reused exactly, or None when they can.

    One full-attention KV group without context or pipeline parallelism is what was proven.
    """
    groups = params.get("remote_block_ids")
    if not isinstance(groups, list) or not groups:
        return "no_blocks"
    if len(groups) != 1 or not isinstance(groups[0], list):
        return "several_kv_groups"
    if packed(groups[0]) is None or packed([params.get("remote_num_tokens") or 0]) is None:
        return "no_numbers"
    if params.get("dcp_size", 1) not in (None, 1) or params.get("pp_size", 1) not in (None, 1):
        return "context_or_pipeline_parallel"
    if params.get("transfer_mode", "pull") not in (None, "pull"):
        return "transfer_mode"
    return None


def covers(params: Mapping[str, Any], block_size: int) -> bool:
    """True when the blocks listed can hold the tokens claimed: else the block size is not this."""
    tokens = params.get("remote_num_tokens") or 0
    return len(params["remote_block_ids"][0]) >= math.ceil(tokens / block_size)
