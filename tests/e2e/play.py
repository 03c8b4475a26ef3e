"""Lets agents play against a router, and judges what came of it."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from pdctl.base.explain import TURN_HEADER, TurnExplanation, read_explanation
from pdctl.observe.turns import Turn, TurnRequest
from tests.e2e.harness import Sender
from tests.proofs.agents import Agent, Step
from tests.proofs.oracle import Past, best_plan, peak_tokens

AT_ONCE = 4
"""Turns at a time; with as many cold ones that is all the engines take."""

TTL_SLACK_S = 0.5
"""A handle is not expected to be used at the very end of its TTL."""


@dataclass(frozen=True)
class Door:
    """A router as its clients see it.

    Attributes:
        ttl: seconds for which it offers a handle.
        keys: API key by tenant; empty for a router that asks for none.
    """

    url: str
    ttl: float
    keys: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Played:
    """A request and its answer.

    Attributes:
        until: when what it left was given back, though its TTL had not passed; else None.
        request: fields of `TurnRequest`, without name and key: what a cold run is asked.
        turn: None when the client left before its end.
        told: what the router said about it; None of another router.
        cold: decode's own answer, once it was asked.
    """

    kind: str
    agent: Agent
    request: dict[str, Any]
    door: Door
    sent: float
    ended: float
    era: int
    turn: Turn | None
    told: TurnExplanation | None
    cold: Turn | None = None
    until: float | None = None

    @property
    def ttl(self) -> float:
        """Seconds from its end for which what it left could be used; negative for never."""
        return self.door.ttl if self.until is None else min(self.door.ttl, self.until - self.ended)

    @property
    def right(self) -> bool:
        """Whether it is, token for token and letter for letter, the cold answer."""
        if self.turn is None or self.cold is None:
            return self.turn is None
        one, other = self.turn, self.cold
        ids = one.token_ids is None or one.token_ids == other.token_ids
        return ids and one.text == other.text and one.finish_reason == other.finish_reason

    @property
    def not_computed(self) -> int:
        """Prompt tokens that prefill did not compute, as the client was told."""
        if self.turn is None:
            return self.told.reused_tokens if self.told else 0
        details = (self.turn.usage or {}).get("prompt_tokens_details") or {}
        return int(details.get("cached_tokens") or 0)

    def __str__(self) -> str:
        return f"{self.kind} of {self.agent.name or '(no name)'}/{self.agent.tenant}: {self.told}"


class Stage:
    """Where agents play: the pair, the doors, and the record of what happened.

    Args:
        hurried: the door of agents that are hurried; without it, none is.
        only_streams: for a router that leaves token ids out of other answers.
    """

    def __init__(
        self,
        pair: Sender,
        session: aiohttp.ClientSession,
        door: Door,
        hurried: Door | None = None,
        *,
        only_streams: bool = False,
    ) -> None:
        self._pair, self._session = pair, session
        self._door, self._hurried = door, hurried or door
        self._only_streams = only_streams
        self._seats = asyncio.Semaphore(AT_ONCE)
        self._left = 0
        self.era = 0
        self.played: list[Played] = []

    async def play(self, agents: Sequence[Agent], turns: int) -> None:
        """Let all agents act until so many requests were made; a step is always finished."""
        self._left = turns
        async with asyncio.TaskGroup() as group:
            for agent in agents:
                group.create_task(self._live(agent))

    async def ask_cold(self) -> None:
        """Get the cold answer to everything that was answered."""
        seats = asyncio.Semaphore(2 * AT_ONCE)

        async def ask(played: Played) -> None:
            async with seats:
                played.cold = await self._pair.cold(self._session, **played.request)

        waiting = [each for each in self.played if each.turn is not None and each.cold is None]
        await asyncio.gather(*map(ask, waiting))

    async def _live(self, agent: Agent) -> None:
        door = self._hurried if agent.hurried else self._door
        while self._left > 0:
            step = agent.next()
            self._left -= len(step.requests)
            if door is not self._door:
                await asyncio.sleep(step.pause * door.ttl)
            async with self._seats:
                agent.answered(step, await self._make(agent, door, step))

    async def _make(self, agent: Agent, door: Door, step: Step) -> Turn:
        if step.hang_up:
            await self._leave(agent, door, step)
        asked = [self._ask(agent, door, step.kind, request) for request in step.requests]
        return (await asyncio.gather(*asked))[0]

    async def _ask(self, agent: Agent, door: Door, kind: str, request: dict[str, Any]) -> Turn:
        sent = time.monotonic()
        turn = await self._pair.send(self._session, door.url, **self._as(agent, door, request))
        assert turn.ok, f"{kind} of {agent.name}: {turn.status} {turn.error_text}"
        self._record(agent, door, kind, request, sent, turn, turn.explanation)
        return turn

    async def _leave(self, agent: Agent, door: Door, step: Step) -> None:
        """Send the step's request, read some of its answer, and go away."""
        request = step.requests[0]
        sent = time.monotonic()
        fields = {"model": self._pair.model, "return_token_ids": True}
        asked = TurnRequest(**fields, **self._as(agent, door, request))
        async with self._session.post(
            door.url + asked.path, json=asked.body(), headers=asked.sent_headers()
        ) as response:
            told = read_explanation(response.headers.get(TURN_HEADER))
            for _ in range(2 * step.hang_up):
                await response.content.readline()
        self._record(agent, door, step.kind, request, sent, None, told)

    def _as(self, agent: Agent, door: Door, request: dict[str, Any]) -> dict[str, Any]:
        who = {"conversation_id": agent.name, "api_key": door.keys.get(agent.tenant)}
        how = {"stream": True} if self._only_streams else {}
        return {**request, **how, **who, "explain": True}

    def _record(
        self,
        agent: Agent,
        door: Door,
        kind: str,
        request: dict[str, Any],
        sent: float,
        turn: Turn | None,
        told: TurnExplanation | None,
    ) -> None:
        now = time.monotonic()
        self.played.append(Played(kind, agent, request, door, sent, now, self.era, turn, told))


