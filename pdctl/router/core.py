"""One request's way through the router, without a loop, a socket or a clock of its own.

`run_turn` is a generator: it yields what to do and is sent what came of it. Tests hold whole
conversations with it; `pdctl.router.driver` does the same with real engines.

The rules it keeps (docs/router.md): reuse only equal tokens with certain KV; a handle is used once;
whatever goes wrong with a handle, the request goes on without it; decode's status is known before
the client hears anything; nothing is retried once decode has begun to answer.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pdctl.base.transfer import FIRST_TURN, for_pull, is_handle
from pdctl.router import audit, legs, match, prefixes
from pdctl.router.actions import (
    Action,
    Alarm,
    Answer,
    Audit,
    Failure,
    Find,
    Finish,
    Keep,
    Know,
    MakeRoom,
    OpenDecode,
    Opened,
    Prefill,
    Relay,
    Relayed,
    Release,
    Render,
    Reply,
    Report,
    Settle,
    Take,
)
from pdctl.router.eligible import COMPLETIONS, Endpoint, excluded, is_plain, render_request, shape
from pdctl.router.fleet import Fleet
from pdctl.router.handle import Conversation, Handle, Scope, rank
from pdctl.router.ids import Ids
from pdctl.router.legs import ClientWants, Harvest
from pdctl.router.prefixes import Key
from pdctl.router.store import Found

# Turns of each shape, and then one in so many, in which prefill renders for itself as well.
_RENDERED_TWICE_FIRST = 3
_RENDERED_TWICE = 16
# Clients may make up fields, and so shapes. When all are forgotten, they are looked at again.
_MOST_SHAPES = 1000
# Tokens of an answer whose length the client does not limit, and the most that is reserved.
_USUAL_ANSWER = 512
_LONG_ANSWER = 4096


@dataclass(frozen=True)
class TurnRequest:
    """A parsed request.

    Attributes:
        body: the client's JSON object, as it came.
        conversation: what it says about the conversation it belongs to.
        audited: should it reuse, what prefill says of the first token is compared with cold runs.
    """

    endpoint: Endpoint
    body: Mapping[str, Any]
    tenant: str
    conversation: Conversation
    request_id: str
    audited: bool = False

    @cached_property
    def keys(self) -> Sequence[Key]:
        """Names of ever longer beginnings of the prompt, with their sizes in estimated tokens.

        By them, prefill servers that computed them lately are known.
        """
        return prefixes.keys(self.endpoint, self.body)


@dataclass
class Policy:
    """What the router was told, and what it learned not to trust.

    Attributes:
        threshold: fewer reusable tokens than this are recomputed.
        ttl: seconds for which a handle is offered.
        share: share of conversations for which reuse and retention are on, 0 to 1.
        tenant_shares: the same for tenants that have one of their own.
        distrusted: request shapes for which prefill computed with other ids than it had said.
        seen: how many turns of each shape have reused.
    """

    threshold: int
    ttl: float
    prefill_base: float
    prefill_per_1k_tokens: float
    reuse_base: float
    share: float = 1.0
    tenant_shares: dict[str, float] = field(default_factory=dict)
    distrusted: set[str] = field(default_factory=set)
    seen: Counter[str] = field(default_factory=Counter)

    def may_force(self, shape: str) -> bool:
        """Whether prefill is given the ids it rendered, and does not render a second time.

        It is not in some turns of each shape, so that what it makes by itself is still seen.
        """
        if len(self.seen) >= _MOST_SHAPES and shape not in self.seen:
            self.seen.clear()
        self.seen[shape] += 1
        return self.seen[shape] > _RENDERED_TWICE_FIRST and self.seen[shape] % _RENDERED_TWICE != 0

    def reuses(self, tenant: str, conversation: Conversation) -> bool:
        """Whether reuse is on for a conversation; the same answer each time."""
        share = self.tenant_shares.get(tenant, self.share)
        return zlib.crc32(conversation.key.encode()) < share * 2**32

    @property
    def least_tokens(self) -> int:
        """Fewer than this are not worth a pull, whatever the threshold: there has to be one."""
        return max(1, self.threshold)

    def prefill_limit(self, uncached: int, *, reusing: bool) -> float:
        """Seconds prefill may take: grows with what it has to compute."""
        base = self.reuse_base if reusing else self.prefill_base
        return base + self.prefill_per_1k_tokens * uncached / 1000


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
        self.ttl = policy.ttl
        self.outages = 0
        self.claimed: Handle | None = None
        self.turns = 0
        self.prompt_ids: Ids | None = None
        self.gave_ids = False
        self.decode: str | None = None
        self.cached_tokens: int | None = None
        self.no_prefill = "prefill_down"

    @property
    def packed(self) -> bytes | None:
        """The prompt's ids as handles keep them."""
        return self.prompt_ids.packed if self.prompt_ids is not None else None

    @cached_property
    def size(self) -> int:
        """Tokens of the prompt, estimated until it is rendered."""
        keys = self.request.keys
        return keys[-1][1] if keys else _rough_length(self.body)

    @cached_property
    def known(self) -> dict[str, int]:
        """By prefill server: tokens of the prompt's beginning that it may have computed lately."""
        return self.fleet.prefixes.known(self.request.keys, self.size)

    def run(self) -> Turn:
        kv = yield from self._first_leg()
        result = yield from self._decode_leg(kv)
        if isinstance(result, Failure) and self._worth_again(result, kv):
            # Prefill's blocks did not arrive, or decode died: both legs once more (rule 6).
            self.report.retries.append("decode_failed")
            self.report.reason = "decode_failed"
            avoid = [result.url] if self._another(result.url) else []
            kv = yield from self._cold_prefill()
            result = yield from self._decode_leg(kv, avoid)
            if isinstance(result, Failure) and self._blocks_lost(result, kv):
                result = yield from self._decode_alone(result)
        if isinstance(result, Failure):
            if result.kind == "timeout" and self._another(result.url):
                self.fleet.silent(result.url)
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

    def _blocks_lost(self, failure: Failure, kv: dict[str, Any] | None) -> bool:
        return (
            kv is not None
            and not failure.refused
            and failure.kind in ("status", "stream_error")
            and not self._another(failure.url)
        )

    def _decode_alone(self, failure: Failure) -> Generator[Action, Any, Opened | Failure]:
        """No blocks reach decode, twice in a row: it can compute the prompt as well."""
        self.fleet.blocks_lost(self.report.prefill, failure.url)
        self.report.retries.append("blocks_lost")
        self.report.reason = "blocks_lost"
        self.report.prefill, self.cached_tokens, self.prompt_ids = "", None, None
        result = yield from self._decode_leg(None)
        return result

    # Stage 1: is this a request to reuse for, and to retain?

    def _may_retain(self) -> bool:
        if not self.policy.reuses(self.request.tenant, self.request.conversation):
            self.report.outcome, self.report.reason = "OFF", "reuse_off"
            return False
        if reason := excluded(self.request.endpoint, self.body, renders=self._renders()):
            self.report.reason = reason
            return False
        if self.shape in self.policy.distrusted:
            self.report.reason = "distrusted_shape"
            return False
        return True

    def _renders(self) -> bool:
        """Whether prefill tells a prompt's ids from the request as it is, and not from a part."""
        servers = [engine for engine in self.fleet.prefill.values() if engine.serves]
        return bool(servers) and all(engine.renders for engine in servers)

    # Stage 2: the handle, if there is one that fits, and the servers.

    def _first_leg(self) -> Generator[Action, Any, dict[str, Any] | None]:
        """Returns what decode needs to pull; None when decode shall do it all."""
        found = yield from self._candidates()
        prefill = (yield from self._claim(found)) or self._cold_choice([])
        self.decode = self.fleet.choose_decode(
            hint=self.claimed.decode if self.claimed else None,
            held=self.claimed.held.certain if self.claimed else 0,
            tokens=self.size,
            prefill=prefill,
        )
        if self.decode is not None:
            yield MakeRoom(self.decode, self._decode_size())
        elif self.claimed is None:
            return None  # nobody could take what prefill made
        if self.claimed is None or prefill is None:
            return (yield from self._cold_prefill(prefill))
        answer = yield from self._reusing_prefill(self.claimed, prefill)
        if answer is None:
            return (yield from self._cold_prefill())
        return self._accept(answer, prefill)

    def _candidates(self) -> Generator[Action, Any, list[Found]]:
        """What might be reused, best first."""
        if not self.retain or not any(each.serves for each in self.fleet.prefill.values()):
            return []
        if not (yield Know(self.scope, self.request.conversation)):
            return []
        ids = yield from self._rendered()
        if ids is None or (prompt := ids.packed) is None:
            self.report.reason = "prompt_not_rendered"
            return []
        self.prompt_ids, self.size = ids, match.count(prompt)
        self.known = self.fleet.prefixes.known(self.request.keys, self.size)
        found: list[Found] = yield Find(self.scope, prompt, self.request.conversation)
        for one in found:
            if one.prefill:
                self.known[one.prefill] = max(self.known.get(one.prefill, 0), one.equal)
        return sorted(found, key=lambda one: (min(one.equal, one.certain), one.deadline))[::-1]

    def _rendered(self) -> Generator[Action, Any, Ids | None]:
        """The prompt's ids: the client's own where it sends ids, which need no rendering."""
        given = self.body.get("prompt")
        if isinstance(given, list):
            return Ids(given)  # `excluded` let nothing but one list of ids through
        prefill = self.fleet.only_prefill() or self._cold_choice([])
        if prefill is None:
            return None
        path, body = render_request(
            self.request.endpoint, self.body, renders=self.fleet.prefill[prefill].renders
        )
        ids: Ids | None = yield Render(prefill, path, body, meanwhile=self._hints)
        return ids

    def _hints(self) -> object:
        """What is of use later, and takes as long as the prompt is."""
        return self.request.keys, self.request.conversation.anchor

    def _claim(self, found: list[Found]) -> Generator[Action, Any, str]:
        """Claim the best handle that may be used. Returns the prefill server to use it on."""
        assert self.packed is not None or not found
        reasons: list[str] = []
        for one in found:
            reason, prefill = self._judge(one)
            if not reason:
                reason = yield from self._take(one, prefill)
            if not reason:
                return prefill
            reasons.append(reason)
        if reasons:
            self.report.reason = reasons[0]
        return ""

    def _take(self, one: Found, prefill: str) -> Generator[Action, Any, str]:
        """Claim a handle. Returns why that failed, or nothing."""
        now = self.clock()
        if refused := self.fleet.reuse_starts(prefill, one.decode, one.engine_start, now):
            return refused
        taken: Handle | None = yield Take(one.id)
        # By its very tokens: what the store said was only where to look.
        if taken is not None and self._attachable(taken) >= self.policy.least_tokens:
            self.claimed, self.turns = taken, taken.turns
            return ""
        self.fleet.reuse_dropped(prefill, one.decode, one.engine_start, self.clock())
        if taken is None:
            return "taken"
        yield Keep(taken)
        return "diverged"

    def _judge(self, one: Found) -> tuple[str, str]:
        """Why this handle may not be used, or the prefill server to use it on."""
        now = self.clock()
        if now >= one.deadline:
            return "expired", ""
        own = one.conversation.key == self.request.conversation.key
        tokens = match.reusable(one.equal, one.certain, self.size)
        if match.attachable(tokens, one.block_size) < self.policy.least_tokens:
            if not own:
                return "first_turn", ""
            return ("diverged" if tokens < one.certain else "below_threshold"), ""
        if not match.worth_claiming(tokens, one.certain, own=own):
            return ("diverged" if own else "left_to_another"), ""
        refused = {
            url: self.fleet.reuse_refused(url, one.decode, one.engine_start, now)
            for url in self.fleet.prefill
        }
        prefill = self.fleet.choose_prefill(
            tokens=self.size - tokens,
            known={url: max(0, size - tokens) for url, size in self.known.items()},
            avoid=[url for url, reason in refused.items() if reason],
        )
        if prefill is None:
            return next((reason for reason in refused.values() if reason), "prefill_down"), ""
        return "", prefill

    def _attachable(self, handle: Handle) -> int:
        assert self.packed is not None
        tokens = match.reusable_tokens(handle.held, self.packed)
        return match.attachable(tokens, handle.block_size)

    def _decode_size(self) -> int:
        """Tokens that the request will hold on decode: its prompt and what it may answer."""
        asked = self.body.get("max_completion_tokens") or self.body.get("max_tokens")
        answer = asked if type(asked) is int and asked > 0 else _USUAL_ANSWER
        return self.size + min(answer, _LONG_ANSWER)

    # Stage 3: prefill, with the handle, and without it if that fails.

    def _reusing_prefill(
        self, handle: Handle, prefill: str
    ) -> Generator[Action, Any, Answer | None]:
        """Prefill with the claimed handle; None when it has to be done again without it."""
        tokens = self._attachable(handle)
        self.report.attached_tokens = tokens
        result = yield from self._pull(handle, prefill, tokens)
        if isinstance(result, Failure):
            yield from self._not_pulled(handle, prefill, result)
            return None
        yield Settle(handle, "consumed", "read")
        self.fleet.reuse_worked(prefill, handle.decode, handle.engine_start, self.clock())
        if not self._computed_these(result):
            yield from self._distrust(prefill)
            return None
        self._count_reuse(result, tokens, handle)
        if self.request.audited and self.report.reused_tokens:
            yield Audit(
                request_id=self.request.request_id,
                endpoint=self.request.endpoint,
                body=self.body,
                prefill=prefill,
                decode=handle.decode,
                said=audit.first_logprobs(result.json),
            )
        return result

    def _computed_these(self, answer: Answer) -> bool:
        """Whether prefill computed with the ids that were matched."""
        if not self.gave_ids:
            return _prompt_ids(answer.json) == self.prompt_ids
        usage = legs.mapping(answer.json.get("usage"))
        return usage.get("prompt_tokens") == match.count(self.packed or b"")

    def _pull(
        self, handle: Handle, prefill: str, tokens: int
    ) -> Generator[Action, Any, Answer | Failure]:
        kv = for_pull(handle.params, tokens, handle.block_size)
        endpoint, body = self._reusing_leg(kv)
        leg = Prefill(
            url=prefill,
            path=endpoint,
            body=self._salted(prefill, body),
            limit=self.policy.prefill_limit(self.size - tokens, reusing=True),
            carries_handle=True,
            uncached=self.size - tokens,
        )
        result: Answer | Failure
        if self.request.audited:
            result = yield replace(leg, body=leg.body | audit.asking(self.request.endpoint))
            if not (isinstance(result, Failure) and result.refused):
                return result
            # Prefill may not tell logprobs.
        result = yield leg
        return result

    def _reusing_leg(self, kv: dict[str, Any]) -> tuple[Endpoint, dict[str, Any]]:
        """Path and body: the ids that prefill rendered, so that it need not do so once more."""
        endpoint, ids = self.request.endpoint, self.prompt_ids
        exact = endpoint == COMPLETIONS or self._renders() or is_plain(self.body)
        # What is audited is what prefill makes by itself.
        self.gave_ids = exact and not self.request.audited and self.policy.may_force(self.shape)
        if ids is None or not self.gave_ids:
            return endpoint, legs.prefill_body(endpoint, self.body, kv)
        return COMPLETIONS, legs.prefill_of_ids(self.body, ids, kv)

    def _salted(self, url: str, body: dict[str, Any]) -> dict[str, Any]:
        """The same, kept away from what must not be found in the engine's prefix cache."""
        salt = self.fleet.engine(url).salt
        return {**body, "cache_salt": self.scope.salt + salt} if salt else body

    def _not_pulled(
        self, handle: Handle, prefill: str, failure: Failure
    ) -> Generator[Action, Any, None]:
        if failure.refused or failure.unsent:
            # Before the engine saw it: the handle is as good as before.
            self.fleet.reuse_dropped(prefill, handle.decode, handle.engine_start, self.clock())
            yield Keep(handle)
            self.claimed = None
        else:
            yield Settle(handle, "unknown", failure.kind)
            self.fleet.reuse_failed(prefill, handle.decode, handle.engine_start, self.clock())
        if not failure.refused:
            self.report.retries.append(f"reuse_{failure.kind}")
            self.report.reason = "prefill_failed_with_handle"

    def _distrust(self, prefill: str) -> Generator[Action, Any, None]:
        """Prefill computed with other ids than it had said: wrong KV was pulled."""
        self.policy.distrusted.add(self.shape)
        self.report.retries.append("prompt_mismatch")
        self.report.reason = "prompt_mismatch"
        # What was pulled now stands in prefill's prefix cache under this prompt, which is also how
        # the next ones of the conversation begin.
        self.fleet.doubt_cache(prefill)
        said = f"prefill computed with other ids than it had said: {self.shape}"
        yield Alarm("prompt_mismatch", said)

    def _cold_prefill(
        self, first: str | None = None
    ) -> Generator[Action, Any, dict[str, Any] | None]:
        """Prefill without a handle, on another server if the first fails.

        Args:
            first: the server that was chosen already.
        """
        if self.report.outcome != "OFF":
            self.report.outcome = "MISS"
        self.report.reused_tokens = 0
        self.gave_ids = False
        tried: list[str] = []
        while len(tried) < 2 and (prefill := first or self._cold_choice(tried)) is not None:
            first = None
            tried.append(prefill)
            body = legs.prefill_body(self.request.endpoint, self.body, FIRST_TURN)
            result: Answer | Failure = yield Prefill(
                url=prefill,
                path=self.request.endpoint,
                body=self._salted(prefill, body),
                limit=self.policy.prefill_limit(self.size, reusing=False),
                carries_handle=False,
                # What it has already is no work: counted as such, it drives conversations away.
                uncached=max(1, self.size - self.known.get(prefill, 0)),
            )
            if isinstance(result, Answer):
                return self._accept(result, prefill)
            if result.refused:
                # Decode will say the same of the client's own request, in the right words.
                self.report.reason = "prefill_refused"
                return None
            self.report.retries.append(f"prefill_{result.kind}")
            if result.kind == "timeout":
                self.fleet.silent(prefill)
        self.report.reason = self.no_prefill
        return None

    def _cold_choice(self, tried: list[str]) -> str | None:
        chosen = self.fleet.choose_prefill(tokens=self.size, known=self.known, avoid=tried)
        if chosen is not None and not self.fleet.blocks_arrive(chosen):
            # What it computed would be for nothing, and decode finds out after seconds.
            self.no_prefill = "blocks_lost"
            return None
        return chosen

    def _accept(self, answer: Answer, prefill: str) -> dict[str, Any] | None:
        self.report.prefill = prefill
        self.report.prefill_s = answer.seconds
        self.fleet.prefixes.note(self.request.keys, prefill)
        if not self.gave_ids and (ids := _prompt_ids(answer.json)) != self.prompt_ids:
            self.prompt_ids = ids
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

    def _fits(self, decode: str, kv: dict[str, Any] | None) -> bool:
        """Whether a decode server that was chosen early is still one that can do it."""
        if not self.fleet.decode[decode].serves:
            return False
        return kv is None or self.fleet.together(self.report.prefill, decode)

    def _decode_leg(
        self, kv: dict[str, Any] | None, avoid: list[str] | None = None
    ) -> Generator[Action, Any, Opened | Failure]:
        decode = self.decode
        if decode is None or avoid or not self._fits(decode, kv):
            decode = self.fleet.choose_decode(
                tokens=self.size, prefill=self.report.prefill or None, avoid=avoid or []
            )
        if decode is None:  # nobody can take what prefill made; who can, computes it again
            kv, decode = None, self.fleet.choose_decode(tokens=self.size, avoid=avoid or [])
        if decode is None:
            return Failure(503, "unreachable")
        self.report.decode = self.decode = decode
        self.ttl, self.outages = self.policy.ttl, self.fleet.decode[decode].outages
        body = legs.decode_body(
            self.request.endpoint,
            self.body,
            kv,
            prompt_ids=self.prompt_ids if self.retain else None,
            want_ids=self.retain,
        )
        here = self.claimed is not None and self.claimed.decode == decode
        result: Opened | Failure = yield OpenDecode(
            decode,
            self._salted(decode, body),
            self._decode_size(),
            rank(self.claimed.engine_id) if here and self.claimed else None,
        )
        return result

    # Stage 5: keep what decode retains, or give it back at once.

    def _after(self, relayed: Relayed) -> Generator[Action, Any, None]:
        harvest = relayed.harvest
        self.report.output_tokens = harvest.completion_tokens
        if self.report.prompt_tokens is None and harvest.usage:  # decode did it all
            self.report.prompt_tokens = legs.count_of(harvest.usage.get("prompt_tokens"))
        if not is_handle(harvest.kv):
            self.report.retained = "no_handle"
            return
        assert harvest.kv is not None
        if self.outages != self.fleet.decode[self.report.decode].outages:
            self.report.retained = "engine_gone"  # and whoever is there now has nothing to free
            return
        handle, refused = self._handle(harvest, relayed.blocked)
        self.report.retained = refused or "kept"
        if handle is None:
            yield self._release(harvest.kv, refused)
            return
        yield from self._supersede(handle)
        yield Keep(handle, fresh=True, calls_tool=harvest.calls_tool)

    def _handle(self, harvest: Harvest, blocked: float) -> tuple[Handle | None, str]:
        assert harvest.kv is not None
        decode = self.fleet.decode[self.report.decode]
        block_size = decode.block_size
        if not self.retain:
            return None, "not_reusable"
        if decode.drained:
            return None, "drained"
        if not self.policy.reuses(self.request.tenant, self.request.conversation):
            return None, "reuse_off"  # switched off meanwhile
        generated = match.packed(harvest.generated)
        if not self.packed or generated is None or not self._decode_had(self.packed, harvest):
            return None, "prompt_unknown"
        if reason := match.unproven(harvest.kv):
            return None, reason
        if not block_size or not match.covers(harvest.kv, block_size):
            return None, "block_size_unclear"
        held = match.retained(
            self.packed,
            generated,
            completion_tokens=harvest.completion_tokens,
            remote_num_tokens=harvest.kv.get("remote_num_tokens"),
        )
        if held.certain < self.policy.least_tokens:
            return None, "below_threshold"
        return (
            Handle.of(
                harvest.kv,
                scope=self.scope,
                conversation=self.request.conversation,
                decode=self.report.decode,
                prefill=self.report.prefill,
                turns=self.turns + 1,
                held=held,
                block_size=block_size,
                # It may be changed while decode works; decode took one of the two.
                deadline=self.clock() - blocked + min(self.ttl, self.policy.ttl),
            ),
            "",
        )

    def _decode_had(self, prompt: bytes, harvest: Harvest) -> bool:
        """False where decode surely computed another prompt: one that it rendered for itself."""
        counted = legs.count_of(legs.mapping(harvest.usage).get("prompt_tokens"))
        return counted in (None, match.count(prompt))

    def _supersede(self, handle: Handle) -> Generator[Action, Any, None]:
        """Free what the new handle makes useless: handles of which it is a continuation.

        A side call that shares the conversation's id is a branch and keeps its own.
        """
        tokens = handle.held.tokens
        found: list[Found] = yield Find(self.scope, tokens, handle.conversation)
        for old in found:
            if old.conversation.key == handle.conversation.key and old.equal >= old.certain:
                taken: Handle | None = yield Take(old.id)
                if taken is not None:
                    yield release_of(self.fleet, taken, "superseded")

    def _release(self, params: Mapping[str, Any], reason: str) -> Release:
        decode = self.report.decode
        # Decode may have computed all of it itself, after prefill of another cell.
        made = self.report.prefill if self.fleet.together(self.report.prefill, decode) else ""
        prefill = made or self.fleet.choose_prefill(decode=decode) or ""
        return Release(prefill, decode, self.scope.model, params, reason)


def release_of(fleet: Fleet, handle: Handle, reason: str) -> Release:
    """The release of a handle that was taken out of the store."""
    prefill = fleet.choose_prefill(decode=handle.decode) or ""
    return Release(prefill, handle.decode, handle.scope.model, handle.params, reason)


def _prompt_ids(answer: Mapping[str, Any]) -> Ids | None:
    """The prompt's ids as the engine used them: on the answer for chats, on the choice else."""
    ids = answer.get("prompt_token_ids")
    if ids is None and (choices := legs.choices_of(answer)):
        ids = choices[0].get("prompt_token_ids")
    return Ids.of(ids)


def _rough_length(body: Mapping[str, Any]) -> int:
    """Tokens of a prompt that was not rendered: at least its ids, else a byte each."""
    prompt = body.get("prompt")
    if isinstance(prompt, list | str):
        return len(prompt)
    messages = body.get("messages")
    if not isinstance(messages, list):
        return 0
    return sum(len(str(m.get("content") or "")) for m in messages if isinstance(m, Mapping))
