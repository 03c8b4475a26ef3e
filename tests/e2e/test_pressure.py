"""A decode server with room for about five conversations, and many more that might come back.

Every finished turn stays on decode until its TTL ends, and what has no room waits (FACTS T6: the
sixth conversation waited 39 s). The router has to give back what is worth least, in time.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from statistics import quantiles

import aiohttp
import pytest

from pdctl.base.explain import REUSE_PATH
from pdctl.observe.turns import Turn, TurnLimits, TurnTimeoutError
from pdctl.router import retention
from tests.e2e.harness import Pair, Routed, Setup, random_ids, routed

BLOCKS = 64
"""Of 128 tokens. A conversation that is worth keeping takes ten of them."""

VALUABLE, TURNS, HISTORY, MORE = 5, 3, 900, 60
IDLE, IDLE_TOKENS = 45, 500
NEW_TOKENS = 300
ANSWER = 12
CLIENTS = 2

SMALL = Setup(
    "small-decode",
    config={
        "decode.num_gpu_blocks_override": BLOCKS,
        "model.max_model_len": 4096,
        # What stays has to stay on decode.
        "prefill.prefix_caching": False,
        # For test_renewal.py, and so that this is seen not to disturb anything here.
        "router.renew_idle": 20,
    },
)
pytestmark = pytest.mark.engines(SMALL)

short = pytest.param(40, id="short")
long = pytest.param(200, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(1800)])


class Prompts:
    """Prompts that nobody has seen before."""

    def __init__(self, seed: int) -> None:
        self._seeds: Iterator[int] = iter(range(seed * 100_000, (seed + 1) * 100_000))

    def next(self, tokens: int) -> list[int]:
        """So long."""
        return random_ids(next(self._seeds), tokens)


class Talk:
    """A conversation that grows by appending."""

    def __init__(self, name: str, prompt: list[int]) -> None:
        self.name, self.prompt = name, prompt

    async def turn(self, router: Routed, session: aiohttp.ClientSession) -> Turn:
        """The next turn."""
        turn = await router.send(
            session, prompt=self.prompt, max_tokens=ANSWER, conversation_id=self.name
        )
        assert turn.ok, turn.error_text
        assert turn.token_ids is not None
        self.prompt = [*self.prompt, *turn.token_ids, *random_ids(len(self.prompt), MORE)]
        return turn


@pytest.mark.parametrize("count", [short, long])
async def test_new_requests_find_room_and_what_is_worth_most_stays(
    pair: Pair, session: aiohttp.ClientSession, count: int
) -> None:
    prompts = Prompts(count)
    async with routed(pair, reuse_share=0.0) as unloaded, routed(pair) as router:
        alone = await first_words(unloaded, session, prompts, count // 2)
        talks = [Talk(f"valuable-{place}", prompts.next(HISTORY)) for place in range(VALUABLE)]
        for _ in range(TURNS):
            for talk in talks:
                await talk.turn(router, session)
            for _ in range(IDLE // TURNS):
                idle = Talk(f"idle-{time.monotonic_ns()}", prompts.next(IDLE_TOKENS))
                await idle.turn(router, session)

        crowded = await first_words(router, session, prompts, count)
        back = [(await talk.turn(router, session)).explanation for talk in talks]
        async with session.put(router.url + REUSE_PATH, json={"share": 0}) as answer:
            assert answer.status == 200
        alone += await first_words(unloaded, session, prompts, count // 2)

    hits = [each for each in back if each is not None and each.outcome == "HIT"]
    print(
        f"\nTTFT p50, p95 of {count} new requests: alone {told(alone)}, crowded {told(crowded)}, "
        f"ratio of p95 {p95(crowded) / p95(alone):.2f}; {len(hits)} of {VALUABLE} still HIT"
    )
    assert p95(crowded) <= 2 * p95(alone)
    assert len(hits) >= 3, back


async def test_without_release_under_pressure_a_request_waits_for_the_ttl(
    pair: Pair, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "shortfall", lambda *args, **more: 0)
    prompts = Prompts(7)
    limits = TurnLimits(first_byte=8.0, idle=8.0, total=8.0)

    async def begin(place: int) -> Turn:
        prompt, name = prompts.next(IDLE_TOKENS), f"waits-{place}"
        return await router.send(
            session, prompt=prompt, max_tokens=ANSWER, conversation_id=name, limits=limits
        )

    async with routed(pair) as router:
        answered = 0
        with pytest.raises(TurnTimeoutError):  # noqa: PT012 - until one of them waits
            while answered < BLOCKS:
                await begin(answered)
                answered += 1
        # As many as there is room for, and not one more.
        assert BLOCKS // 5 - 2 <= answered <= BLOCKS // 4
        waits = asyncio.create_task(begin(answered))
        await asyncio.sleep(4)
        assert (await pair.metrics(session, "decode")).waiting
        waits.cancel()
        async with session.put(router.url + REUSE_PATH, json={"share": 0}) as answer:
            assert answer.status == 200


async def first_words(
    router: Routed, session: aiohttp.ClientSession, prompts: Prompts, count: int
) -> list[float]:
    """Seconds to the first token of new requests, from a few clients."""
    seats = asyncio.Semaphore(CLIENTS)

    async def ask() -> float:
        async with seats:
            turn = await router.send(session, prompt=prompts.next(NEW_TOKENS), max_tokens=ANSWER)
            assert turn.ok, turn.error_text
            assert turn.ttft_s is not None
            return turn.ttft_s

    return list(await asyncio.gather(*(ask() for _ in range(count))))


def p95(times: Sequence[float]) -> float:
    return quantiles(times, n=20)[-1]


def told(times: Sequence[float]) -> str:
    return f"{quantiles(times, n=2)[0]:.3f} s, {p95(times):.3f} s"
