"""One request's way through the router, without a loop, a socket or a clock of its own.

`run_turn` is a generator: it yields what to do and is sent what came of it. Tests hold whole
conversations with it; `pdctl.router.server` does the same with real engines.

The rules it keeps (docs/router.md): reuse only equal tokens with certain KV; a handle is used once;
whatever goes wrong with a handle, the request goes on without it; decode's status is known before
the client hears anything; nothing is retried once decode has begun to answer.
"""

import zlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pdctl.base.explain import Outcome
from pdctl.router import legs, match
from pdctl.router.eligible import Endpoint, judge, shape, tokenize_body
from pdctl.router.fleet import Fleet
from pdctl.router.handle import Handle, Scope, is_handle
from pdctl.router.legs import ClientWants, Harvest

Settled = Literal["consumed", "unknown"]


@dataclass(frozen=True)
class TurnRequest:
    """A parsed request.

    Attributes:
        body: the client's JSON object, as it came.
        conversation: the client's name for the conversation; None when it gave none.
    """

    endpoint: Endpoint
    body: Mapping[str, Any]
    tenant: str
    conversation: str | None
    request_id: str


@dataclass
class Policy:
    """What the router was told, and what it learned not to trust.

    Attributes:
        threshold: fewer reusable tokens than this are recomputed.
        ttl: seconds for which a handle is offered.
        reuse_share: share of conversations for which reuse and retention are on, 0 to 1.
        distrusted: request shapes for which `/tokenize` and the engine disagreed.
    """

    threshold: int
    ttl: float
    prefill_base: float
    prefill_per_1k_tokens: float
    reuse_base: float
    reuse_share: float = 1.0
    distrusted: set[str] = field(default_factory=set)

    def reuses(self, conversation: str | None) -> bool:
        """Whether reuse is on for a conversation; the same answer each time."""
        if conversation is None:
            return self.reuse_share > 0
        return zlib.crc32(conversation.encode()) < self.reuse_share * 2**32

    def prefill_limit(self, uncached: int, *, reusing: bool) -> float:
        """Seconds prefill may take: grows with what it has to compute."""
        base = self.reuse_base if reusing else self.prefill_base
        return base + self.prefill_per_1k_tokens * uncached / 1000


# What to do …


@dataclass(frozen=True)
class Find:
    """Look up the FREE handles of a conversation → list[Handle], newest first."""

    scope: Scope
    conversation: str


@dataclass(frozen=True)
class Render:
    """Ask an engine for the ids of a prompt → list[int], or None if it cannot say."""

    url: str
    body: dict[str, Any]


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
class Prefill:
    """Run the prefill leg → Answer or Failure.

    A leg that carries a handle is never aborted: with a receive and a send pending, an abort is
    the known way to crash the engine (vllm#46240).
    """

    url: str
    body: dict[str, Any]
    limit: float
    carries_handle: bool
    prompt_tokens: int


@dataclass(frozen=True)
class OpenDecode:
    """Start the decode leg and read as far as the first event → Opened or Failure."""

    url: str
    body: dict[str, Any]
    prompt_tokens: int


@dataclass(frozen=True)
class Relay:
    """Send decode's answer on, but for its end → Relayed. The turn's facts are final by now."""

    report: "Report"
    wants: ClientWants
    cached_tokens: int | None
    asked: bool


@dataclass(frozen=True)
class Finish:
    """Send the end of the answer, which waited for the handle to be kept → None."""


@dataclass(frozen=True)
class Reply:
    """Send an error to the client as an engine gave it → None."""

    failure: "Failure"