def pasts(played: Sequence[Played]) -> list[Past]:
    """What the oracle has to know."""
    prompts = {id(each.request): each.turn for each in played if each.turn is not None}
    result = []
    for each in played:
        whole = prompts[id(each.request)]  # of a turn that was left, the one sent again
        assert whole.prompt_token_ids is not None
        generated = each.turn.token_ids if each.turn is not None else ()
        assert generated is not None
        result.append(
            Past(
                tenant=each.agent.tenant,
                prompt=whole.prompt_token_ids,
                generated=generated,
                sent=each.sent,
                ended=each.ended if each.turn is not None else None,
                ttl=each.ttl,
                era=each.era,
            )
        )
    return result


@dataclass
class Tally:
    """One kind of turn."""

    turns: int = 0
    different: int = 0
    reused: int = 0
    possible: int = 0

    @property
    def share(self) -> float:
        """Of what was possible; 1 when nothing was."""
        return self.reused / self.possible if self.possible else 1.0


@dataclass(frozen=True)
class Verdict:
    """A session beside the best plan for it.

    Attributes:
        lost: tokens of the plan that were not reused, by what the router said of those turns.
    """

    kinds: Mapping[str, Tally]
    lost: Mapping[str, int]
    wrong: tuple[str, ...]
    peak_tokens: int

    @property
    def total(self) -> Tally:
        """All kinds."""
        total = Tally()
        for kind in self.kinds.values():
            total.turns += kind.turns
            total.different += kind.different
            total.reused += kind.reused
            total.possible += kind.possible
        return total

    def table(self) -> str:
        """For people."""
        rows = [f"{'kind':<12}{'turns':>6}{'differ':>8}{'reused':>9}{'possible':>10}{'share':>8}"]
        for name, tally in [*sorted(self.kinds.items()), ("all", self.total)]:
            rows.append(
                f"{name:<12}{tally.turns:>6}{tally.different:>8}{tally.reused:>9}"
                f"{tally.possible:>10}{tally.share:>8.3f}"
            )
        lost = sorted(self.lost.items(), key=lambda each: -each[1])
        return "\n".join(
            [
                *rows,
                f"not as planned: {', '.join(f'{word} {tokens}' for word, tokens in lost) or '-'}",
                f"the best plan keeps at most {self.peak_tokens} tokens on decode",
            ]
        )


def judge(
    played: Sequence[Played],
    *,
    threshold: int,
    own_cache_block: int | None,
    slack: float = TTL_SLACK_S,
) -> Verdict:
    """Compare answers with cold ones, and reuse with what was possible."""
    history = pasts(played)
    plan = best_plan(history, threshold=threshold, own_cache_block=own_cache_block, slack=slack)
    kinds: dict[str, Tally] = defaultdict(Tally)
    lost: Counter[str] = Counter()
    for each, share in zip(played, plan, strict=True):
        tally = kinds[each.kind]
        tally.turns += 1
        tally.different += not each.right
        tally.reused += each.not_computed
        # Of a turn that was left and pulled nothing, nobody knows what prefill had.
        known = each.turn is not None or share.source is not None
        tally.possible += share.tokens if known else 0
        if known and each.told and each.not_computed < share.tokens:
            lost[f"{each.told.outcome}/{each.told.reason}"] += share.tokens - each.not_computed
    wrong = tuple(str(each) for each in played if not each.right)
    return Verdict(kinds, lost, wrong, peak_tokens(history, plan))
