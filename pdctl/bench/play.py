"""Playing conversations against the router: who sends what when, and what is noted of it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pdctl.base.errors import PdctlError
from pdctl.bench.rows import TurnRow
from pdctl.bench.workload import Script, Step, content, fresh_tokens, next_prompt
from pdctl.observe.turns import Turn, TurnRequest

Send = Callable[[TurnRequest], Awaitable[Turn]]
Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True)
class Asking:
    """What all turns of a cell have in common.

    Attributes:
        salt: nobody else's, so that no prefix cache knows what an earlier cell asked.
        pool: token ids of ordinary text.
        words: words of ordinary text, for chats; empty: token ids are sent.
        tokens_a_word: of those words, in the mean.
    """

    cell: str
    attempt: int
    model: str
    salt: str
    pool: Sequence[int]
    key: str | None = field(default=None, repr=False)
    words: Sequence[str] = ()
    tokens_a_word: float = 1.0


@dataclass
class _Talk:
    """A conversation as it grows."""

    number: int
    script: Script
    history: list[int] = field(default_factory=list)
    messages: list[dict[str, str]] = field(default_factory=list)
    said: int = 0

    @property
    def over(self) -> bool:
        return self.said >= len(self.script.steps)


class Play:
    """One cell's conversations.

    Args:
        note: is given each turn when it is over.
        gap_s: from an answer's end to the conversation's next turn.
    """

    def __init__(
        self,
        scripts: Sequence[Script],
        asking: Asking,
        send: Send,
        note: Callable[[TurnRow], None],
        *,
        gap_s: float = 0.0,
        sleep: Sleep = asyncio.sleep,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._talks = [_Talk(number, script) for number, script in enumerate(scripts)]
        self._asking, self._send, self._note = asking, send, note
        self._gap_s, self._sleep, self._clock = gap_s, sleep, clock

    async def first_turns(self, clients: int) -> None:
        """The first turn of every conversation."""
        await self._closed(clients, turns=1, gap_first=False)

    async def later_turns(self, clients: int) -> None:
        """All that is left; each client plays a conversation to its end, then the next one."""
        longest = max((len(talk.script.steps) for talk in self._talks), default=0)
        await self._closed(clients, turns=longest, gap_first=True)

    async def as_due(self) -> None:
        """All turns when they are due; a turn waits for the answer before it."""
        began = self._clock()
        async with asyncio.TaskGroup() as group:
            for talk in self._talks:
                group.create_task(self._on_time(talk, began))

    async def _closed(self, clients: int, *, turns: int, gap_first: bool) -> None:
        waiting = iter([talk for talk in self._talks if not talk.over])
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(self._client(waiting, turns, gap_first))

    async def _client(self, waiting: Iterator[_Talk], turns: int, gap_first: bool) -> None:
        for talk in waiting:
            for number in range(turns):
                if talk.over:
                    break
                if self._gap_s and (gap_first or number):
                    await self._sleep(self._gap_s)
                if not await self._turn(talk, 0.0):
                    talk.said = len(talk.script.steps)  # a history with a hole goes no further

    async def _on_time(self, talk: _Talk, began: float) -> None:
        while not talk.over:
            step = talk.script.steps[talk.said]
            late = 0.0
            if step.due_s is not None:
                ahead = began + step.due_s - self._clock()
                late = max(0.0, -ahead)
                await self._sleep(max(0.0, ahead))
            elif self._gap_s:
                await self._sleep(self._gap_s)
            if not await self._turn(talk, late):
                return

    async def _turn(self, talk: _Talk, late_s: float) -> bool:
        step = talk.script.steps[talk.said]
        talk.said += 1
        request = self._request(talk, step)
        sent_at = time.time()
        try:
            turn = await self._send(request)
        except PdctlError as error:
            self._note(self._failed(talk, sent_at, late_s, error.message))
            return False
        self._note(self._row(talk, sent_at, late_s, turn))
        return turn.ok and self._remember(talk, request, turn)

    def _request(self, talk: _Talk, step: Step) -> TurnRequest:
        asking = self._asking
        count = fresh_tokens(len(talk.history), step)
        fresh = content(asking.pool, talk.script.key, talk.said, count)
        common = {
            "model": asking.model,
            "max_tokens": step.answer,
            "ignore_eos": True,
            "cache_salt": asking.salt,
            "conversation_id": f"{asking.salt}-{talk.number}",
            "explain": True,
            "api_key": asking.key,
        }
        if asking.words:
            count = max(1, round(count / asking.tokens_a_word))
            text = " ".join(asking.words[number % len(asking.words)] for number in fresh[:count])
            messages = [*talk.messages, {"role": "user", "content": text}]
            return TurnRequest(messages=messages, **common)  # type: ignore[arg-type]
        prompt = next_prompt(talk.history, step, fresh)
        return TurnRequest(prompt=prompt, return_token_ids=True, **common)  # type: ignore[arg-type]

    def _remember(self, talk: _Talk, request: TurnRequest, turn: Turn) -> bool:
        if request.messages is not None:
            answer = {"role": "assistant", "content": turn.text}
            talk.messages = [*map(dict, request.messages), answer]
            return True
        assert isinstance(request.prompt, list)
        talk.history = [*request.prompt, *(turn.token_ids or ())]
        return turn.token_ids is not None

    def _row(self, talk: _Talk, sent_at: float, late_s: float, turn: Turn) -> TurnRow:
        said = turn.explanation
        return TurnRow(
            **self._place(talk, sent_at, late_s),
            error=turn.error_text or ("" if turn.ok else f"HTTP {turn.status}"),
            ttft_ms=_ms(turn.ttft_s),
            tpot_ms=_tpot_ms(turn),
            total_ms=round(turn.total_s * 1000, 3),
            prompt_tokens=turn.prompt_tokens,
            output_tokens=turn.output_tokens,
            reused_tokens=said.reused_tokens if said else None,
            outcome=said.outcome if said else "",
            reason=said.reason if said else "",
            retries=list(said.retries) if said else [],
        )

    def _failed(self, talk: _Talk, sent_at: float, late_s: float, error: str) -> TurnRow:
        return TurnRow(
            **self._place(talk, sent_at, late_s),
            error=error,
            ttft_ms=None,
            tpot_ms=None,
            total_ms=round((time.time() - sent_at) * 1000, 3),
            prompt_tokens=None,
            output_tokens=None,
            reused_tokens=None,
            outcome="",
            reason="",
        )

    def _place(self, talk: _Talk, sent_at: float, late_s: float) -> dict[str, Any]:
        return {
            "cell": self._asking.cell,
            "attempt": self._asking.attempt,
            "conversation": talk.number,
            "turn": talk.said,
            "sent_at": sent_at,
            "late_ms": round(late_s * 1000, 3),
        }


def _tpot_ms(turn: Turn) -> float | None:
    """From the first to the last token, per token after the first."""
    if turn.ttft_s is None or not turn.itl_s or (turn.output_tokens or 0) < 2:
        return None
    assert turn.output_tokens is not None
    return round(sum(turn.itl_s) * 1000 / (turn.output_tokens - 1), 3)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
