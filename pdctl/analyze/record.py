"""One request as `analyze` sees it, whatever log it stands in."""

from typing import Annotated

import msgspec

Seconds = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Span = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


class Plain(msgspec.Struct, gc=False):
    """What every log has; of a log that has no more, nothing more is kept.

    Attributes:
        conversation_id: which conversation the request belongs to.
        ts: arrival, seconds since the epoch.
        prompt_tokens: length of the whole prompt.
    """

    conversation_id: str | int
    ts: Seconds
    prompt_tokens: Count


class Rich(msgspec.Struct, gc=False):
    """A request of a log that says more. None: this line does not say.

    Attributes:
        conversation_id, ts, prompt_tokens: as above; None makes the line one without a turn.
        output_tokens: tokens of the answer; logs also call them `response_tokens`,
            `completion_tokens`.
        reused_tokens: pulled from decode.
        ttft_ms: arrival to the first token.
        total_ms: arrival to the end of the answer.
        tenant: whose key it was; conversations of two tenants are two, whatever their ids.
    """

    conversation_id: str | int | None = None
    ts: Seconds | None = None
    prompt_tokens: Count | None = None
    output_tokens: Count | None = None
    reused_tokens: Count | None = None
    ttft_ms: Span | None = None
    total_ms: Span | None = None
    response_tokens: Count | None = None
    completion_tokens: Count | None = None
    tenant: str | int | None = None


Row = Plain | Rich
RICH_KEYS = frozenset(Rich.__struct_fields__) - frozenset(Plain.__struct_fields__)
"""A log that has one of these keys is read in full."""

UNNAMED = "-"
"""What our router writes for a request whose conversation nobody can tell."""
