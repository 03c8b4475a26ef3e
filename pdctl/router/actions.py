"""What a turn asks the shell to do, and what can come of it. Values only.

A turn (`core.run_turn`) yields an action and is sent what came of it. Of each action, the first
line says after the arrow what that is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pdctl.base.explain import Outcome
from pdctl.router import audit
from pdctl.router.eligible import Endpoint
from pdctl.router.handle import Conversation, Handle, Scope
from pdctl.router.legs import ClientWants, Harvest

Settled = Literal["consumed", "unknown"]
Kind = Literal["status", "unreachable", "timeout", "stream_error"]


# What to do …


@dataclass(frozen=True)
class Know:
    """Is a handle there for which it is worth to render the prompt? → bool."""

    scope: Scope
    conversation: Conversation


@dataclass(frozen=True)
class Find:
    """Look up FREE handles that share a beginning with a packed prompt → list[Found]."""

    scope: Scope
    prompt: bytes
    conversation: Conversation


@dataclass(frozen=True)
class Render:
    """Ask a prefill server for the ids of a prompt → Ids, or None if it cannot say.

    Attributes:
        path: `/tokenize`, or the endpoint's own rendering.
        meanwhile: what may be worked out while prefill renders, and costs no time then.
    """

    url: str
    path: str
    body: dict[str, Any]
    meanwhile: Callable[[], object] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Take:
    """Claim a handle → Handle, or None when it is not FREE any more."""

    handle_id: str


@dataclass(frozen=True)
class Settle:
    """Say what became of a claimed handle → None."""

    handle: Handle
    outcome: Settled
    reason: str


@dataclass(frozen=True)
class MakeRoom:
    """Reserve room for a request on decode, and release what is least worth for it → None.

    Attributes:
        tokens: prompt and answer, as far as can be told.
    """

    decode: str
    tokens: int


@dataclass(frozen=True)
class Prefill:
    """Run the prefill leg → Answer or Failure.

    A leg that carries a handle is never aborted: with a receive and a send pending, an abort is
    the known way to crash the engine (vllm#46240).

    Attributes:
        path: the client's own, or that for completions where prefill is given ids.
        uncached: tokens that prefill has to compute, as far as is known.
    """

    url: str
    path: Endpoint
    body: dict[str, Any]
    limit: float
    carries_handle: bool
    uncached: int


@dataclass(frozen=True)
class Audit:
    """Run a reused prompt again cold, later, and compare → None.

    Attributes:
        body: the client's request, as engines may see it.
        said: the first token's logprobs of the reusing run; None when prefill gave none.
    """

    request_id: str
    endpoint: Endpoint
    body: Mapping[str, Any]
    prefill: str
    decode: str
    said: audit.Logprobs | None


@dataclass(frozen=True)
class OpenDecode:
    """Start the decode leg and read as far as the first event → Opened or Failure.

    Attributes:
        tokens: prompt and answer, as far as can be told.
        rank: the data-parallel rank whose prefix cache has the conversation.
    """

    url: str
    body: dict[str, Any]
    tokens: int
    rank: int | None = None


@dataclass(frozen=True)
class Relay:
    """Send decode's answer on, but for its end → Relayed.

    Attributes:
        report: what is known of the turn by now, for who asked for it.
        cached_tokens: what the client is told that was not computed; None leaves decode's word.
        hold_end: keep the end back until `Finish`, since the handle is in it.
    """

    report: "Report"
    wants: ClientWants
    cached_tokens: int | None
    hold_end: bool


@dataclass(frozen=True)
class Finish:
    """Send the end of the answer, which waited for the handle to be kept → None."""


@dataclass(frozen=True)
class Reply:
    """Send an error to the client as an engine gave it → None."""

    failure: "Failure"


@dataclass(frozen=True)
class Keep:
    """Put a handle into the store → None. What has to go for it is released.

    Attributes:
        fresh: it is of the turn that ends now, not one that is put back.
        calls_tool: that turn's answer called a tool, so its client will be back.
    """

    handle: Handle
    fresh: bool = False
    calls_tool: bool = False


@dataclass(frozen=True)
class Release:
    """Tell decode, by way of prefill, to free a handle's blocks → None."""

    prefill: str
    decode: str
    model: str
    params: Mapping[str, Any]
    reason: str


@dataclass(frozen=True)
class Alarm:
    """Something that must not happen did → None. Logged as an error and counted."""

    kind: str
    text: str


Action = (
    Know
    | Find
    | Render
    | Take
    | Settle
    | MakeRoom
    | Prefill
    | Audit
    | OpenDecode
    | Relay
    | Finish
    | Reply
    | Keep
    | Release
    | Alarm
)

# … and what came of it.


@dataclass(frozen=True)
class Answer:
    """An engine answered 200 with a JSON object."""

    json: dict[str, Any]
    seconds: float


@dataclass(frozen=True)
class Failure:
    """A leg failed before anything was sent to the client.

    Attributes:
        status: HTTP status of the engine; 0 when it did not answer.
        kind: `status`, `unreachable`, `timeout` or `stream_error`.
        body, content_type: what it said, to be passed on.
        unsent: the engine surely did not get the request.
    """

    status: int
    kind: Kind
    body: bytes = b""
    content_type: str = "application/json"
    url: str = ""
    unsent: bool = False

    @property
    def client_status(self) -> int:
        """What the client is told: the engine's own status, else a gateway's."""
        if self.status >= 400:
            return self.status
        return 504 if self.kind == "timeout" else 502

    @property
    def refused(self) -> bool:
        """The request itself is at fault (4xx), so no other engine would take it."""
        return 400 <= self.status < 500


@dataclass(frozen=True)
class Opened:
    """Decode answered 2xx; nothing was sent to the client yet."""

    status: int


@dataclass(frozen=True)
class Relayed:
    """Decode's answer has come whole, or broke off, or the client left.

    Attributes:
        harvest: what decode told in passing.
        blocked: seconds spent waiting for a slow client; decode may have finished that much
            earlier than its last event was read.
    """

    harvest: Harvest
    blocked: float = 0.0


@dataclass
class Report:
    """What the turn was, for the log, the metrics and whoever asks."""

    outcome: Outcome = "MISS"
    reason: str = "first_turn"
    reused_tokens: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    attached_tokens: int = 0
    prefill: str = ""
    decode: str = ""
    prefill_s: float | None = None
    retries: list[str] = field(default_factory=list)
    status: int = 200
    retained: str = ""
    dropped: list[str] = field(default_factory=list)
