"""The two-turn proof: turn 2 of a conversation must reuse turn 1's KV from decode.

Token-id prompts, so that text that does not re-tokenise to what was generated (FACTS T4) cannot
spoil the proof; fresh random content, so that no cache can help. An ordinary chat is run as well,
because that is what users send; it is told and not judged.
"""

import asyncio
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace

import aiohttp

from pdctl.base.errors import PermissionDeniedError, UnreachableError
from pdctl.base.events import Listener, StepProgress, StepWaiting, ignore
from pdctl.base.explain import IGNORES_HANDLES, PAIR_NOT_PROVEN
from pdctl.base.facts import EngineMetrics, PairFacts, RouterFacts
from pdctl.base.process import RoleName
from pdctl.observe.endpoints import Endpoint, Endpoints
from pdctl.observe.facts import gather, has_still_to_say, read_router
from pdctl.observe.http import ask, ask_json
from pdctl.observe.metrics import growth, scrape_engine
from pdctl.observe.proof import (
    ChatTurn,
    Evidence,
    SideProbe,
    Sizes,
    VerifyReport,
    judge,
    plan_sizes,
)
from pdctl.observe.sides import probe_sides, streams_handle
from pdctl.observe.turns import Turn, TurnLimits, TurnRequest, TurnTimeoutError, send_turn

STEP = "verify"
_FIRST_WORD_S, _WORD_EVERY_S = 2.0, 10.0
_LOOKS_ON = 4
_DEFAULT_BLOCK = 128
"""Assumed where an engine does not tell its block size: the greatest that is usual."""


@dataclass(frozen=True)
class VerifyOptions:
    """How the proof is run; times in seconds.

    Attributes:
        history_tokens: length of turn 1's prompt, shortened to what the model takes.
        chat: also run an ordinary chat.
        ready_s: how long the router may take to have a pair that moves KV both ways; four times
            that as long as it has not finished to look at any, since turns would reuse nothing.
        metrics_s: how long prefill may take to show in its metrics what it pulled.
        poll_s: between two looks at either.
        limits: of each turn.
        seed: of the content; None for content that nobody has seen.
    """

    history_tokens: int = 2048
    chat: bool = True
    ready_s: float = 20.0
    metrics_s: float = 5.0
    poll_s: float = 0.25
    limits: TurnLimits = field(default_factory=lambda: TurnLimits(first_byte=180.0))
    seed: int | None = None


