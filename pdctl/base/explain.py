"""What the router says about one turn, and the header names that carry it: one place for both ends.

A client that sends `x-pdctl-explain: 1` gets `x-pdctl-turn` with the response's headers. It is
sent before the first content byte, so it holds what prefill did, not what decode will do.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

EXPLAIN_HEADER = "x-pdctl-explain"
TURN_HEADER = "x-pdctl-turn"
REQUEST_ID_HEADER = "x-pdctl-request-id"
CONVERSATION_HEADER = "x-conversation-id"
STATE_PATH = "/pdctl/v1/state"
REUSE_PATH = "/pdctl/v1/reuse"
TTL_PATH = "/pdctl/v1/ttl"
ENGINES_PATH = "/pdctl/v1/engines"
ADMIN_TENANT = "admin"
"""Whose API key may change how a router works."""

IGNORES_HANDLES = "prefill does nothing with a handle"
"""How the router's reason for a pair begins when prefill seems to have the flag off."""

PAIR_NOT_PROVEN = "pair_not_proven"
"""Of a turn whose handle was of a pair that no probe has proven, or not since a restart."""

Outcome = Literal["HIT", "PARTIAL", "MISS", "OFF"]


@dataclass(frozen=True)
class TurnExplanation:
    """One turn as the router saw it.

    Attributes:
        outcome: HIT (all that was possible), PARTIAL, MISS, or OFF (this request is never reused).
        reason: in one word, such as `continued` or `first_turn`; docs/router.md lists them.
        reused_tokens: pulled from decode, counted by prefill (`remote_prefill_cached_tokens`).
        prompt_tokens: length of the prompt; None when no engine said.
        prefill, decode: base URLs of the engines that served the turn.
        attached_tokens: what the router offered to prefill.
        retries: legs that were run again, by cause; empty for a turn that went straight.
    """

    outcome: Outcome
    reason: str
    reused_tokens: int
    prompt_tokens: int | None
    prefill: str
    decode: str
    attached_tokens: int = 0
    retries: tuple[str, ...] = ()

    def to_header(self) -> str:
        """One line of ASCII JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))


def read_explanation(header: str | None) -> TurnExplanation | None:
    """The explanation in a header's value; None when there is none or it is not one.

    Unknown fields are ignored: a newer router must not break an older client.
    """
    if not header:
        return None
    try:
        fields = json.loads(header)
    except ValueError:
        return None
    if not isinstance(fields, dict) or fields.get("outcome") not in get_args(Outcome):
        return None
    return TurnExplanation(
        outcome=fields["outcome"],
        reason=str(fields.get("reason") or ""),
        reused_tokens=_count(fields.get("reused_tokens")) or 0,
        prompt_tokens=_count(fields.get("prompt_tokens")),
        prefill=str(fields.get("prefill") or ""),
        decode=str(fields.get("decode") or ""),
        attached_tokens=_count(fields.get("attached_tokens")) or 0,
        retries=tuple(str(cause) for cause in fields.get("retries") or ()),
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
