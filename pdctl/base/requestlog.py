"""One line of the router's request log: exactly what `analyze` reads. No contents, ever."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class RequestRecord:
    """A finished request.

    Attributes:
        conversation_id: the client's hint, or one made from the matched conversation.
        ts: wall-clock arrival, seconds since the epoch.
        prompt_tokens, output_tokens: counted by the engine; None when it did not say.
        reused_tokens: pulled from decode, counted by prefill (`remote_prefill_cached_tokens`).
        outcome: HIT, PARTIAL, MISS or OFF.
        reason: why not more was reused, such as `first_turn`, `expired`, `diverged`.
        ttft_ms: arrival to the first content byte sent to the client.
        status: HTTP status the client saw.
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

    def as_dict(self) -> dict[str, object]:
        """Keys in the order they are written."""
        return asdict(self)
