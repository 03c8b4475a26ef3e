"""Clients that go on whatever happens: what they see of a fault, and for how long."""

import asyncio
import itertools
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import aiohttp

from pdctl.base.errors import PdctlError
from pdctl.observe.turns import Turn, TurnLimits, TurnRequest, send_turn
from tests.e2e.harness import random_ids

PAUSE_S = 0.4
ANSWER = 8
"""Tokens of each."""
_LIMITS = TurnLimits(connect=3.0, first_byte=90.0, idle=90.0, total=180.0)
_LONGEST = 1200


@dataclass(frozen=True)
class Seen:
    """One request of a client.

    Attributes:
        began, ended: monotonic seconds.
        outcome: `200`, another status, or the kind of error.
        text: what it said when it was no answer.
        reused: tokens of the prompt that came from decode.
        follows: whether the turn continues an answer.
        prompt, ids: what was asked and answered.
    """

    began: float
    ended: float
    outcome: str
    text: str
    reused: int
    follows: bool
    prompt: tuple[int, ...] = ()
    ids: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it was answered to its end."""
        return self.outcome == "200"


class Callers:
    """Conversations that go on, each turn as soon as the one before is answered."""

    def __init__(self, url: str, model: str, count: int) -> None:
        self._url, self._model, self._count = url, model, count
        self._ended = threading.Event()
        self.seen: list[Seen] = []

    def since(self, moment: float) -> list[Seen]:
        """What began at or after a moment, or was not yet answered then."""
        return [each for each in self.seen if each.ended >= moment]

    def wrong(self, decode: str, key: str | None, most: int = 40) -> list[str]:
        """Of the last answers, those that decode alone does not give when it is asked cold.

        Args:
            decode: the host's address.
            key: what its engine wants to be shown.
        """
        answered = [each for each in self.seen if each.ok][-most:]
        cold = asyncio.run(self._cold(f"http://{decode}:8100", key, answered))
        return [
            f"{each.reused} reused of {len(each.prompt)}"
            for each, ids in zip(answered, cold, strict=True)
            if each.ids != ids
        ]

    async def _cold(
        self, url: str, key: str | None, asked: Sequence[Seen]
    ) -> list[tuple[int, ...]]:
        seats = asyncio.Semaphore(4)

        async def ask(session: aiohttp.ClientSession, one: Seen) -> tuple[int, ...]:
            request = TurnRequest(
                model=self._model,
                prompt=one.prompt,
                max_tokens=ANSWER,
                ignore_eos=True,
                return_token_ids=True,
                cache_salt=uuid.uuid4().hex,
                api_key=key,
            )
            async with seats:
                turn = await send_turn(session, url, request, limits=_LIMITS)
            assert turn.ok, (turn.status, turn.error_text)
            return tuple(turn.token_ids or ())

        async with aiohttp.ClientSession() as session:
            return await asyncio.gather(*(ask(session, each) for each in asked))

    def run(self) -> None:
        """Until `end`."""
        asyncio.run(self._run())

    def end(self) -> None:
        """No new turns."""
        self._ended.set()

    async def _run(self) -> None:
        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(self._talk(session, n) for n in range(self._count)))

    async def _talk(self, session: aiohttp.ClientSession, number: int) -> None:
        prompt: list[int] = []
        for step in itertools.count():
            if self._ended.is_set():
                return
            follows = bool(prompt)
            prompt = [*prompt, *random_ids(1000 * number + step, 30 if follows else 200)]
            turn = await self._ask(session, f"caller-{number}", prompt, follows)
            if turn is None or not turn.ok or len(prompt) > _LONGEST:
                prompt = []
            else:
                prompt += turn.token_ids or ()
            await asyncio.sleep(PAUSE_S)

    async def _ask(
        self, session: aiohttp.ClientSession, name: str, prompt: Sequence[int], follows: bool
    ) -> Turn | None:
        request = TurnRequest(
            model=self._model,
            prompt=prompt,
            max_tokens=ANSWER,
            ignore_eos=True,
            return_token_ids=True,
            conversation_id=name,
            explain=True,
        )
        began = time.monotonic()
        try:
            turn = await send_turn(session, self._url, request, limits=_LIMITS)
        except PdctlError as error:
            kind, text = type(error).__name__, error.message
            self.seen.append(Seen(began, time.monotonic(), kind, text, 0, follows))
            return None
        reused = turn.explanation.reused_tokens if turn.explanation else 0
        outcome = "200" if turn.ok else str(turn.status)
        if turn.status == 200 and not turn.ok:
            outcome = "error in the stream"
        text = "" if turn.ok else (turn.error_text or "")[:200]
        said = (tuple(prompt), tuple(turn.token_ids or ()))
        self.seen.append(Seen(began, time.monotonic(), outcome, text, reused, follows, *said))
        return turn


@contextmanager
def calling(url: str, model: str = "pdctl/tiny-random", count: int = 2) -> Iterator[Callers]:
    """Clients at work as long as the context lasts."""
    callers = Callers(url, model, count)
    thread = threading.Thread(target=callers.run, daemon=True)
    thread.start()
    try:
        yield callers
    finally:
        callers.end()
        thread.join(_LIMITS.total)
        assert not thread.is_alive()


@dataclass(frozen=True)
class Told:
    """What clients saw of a fault.

    Attributes:
        requests, failed: how many.
        reused: how many of them reused.
        outcomes: of those that failed.
        recovery_s: seconds from the moment that things could work again until all did.
        reuse_s: the same, until a turn reused again.
        longest_s: the longest wait of one request.
    """

    requests: int
    failed: int
    reused: int
    outcomes: Counter[str]
    recovery_s: float | None
    reuse_s: float | None
    longest_s: float

    def __str__(self) -> str:
        return (
            f"{self.failed} of {self.requests} failed {dict(self.outcomes)}, {self.reused} reused, "
            f"recovered after {self.recovery_s} s, reuse after {self.reuse_s} s, "
            f"longest {self.longest_s:.1f} s"
        )


def told(seen: Sequence[Seen], mended: float) -> Told:
    """Sum up.

    Args:
        seen: from the fault on.
        mended: when its cause ended.
    """
    failed = [each for each in seen if not each.ok]
    last_bad = max((each.ended for each in failed), default=mended)
    good = [each.ended for each in seen if each.ok and each.ended > max(last_bad, mended)]
    reusing = [e.ended for e in seen if e.ok and e.reused and e.ended > max(last_bad, mended)]
    return Told(
        len(seen),
        len(failed),
        sum(each.reused > 0 for each in seen),
        Counter(each.outcome for each in failed),
        round(min(good) - mended, 1) if good else None,
        round(min(reusing) - mended, 1) if reusing else None,
        max((each.ended - each.began for each in seen), default=0.0),
    )