@dataclass(frozen=True)
class Keep:
    """Put a handle into the store → list[Handle] that had to go for it."""

    handle: Handle


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
    Find
    | Render
    | Take
    | Settle
    | Prefill
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
    """

    status: int
    kind: Literal["status", "unreachable", "timeout", "stream_error"]
    body: bytes = b""
    content_type: str = "application/json"
    url: str = ""

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


Turn = Generator[Action, Any, Report]


def run_turn(
    request: TurnRequest,
    fleet: Fleet,
    policy: Policy,
    clock: Callable[[], float],
    report: Report | None = None,
) -> Turn:
    """One request from arrival to the end of its answer.

    Args:
        report: filled in on the way, so that a turn that is cut off can be told of as well.
    """
    return _Turn(request, fleet, policy, clock, report or Report()).run()


class _Turn:
    """The state of one request; each method is one stage of its way."""

    def __init__(
        self,
        request: TurnRequest,
        fleet: Fleet,
        policy: Policy,
        clock: Callable[[], float],
        report: Report,
    ) -> None:
        self.request = request
        self.fleet = fleet
        self.policy = policy
        self.clock = clock
        self.body, dropped = legs.client_body(request.body)
        self.report = report
        report.dropped = dropped
        self.wants = ClientWants.of(self.body)
        self.scope = Scope(
            tenant=request.tenant,
            model=str(self.body.get("model") or ""),
            salt=str(self.body.get("cache_salt") or ""),
        )
        self.shape = shape(request.endpoint, self.body)
        self.retain = self._may_retain()
        self.claimed: Handle | None = None
        self.prompt_ids: list[int] | None = None
        self.cached_tokens: int | None = None
        self.cold_salt: str | None = None

    def run(self) -> Turn:
        kv = yield from self._prefill_leg()
        result = yield from self._decode_leg(kv)
        if isinstance(result, Failure) and self._worth_again(result, kv):
            # Prefill's blocks did not arrive, or decode died: both legs once more (rule 6).
            self.report.retries.append("decode_failed")
            self.report.reason = "decode_failed"
            avoid = [result.url] if self._another(result.url) else []
            kv = yield from self._cold_prefill()
            result = yield from self._decode_leg(kv, avoid)
        if isinstance(result, Failure):
            self.report.status = result.client_status
            yield Reply(result)
            return self.report
        self.report.status = result.status
        relayed: Relayed = yield Relay(self.report, self.wants, self.cached_tokens, self.retain)
        # The end of the answer waits: a client that has it may send its next turn at once.
        yield from self._after(relayed)
        yield Finish()
        return self.report

    def _worth_again(self, failure: Failure, kv: dict[str, Any] | None) -> bool:
        if failure.refused or failure.kind == "timeout":
            return False
        return self._another(failure.url) or (kv is not None and failure.kind != "unreachable")

    # Stage 1: is this a request to reuse for, and to retain?

    def _may_retain(self) -> bool:
        if not self.policy.reuses(self.request.conversation):
            self.report.outcome, self.report.reason = "OFF", "reuse_off"
            return False
        verdict = judge(self.request.endpoint, self.body)
        if not verdict.eligible:
            self.report.reason = verdict.reason
            return False
        if self.shape in self.policy.distrusted:
            self.report.reason = "distrusted_shape"
            return False
        if self.request.conversation is None:
            self.report.reason = "no_conversation"
            return False
        return True

    # Stage 2: the handle, if there is one that fits.

    def _claim(self, prefill: str) -> Generator[Action, Any, int]:
        """Claim the best handle. Returns the tokens to attach, 0 for none."""
        if not self.retain or self.request.conversation is None:
            return 0
        found: list[Handle] = yield Find(self.scope, self.request.conversation)
        usable = [handle for handle in found if self._offerable(handle, prefill)]
        if not usable:
            return 0
        ids = yield from self._rendered(prefill)
        if ids is None:
            self.report.reason = "prompt_not_rendered"
            return 0
        prompt = match.token_ids(ids)
        best = max(usable, key=lambda handle: match.reusable_tokens(handle.held, prompt))
        equal = match.reusable_tokens(best.held, prompt)
        tokens = match.attachable(equal, best.block_size)
        if tokens < max(1, self.policy.threshold):
            self.report.reason = "diverged" if equal < best.held.certain else "below_threshold"
            return 0
        taken: Handle | None = yield Take(best.id)
        if taken is None:
            self.report.reason = "taken"
            return 0
        self.claimed = taken
        self.prompt_ids = ids
        return tokens

    def _rendered(self, prefill: str) -> Generator[Action, Any, list[int] | None]:
        """The prompt's ids: the client's own where it sends ids, which `/tokenize` refuses."""
        given = self.body.get("prompt")
        if isinstance(given, list):
            return given  # `judge` let nothing but one list of ids through
        ids: list[int] | None = yield Render(
            prefill, tokenize_body(self.request.endpoint, self.body)
        )
        return ids

    def _offerable(self, handle: Handle, prefill: str) -> bool:
        now = self.clock()
        if now >= handle.deadline:
            self.report.reason = "expired"
            return False
        refused = self.fleet.reuse_refused(prefill, handle.decode, handle.engine_start, now)
        if refused:
            self.report.reason = refused
            return False
        return True

    # Stage 3: prefill, with the handle, and without it if that fails.

    def _prefill_leg(self) -> Generator[Action, Any, dict[str, Any] | None]:
        """Returns what decode needs to pull; None when decode shall do it all."""
        prefill = self.fleet.choose_prefill()
        if prefill is None:
            self.report.reason = "prefill_down"
            return None
        tokens = yield from self._claim(prefill)
        if not tokens:
            return (yield from self._cold_prefill())
        answer = yield from self._reusing_prefill(prefill, tokens)
        if answer is None:
            return (yield from self._cold_prefill())
        return self._accept(answer, prefill)

    def _reusing_prefill(self, prefill: str, tokens: int) -> Generator[Action, Any, Answer | None]:
        """Prefill with the claimed handle; None when it has to be done again without it."""
        handle = self.claimed
        assert handle is not None
        assert self.prompt_ids is not None
        self.report.attached_tokens = tokens
        uncached = len(self.prompt_ids) - tokens
        result: Answer | Failure = yield Prefill(
            url=prefill,
            body=legs.prefill_body(
                self.request.endpoint,
                self.body,
                match.trim(handle.params, tokens, handle.block_size),
            ),
            limit=self.policy.prefill_limit(uncached, reusing=True),
            carries_handle=True,
            prompt_tokens=uncached,
        )
        if isinstance(result, Failure) and result.refused:
            # Refused before the engine saw it: the handle is as good as before.
            yield Keep(handle)
            self.claimed = None
            return None
        if isinstance(result, Failure):
            yield Settle(handle, "unknown", result.kind)
            self.fleet.reuse_failed(prefill, handle.decode, handle.engine_start, self.clock())
            self.report.retries.append(f"reuse_{result.kind}")
            self.report.reason = "prefill_failed_with_handle"
            return None
        yield Settle(handle, "consumed", "read")
        self.fleet.reuse_worked(prefill, handle.decode, handle.engine_start, self.clock())
        if _prompt_ids(result.json) != self.prompt_ids:
            yield from self._distrust()
            return None
        self._count_reuse(result, tokens, handle)
        return result

    def _distrust(self) -> Generator[Action, Any, None]:
        """`/tokenize` gave other ids than prefill computed with: wrong KV was pulled."""
        self.policy.distrusted.add(self.shape)
        self.report.retries.append("prompt_mismatch")
        self.report.reason = "prompt_mismatch"
        # What was pulled now stands in prefill's prefix cache under this prompt. A salt of its
        # own keeps the cold run, and nothing else, away from it.
        self.cold_salt = f"pdctl-cold-{self.request.request_id}"
        yield Alarm("prompt_mismatch", f"/tokenize and prefill disagree for {self.shape}")

    def _cold_prefill(self) -> Generator[Action, Any, dict[str, Any] | None]:
        """Prefill without a handle, on another server if the first fails."""
        if self.report.outcome != "OFF":
            self.report.outcome = "MISS"
        self.report.reused_tokens = 0
        tried: list[str] = []
        while (prefill := self.fleet.choose_prefill(avoid=tried)) is not None and len(tried) < 2:
            tried.append(prefill)
            body = legs.prefill_body(self.request.endpoint, self.body, legs.FIRST_TURN)
            if self.cold_salt:
                body["cache_salt"] = self.cold_salt
            length = len(self.prompt_ids) if self.prompt_ids else _rough_length(self.body)
            result: Answer | Failure = yield Prefill(
                url=prefill,
                body=body,
                limit=self.policy.prefill_limit(length, reusing=False),
                carries_handle=False,
                prompt_tokens=length,
            )
            if isinstance(result, Answer):
                return self._accept(result, prefill)
            if result.refused:
                # Decode will say the same of the client's own request, in the right words.
                self.report.reason = "prefill_refused"
                return None
            self.report.retries.append(f"prefill_{result.kind}")
        self.report.reason = "prefill_down"
        return None

    def _accept(self, answer: Answer, prefill: str) -> dict[str, Any] | None:
        self.report.prefill = prefill
        self.report.prefill_s = answer.seconds
        self.prompt_ids = _prompt_ids(answer.json)
        usage = legs.mapping(answer.json.get("usage"))
        self.report.prompt_tokens = legs.count_of(usage.get("prompt_tokens"))
        details = legs.mapping(usage.get("prompt_tokens_details"))
        self.cached_tokens = legs.count_of(details.get("cached_tokens"))
        kv = answer.json.get("kv_transfer_params")
        return kv if isinstance(kv, dict) else None

    def _count_reuse(self, answer: Answer, tokens: int, handle: Handle) -> None:
        kv = legs.mapping(answer.json.get("kv_transfer_params"))
        counted = kv.get("remote_prefill_cached_tokens")
        if counted is not None and counted != tokens:
            # Prefill's own prefix cache had all but a few, so it pulled nothing (and told decode
            # to free the blocks).
            self.report.reason = "prefill_had_it"
            return
        self.report.reused_tokens = tokens
        whole = tokens >= match.attachable(handle.held.certain, handle.block_size)
        self.report.outcome = "HIT" if whole else "PARTIAL"
        self.report.reason = "continued" if whole else "edited"
        if counted is None:
            # Engines before 0.31 do not count; what was attached is then the best there is.
            self.report.reason = "not_counted_by_engine"

    # Stage 4: decode.

    def _another(self, decode: str) -> bool:
        return self.fleet.choose_decode(avoid=[decode]) is not None

    def _decode_leg(
        self, kv: dict[str, Any] | None, avoid: list[str] | None = None
    ) -> Generator[Action, Any, Opened | Failure]:
        hint = self.claimed.decode if self.claimed else None
        decode = self.fleet.choose_decode(hint=hint, avoid=avoid or [])
        if decode is None:
            return Failure(503, "unreachable")
        self.report.decode = decode
        body = legs.decode_body(
            self.request.endpoint,
            self.body,
            kv,
            prompt_ids=self.prompt_ids if self.retain else None,
            want_ids=self.retain,
        )
        result: Opened | Failure = yield OpenDecode(
            decode, body, self.report.prompt_tokens or _rough_length(self.body)
        )
        return result

    # Stage 5: keep what decode retains, or give it back at once.

    def _after(self, relayed: Relayed) -> Generator[Action, Any, None]:
        harvest = relayed.harvest
        self.report.output_tokens = harvest.completion_tokens
        if not is_handle(harvest.kv):
            self.report.retained = "no_handle"
            return
        assert harvest.kv is not None
        handle, refused = self._handle(harvest, relayed.blocked)
        self.report.retained = refused or "kept"
        if handle is None:
            yield self._release(harvest.kv, refused)
            return
        yield from self._supersede(handle)
        evicted: list[Handle] = yield Keep(handle)
        for gone in evicted:
            yield self._release_handle(gone, "evicted")

    def _handle(self, harvest: Harvest, blocked: float) -> tuple[Handle | None, str]:
        assert harvest.kv is not None
        block_size = self.fleet.decode[self.report.decode].block_size
        if not self.retain or self.request.conversation is None:
            return None, "not_reusable"
        if not self.prompt_ids or not match.are_ids(harvest.generated):
            return None, "prompt_unknown"
        if reason := match.unproven(harvest.kv):
            return None, reason
        if not block_size or not match.covers(harvest.kv, block_size):
            return None, "block_size_unclear"
        held = match.retained(
            self.prompt_ids,
            harvest.generated,
            completion_tokens=harvest.completion_tokens,
            remote_num_tokens=harvest.kv.get("remote_num_tokens"),
        )
        if held.certain < max(1, self.policy.threshold):
            return None, "below_threshold"
        return (
            Handle(
                scope=self.scope,
                conversation=self.request.conversation,
                decode=self.report.decode,
                params=harvest.kv,
                held=held,
                block_size=block_size,
                deadline=self.clock() - blocked + self.policy.ttl,
            ),
            "",
        )

    def _supersede(self, handle: Handle) -> Generator[Action, Any, None]:
        """Free what the new handle makes useless: handles of which it is a continuation.

        A side call that shares the conversation's id is a branch and keeps its own.
        """
        found: list[Handle] = yield Find(self.scope, handle.conversation)
        for old in found:
            shared = match.common_prefix(old.held.tokens, handle.held.tokens)
            if shared >= old.held.certain:
                taken: Handle | None = yield Take(old.id)
                if taken is not None:
                    yield self._release_handle(taken, "superseded")

    def _release(self, params: Mapping[str, Any], reason: str) -> Release:
        prefill = self.report.prefill or self.fleet.choose_prefill() or ""
        return Release(prefill, self.report.decode, self.scope.model, params, reason)

    def _release_handle(self, handle: Handle, reason: str) -> Release:
        prefill = self.fleet.choose_prefill() or ""
        return Release(prefill, handle.decode, handle.scope.model, handle.params, reason)


def _prompt_ids(answer: Mapping[str, Any]) -> list[int] | None:
    """The prompt's ids as the engine used them: on the answer for chats, on the choice else."""
    ids = answer.get("prompt_token_ids")
    if ids is None and (choices := legs.choices_of(answer)):
        ids = choices[0].get("prompt_token_ids")
    return ids if match.are_ids(ids) else None


def _rough_length(body: Mapping[str, Any]) -> int:
    """Tokens of a prompt that was not rendered: at least its ids, else a byte each."""
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return len(prompt)
    if isinstance(prompt, str):
        return len(prompt)
    messages = body.get("messages")
    if not isinstance(messages, list):
        return 0
    return sum(len(str(m.get("content") or "")) for m in messages if isinstance(m, Mapping))
