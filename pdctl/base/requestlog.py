"""One line of the router's request log: exactly what `analyze` reads. No contents, ever."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RequestRecord:
    """A finished request; keys are written in this order.

    Attributes:
        conversation_id: the client's hint, or an opaque one made from how the conversation began.
        ts: wall-clock arrival, seconds since the epoch.
        prompt_tokens, output_tokens: counted by the engine; None when it did not say.
        reused_tokens: pulled from decode, counted by prefill (`remote_prefill_cached_tokens`).
        outcome: HIT, PARTIAL, MISS or OFF.
        reason: why not more was reused, such as `first_turn`, `expired`, `diverged`.
        ttft_ms: arrival to the first content byte sent to the client.
        status: HTTP status the client saw.
        total_ms: arrival to the end of the answer, so `ts` plus this is when decode's clock began.
        prefill_ms: the prefill leg that counted; None when decode did it all.
        tenant: whose API key it was; empty without keys.
        decode: URL of the decode server that was asked last; empty when none was.
    """

    conversation_id: str
    ts: float
    prompt_tokens: int | None
    output_tokens: int | None
    reused_tokens: int
    outcome: str
    reason: str
    ttft_ms: float | None
    status: int
    total_ms: float
    prefill_ms: float | None
    tenant: str
    decode: str