async def verify(
    endpoints: Endpoints,
    options: VerifyOptions | None = None,
    *,
    listen: Listener = ignore,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> VerifyReport:
    """Run the proof through the deployment's router.

    Raises:
        UnreachableError: the router or an engine does not answer; says which.
        PermissionDeniedError: a key was refused.
        BadAnswerError: the model is too short for any proof.
    """
    if endpoints.router is None:
        raise UnreachableError(
            "this deployment has no router, and the proof goes through it",
            where=endpoints.name,
            hints=["pdctl up", "pdctl router --help"],
        )
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        run = _Run(session, endpoints, endpoints.router, options or VerifyOptions(), listen, sleep)
        return await run.report()


def _is_contradicted(evidence: Evidence) -> bool:
    """The router holds prefill's flag for off, and prefill has just acted on a handle: on a busy
    machine the router's look can end too early."""
    return evidence.probe.prefill_takes_handle is True and any(
        pair.reason.startswith(IGNORES_HANDLES) for pair in evidence.router.pairs if not pair.ok
    )


def _was_overtaken(evidence: Evidence, before: RouterFacts) -> bool:
    """The router had a pair before the turns and none during them: it looks once in a second, and
    an engine can be restarted in less than that."""
    told = evidence.second.explanation if evidence.second else None
    had = any(pair.ok for pair in before.pairs)
    return had and told is not None and told.reason == PAIR_NOT_PROVEN


def _without_pair(endpoints: Endpoints, facts: RouterFacts) -> Iterator[str]:
    for engine in endpoints.engines:
        urls = (engine.known_as or engine.url, engine.url)
        pairs = [p for p in facts.pairs if p.prefill in urls or p.decode in urls]
        if not any(pair.ok for pair in pairs):
            reasons = dict.fromkeys(pair.reason for pair in pairs if pair.reason)
            yield f"{engine.name}: {'; '.join(reasons) or 'the router has no pair of it'}"


def random_words(rng: random.Random, count: int) -> str:
    """Words that nobody has written before, pronounceable, space between."""
    pairs = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    return " ".join("".join(rng.choices(pairs, k=rng.randint(2, 4))) for _ in range(count))


class _Run:
    """One run of the proof; the evidence grows from step to step."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        endpoints: Endpoints,
        router: Endpoint,
        options: VerifyOptions,
        listen: Listener,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.session, self.endpoints, self.router = session, endpoints, router
        self.options, self.listen, self.sleep = options, listen, sleep
        self.rng = (
            random.Random(options.seed) if options.seed is not None else random.SystemRandom()
        )
        self.token = uuid.uuid4().hex
        self.conversations: list[str] = []
        self.told = 0

    async def report(self) -> VerifyReport:
        facts, router = await self._everything_answers()
        evidence = await self._evidence(facts, router)
        if _was_overtaken(evidence, router):
            self._tell("the router saw an engine's restart only now: once more, when it has a pair")
            facts, router = await self._everything_answers()
            evidence = await self._evidence(facts, router)
        if _is_contradicted(evidence) and (later := await self._second_look()) is not None:
            evidence = await self._evidence(facts, later)
        return judge(evidence)

    async def _evidence(self, facts: PairFacts, router: RouterFacts) -> Evidence:
        """Both turns, and where they reused nothing what the engines say to that."""
        evidence = Evidence(self.endpoints, router)
        self._learn(evidence, facts)
        try:
            await self._prove(evidence)
            if not evidence.problem and evidence.reused and len(self.endpoints.engines) > 2:
                evidence.unproven = await self._unproven()
            if self.options.chat and not evidence.problem:
                evidence.chat = await self._chat(evidence)
        finally:
            await self._forget_conversations()
        if evidence.problem:
            await self._blame_the_dead()
        elif not evidence.reused:
            evidence.router = await self._router_facts()
            evidence.probe = await self._probe(evidence)
        return evidence

    async def _second_look(self) -> RouterFacts | None:
        """The router's facts once it has a pair after all: it asks a second time after a minute.

        None when it finds the same again, or nothing within the limit.
        """
        self._tell("asked directly, both engines take part: waiting for the router's second look")
        over = time.monotonic() + self.options.ready_s * _LOOKS_ON
        while time.monotonic() < over:
            await self.sleep(self.options.poll_s)
            facts = await self._router_facts()
            if facts.ready and any(pair.ok for pair in facts.pairs):
                return facts
        return None

    # --- before the turns ---------------------------------------------------------------

    async def _everything_answers(self) -> tuple[PairFacts, RouterFacts]:
        router = await self._wait_for_pair()
        facts = await gather(self.session, self.endpoints)
        _raise_for_dead(facts)
        return facts, router

    async def _wait_for_pair(self) -> RouterFacts:
        """The router's facts once a pair moves KV both ways, or at the limit, whatever they say.

        A router that has no such pair still serves, so the turns can show what is wrong.

        Raises:
            UnreachableError: the router, or an engine of which it has nothing to say, is dead.
        """
        started = time.monotonic()
        told, limit = _FIRST_WORD_S - _WORD_EVERY_S, self.options.ready_s
        while True:
            facts = await self._router_facts()
            waited = time.monotonic() - started
            if facts.error is not None:
                if waited < self.options.ready_s:
                    # On a loaded machine a router that has just started can be late.
                    await self.sleep(self.options.poll_s)
                    continue
                raise UnreachableError(
                    f"the router does not answer: {facts.error}",
                    where=facts.url,
                    hints=["pdctl status", "pdctl up"],
                )
            proven = facts.ready and (not facts.ours or any(pair.ok for pair in facts.pairs))
            if proven:
                return facts
            if waited >= limit == self.options.ready_s and has_still_to_say(facts):
                # Of an engine that is dead the router will not say more.
                _raise_for_dead(await gather(self.session, self.endpoints))
                limit *= _LOOKS_ON
            if waited >= limit:
                return facts
            if waited - told >= _WORD_EVERY_S:
                told = waited
                self.listen(StepWaiting(STEP, _waiting_for(facts), waited, limit))
            await self.sleep(self.options.poll_s)

    async def _unproven(self) -> tuple[str, ...] | None:
        """Engines without a proven pair, once that is settled or at the limit; None where the
        router does not say."""
        started = time.monotonic()
        while True:
            facts = await self._router_facts()
            if not facts.ours:
                return None
            left = tuple(_without_pair(self.endpoints, facts))
            if not left or time.monotonic() - started >= self.options.ready_s:
                return left
            await self.sleep(self.options.poll_s)

    async def _router_facts(self) -> RouterFacts:
        return await read_router(self.session, self.router, self.endpoints.router_key, 10.0)

    def _learn(self, evidence: Evidence, facts: PairFacts) -> None:
        metrics = [engine.metrics for engine in facts.engines if engine.metrics is not None]
        sizes = [m.block_size for m in metrics if m.block_size]
        evidence.block_size = max(sizes, default=_DEFAULT_BLOCK)
        caching = {e.metrics.prefix_caching for e in facts.role("prefill") if e.metrics}
        evidence.prefix_caching = caching.pop() if len(caching) == 1 else None
        self.model = next((e.model for e in facts.role("decode") if e.model), "")
        lengths = [e.max_model_len for e in facts.engines if e.max_model_len]
        evidence.sizes = plan_sizes(
            threshold=max(self.endpoints.threshold, evidence.router.threshold or 0),
            block_size=evidence.block_size,
            max_model_len=min(lengths, default=None),
            history=self.options.history_tokens,
        )

    # --- the turns ----------------------------------------------------------------------

    async def _prove(self, evidence: Evidence) -> None:
        sizes = evidence.sizes
        assert sizes is not None
        prompt = await self._fresh_ids(sizes.prompt)
        question = await self._fresh_ids(sizes.question)
        conversation = self._conversation()
        self._tell(f"turn 1: {sizes.prompt} tokens of random words, {sizes.answer} generated")
        first = await self._turn(
            evidence, "turn 1", prompt, sizes.answer, conversation_id=conversation
        )
        evidence.first = first
        if first is None:
            return
        if not first.token_ids:
            evidence.problem = "turn 1 came without token ids (`return_token_ids`)"
            return
        history = [*prompt, *first.token_ids, *question]
        before = await self._scrape_prefill()
        self._tell(f"turn 2: the same conversation, {len(history)} tokens")
        evidence.second = await self._turn(
            evidence, "turn 2", history, sizes.final, conversation_id=conversation
        )
        if evidence.second is None:
            return
        await self._read_pulled(evidence, before, self.options.metrics_s)
        await self._compare_cold(evidence, sizes, history)
        if not evidence.pulled:
            await self._read_pulled(evidence, before, 0.0)

    async def _compare_cold(self, evidence: Evidence, sizes: Sizes, history: list[int]) -> None:
        self._tell("turn 2 again, cold, through the router")
        cold = await self._turn(evidence, "the cold run", history, sizes.final, salt="router")
        evidence.cold = cold
        if self.endpoints.dtype != "float32":
            return
        self._tell("turn 2 again, cold, on decode alone")
        said = evidence.second.explanation if evidence.second else None
        decode = said.decode.rstrip("/") if said and said.decode else ""
        known = self.endpoints.by_url(decode) or self.endpoints.role("decode")[0]
        evidence.oracle = await self._turn(
            evidence, "the cold run on decode", history, sizes.final, salt="decode", at=known
        )

    async def _turn(
        self,
        evidence: Evidence,
        name: str,
        prompt: list[int],
        max_tokens: int,
        *,
        conversation_id: str | None = None,
        salt: str | None = None,
        at: Endpoint | None = None,
    ) -> Turn | None:
        """One completion; None, with `evidence.problem` set, when it did not work."""
        request = TurnRequest(
            model=self.model,
            prompt=prompt,
            max_tokens=max_tokens,
            ignore_eos=True,
            return_token_ids=True,
            conversation_id=conversation_id,
            cache_salt=f"{self.token}-{salt}" if salt else None,
            explain=at is None,
            api_key=self.endpoints.engine_key if at else self.endpoints.router_key,
        )
        return await self._send(evidence, name, request, at)

    async def _send(
        self, evidence: Evidence, name: str, request: TurnRequest, at: Endpoint | None = None
    ) -> Turn | None:
        url = (at or self.router).url
        try:
            turn = await send_turn(self.session, url, request, limits=self.options.limits)
        except TurnTimeoutError as error:
            evidence.problem = f"{name} hung: {error.message}"
            return None
        if turn.status in (401, 403):
            raise PermissionDeniedError(
                f"{name} was refused (HTTP {turn.status}): {turn.error_text}",
                where=url,
                hints=["check `router.api_keys_file` and `engine.api_key_file`"],
            )
        if not turn.ok:
            evidence.problem = f"{name} failed (HTTP {turn.status}): {turn.error_text}"
            return None
        return turn

    async def _fresh_ids(self, count: int) -> list[int]:
        """Ids of random words, by prefill's own tokenizer."""
        url = self.endpoints.role("prefill")[0].url + "/tokenize"
        ids: list[int] = []
        while len(ids) < count:
            body = {
                "model": self.model,
                "prompt": random_words(self.rng, count),
                "add_special_tokens": False,
            }
            answer = await ask_json(
                self.session, url, method="POST", body=body, key=self.endpoints.engine_key
            )
            tokens = answer.get("tokens")
            if not isinstance(tokens, list) or not tokens:
                raise UnreachableError("/tokenize gave no tokens", where=url)
            ids += tokens
        return ids[:count]

    # --- what prefill pulled ------------------------------------------------------------

    async def _scrape_prefill(self) -> dict[str, EngineMetrics]:
        engines = self.endpoints.role("prefill")
        key = self.endpoints.engine_key
        scrapes = await asyncio.gather(
            *(scrape_engine(self.session, engine.url, key=key) for engine in engines)
        )
        return {engine.url: metrics for engine, metrics in zip(engines, scrapes, strict=True)}

    async def _read_pulled(
        self, evidence: Evidence, before: dict[str, EngineMetrics], limit: float
    ) -> None:
        """Fill in what the prefill engine of turn 2 counted; its metrics may lag a step."""
        said = evidence.second.explanation if evidence.second else None
        engine = self.endpoints.by_url(said.prefill) if said else None
        engine = engine or self.endpoints.role("prefill")[0]
        evidence.pulled_by = engine.name
        started = time.monotonic()
        while True:
            after = await scrape_engine(self.session, engine.url, key=self.endpoints.engine_key)
            then = before[engine.url]
            evidence.pulled = growth(then.nixl_bytes, after.nixl_bytes)
            evidence.external_tokens = growth(then.external_tokens, after.external_tokens)
            if evidence.pulled or evidence.counted_none or time.monotonic() - started >= limit:
                return
            await self.sleep(self.options.poll_s)

    # --- what users send ----------------------------------------------------------------

    async def _chat(self, evidence: Evidence) -> ChatTurn:
        """Two turns of an ordinary chat. Its text may not re-tokenise to what was generated."""
        sizes = evidence.sizes
        assert sizes is not None
        aside = Evidence(self.endpoints, evidence.router)
        self._tell("an ordinary chat of two turns, for comparison")
        conversation = self._conversation()
        messages = [{"role": "user", "content": random_words(self.rng, sizes.prompt // 8)}]
        first = await self._send(
            aside, "turn 1", self._chat_request(messages, sizes.answer, conversation)
        )
        if first is None:
            return ChatTurn(problem=f"no chat: {aside.problem}")
        messages += [
            {"role": "assistant", "content": first.text},
            {"role": "user", "content": random_words(self.rng, 16)},
        ]
        second = await self._send(
            aside, "turn 2", self._chat_request(messages, sizes.final, conversation)
        )
        return ChatTurn(second, f"no chat: {aside.problem}" if second is None else "")

    def _chat_request(
        self, messages: list[dict[str, str]], max_tokens: int, conversation: str
    ) -> TurnRequest:
        return TurnRequest(
            model=self.model,
            messages=messages,
            max_tokens=max_tokens,
            ignore_eos=True,
            conversation_id=conversation,
            explain=True,
            api_key=self.endpoints.router_key,
        )

    # --- after the turns ----------------------------------------------------------------

    async def _blame_the_dead(self) -> None:
        _raise_for_dead(await gather(self.session, self.endpoints))

    async def _probe(self, evidence: Evidence) -> SideProbe:
        assert evidence.sizes is not None
        said = evidence.second.explanation if evidence.second else None
        prefill = self._reached("prefill", said.prefill if said else None)
        decode = self._reached("decode", said.decode if said else None)
        prompt = await self._fresh_ids(min(4 * evidence.block_size, evidence.sizes.second_prompt))
        where = (self.session, prefill.rstrip("/"), decode.rstrip("/"))
        sides, key = SideProbe(True, True), self.endpoints.engine_key
        if not evidence.proven_by_router:
            self._tell("asking the engines which side does not take part")
            sides = await probe_sides(
                *where, model=self.model, prompt=prompt, key=key, poll=self.options.poll_s
            )
        # What else keeps a turn from reuse, the router says by itself.
        if sides.prefill_takes_handle and (said is None or said.reason == "first_turn"):
            self._tell("asking decode whether its streamed answers bring handles")
            # Another prompt: of the first one decode may have everything.
            streams = await streams_handle(*where, model=self.model, prompt=prompt[::-1], key=key)
            sides = replace(sides, decode_streams_handle=streams)
        return sides

    def _reached(self, role: RoleName, said: str | None) -> str:
        """Where this machine reaches the engine that the router has named."""
        known = self.endpoints.by_url(said) if said else self.endpoints.role(role)[0]
        return known.url if known else said or ""

    def _conversation(self) -> str:
        self.conversations.append(f"pdctl-verify-{self.token}-{len(self.conversations)}")
        return self.conversations[-1]

    async def _forget_conversations(self) -> None:
        """Let decode free what these turns left there; a router without that call is fine."""
        for conversation in self.conversations:
            where = f"{self.router.url}/v1/conversations/{conversation}"
            try:
                key = self.endpoints.router_key
                await ask(self.session, where, method="DELETE", key=key, timeout=5.0)
            except UnreachableError:
                continue

    def _tell(self, text: str) -> None:
        # Each is a step of its own: a listener that tells one step seldom would drop the next.
        self.told += 1
        self.listen(StepProgress(f"{STEP}-{self.told}", text))


def _waiting_for(facts: RouterFacts) -> str:
    reasons = "; ".join(dict.fromkeys(pair.reason for pair in facts.pairs if pair.reason))
    return "the router to prove a prefill/decode pair" + (f" ({reasons})" if reasons else "")


def _raise_for_dead(facts: PairFacts) -> None:
    dead = [engine for engine in facts.engines if engine.error is not None]
    if dead:
        raise UnreachableError(
            f"`{dead[0].name}` does not answer",
            where=dead[0].url,
            detail=[f"{engine.name}: {engine.error}" for engine in dead],
            hints=["pdctl status", "pdctl up"],
        )
