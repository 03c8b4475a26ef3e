"""Plays a synthetic log against a router, faster than it says, and watches decode's memory."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise

import aiohttp

from pdctl.config.model import RouterLimits
from tests.e2e.harness import Pair, Routed, random_ids

ANSWER = 12
AT_ONCE = 2
"""Turns at a time; more only wait for each other on a small machine."""
PATIENT = RouterLimits(reuse_base=60.0, prefill_base=60.0)
"""For a machine that has other things to do: a turn that is late is logged so."""


@dataclass(frozen=True)
class Planned:
    """A turn of the log.

    Attributes:
        at: seconds after the begin of the log; not before the turn before it has ended.
        conversation: a number.
        more: tokens that it adds to what was said.
    """

    at: float
    conversation: int
    more: int


@dataclass(frozen=True)
class Seen:
    """Decode at one moment.

    Attributes:
        at: seconds since the epoch.
        blocks: in use.
        quiet: no turn was on its way meanwhile, so that all of them are retained ones.
    """

    at: float
    blocks: int
    quiet: bool


@dataclass
class Traffic:
    """Turns that are on their way, and how many have begun or ended so far."""

    running: int = 0
    moves: int = 0

    def begins(self, turns: int) -> None:
        """So many begin, or end when it is less than nothing."""
        self.running += turns
        self.moves += 1


def agents(count: int, seconds: float, seed: int, *, away: float) -> list[Planned]:
    """Sessions of an agent that begin in the first half.

    Tools answer within seconds. Now and then somebody is away for longer, and in the end all are.
    """
    chance = random.Random(seed)
    turns = []
    for conversation in range(count):
        at, more = chance.random() * seconds / 2, chance.randrange(300, 900)
        for _ in range(chance.randrange(2, 7)):
            if at < seconds:
                turns.append(Planned(at, conversation, more))
            more = chance.randrange(40, 200)
            long = chance.random() < 0.2
            at += 3 + (away * (1 + chance.random()) if long else chance.expovariate(1 / 30))
    return sorted(turns, key=lambda turn: turn.at)


def pauses_of(turns: Sequence[Planned]) -> list[float]:
    """Seconds of the log between two turns of a conversation."""
    starts: dict[int, list[float]] = {}
    for turn in turns:
        starts.setdefault(turn.conversation, []).append(turn.at)
    return [then - one for times in starts.values() for one, then in pairwise(times)]


async def play(
    router: Routed, turns: Sequence[Planned], traffic: Traffic, *, faster: float
) -> dict[str, int]:
    """All turns, each when its time has come. Gives how many ended with which outcome."""
    began = time.monotonic()
    by_conversation: dict[int, list[Planned]] = {}
    for turn in turns:
        by_conversation.setdefault(turn.conversation, []).append(turn)
    outcomes: dict[str, int] = {}
    seats = asyncio.Semaphore(AT_ONCE)

    async def talk(number: int, planned: Sequence[Planned]) -> None:
        prompt: list[int] = []
        # A client of its own each: who has nothing more to say hangs up.
        keep = aiohttp.TCPConnector(keepalive_timeout=300)
        async with aiohttp.ClientSession(connector=keep) as session:
            for place, turn in enumerate(planned):
                await asyncio.sleep(began + turn.at / faster - time.monotonic())
                prompt += random_ids(number * 100 + place, turn.more)
                async with seats:
                    traffic.begins(1)
                    told = await router.send(
                        session, prompt=prompt, max_tokens=ANSWER, conversation_id=f"c{number}"
                    )
                    traffic.begins(-1)
                assert told.ok, told.error_text
                assert told.token_ids is not None
                assert told.explanation is not None
                assert told.explanation.retries == ()
                prompt = [*prompt, *told.token_ids]
                said = told.explanation.outcome
                outcomes[said] = outcomes.get(said, 0) + 1

    await asyncio.gather(*(talk(*each) for each in by_conversation.items()))
    return outcomes


@asynccontextmanager
async def watched(
    pair: Pair, session: aiohttp.ClientSession, traffic: Traffic, *, every: float = 0.2
) -> AsyncIterator[list[Seen]]:
    """Decode's blocks in use, looked at again and again until the block ends."""
    seen: list[Seen] = []

    async def look() -> None:
        while True:
            at, moves = time.time(), traffic.moves
            metrics = await pair.metrics(session, "decode")
            assert metrics.kv_usage is not None
            assert metrics.num_blocks is not None
            # One of them is never given to anybody, and not counted.
            blocks = round(metrics.kv_usage * (metrics.num_blocks - 1))
            quiet = not traffic.running and traffic.moves == moves
            seen.append(Seen(at, blocks, quiet and not (metrics.running or metrics.waiting)))
            await asyncio.sleep(every)

    task = asyncio.create_task(look())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
