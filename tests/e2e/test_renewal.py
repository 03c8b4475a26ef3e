"""A short TTL that is renewed while a conversation is at work, on two real engines.

The oracle is decode's own cold answer, as everywhere; what decode keeps is read off its metrics.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import aiohttp
import psutil
import pytest

from pdctl.engine.ttl import safe_router_ttl
from pdctl.observe.turns import Turn
from tests.e2e.harness import LogMark, Pair, Routed, Setup, random_ids, routed
from tests.e2e.replay import PATIENT, Seen, Traffic, agents, pauses_of, play, watched
from tests.e2e.test_pressure import BLOCKS, SMALL

pytestmark = pytest.mark.engines(SMALL)

TTL = 13.0
IDLE = 20.0
WAIT = TTL + 4.0
ANSWER = 12
DECLINED = "Declining expired remote read"


class Talk:
    """A conversation with a client of its own, which stays connected until it leaves."""

    def __init__(self, router: Routed, name: str, seed: int, tokens: int) -> None:
        self.router, self.name, self.seed = router, name, seed
        self.prompt = random_ids(seed, tokens)
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(keepalive_timeout=300))

    async def turn(self) -> Turn:
        """The next turn, whose prompt goes on from the last answer."""
        turn = await self.router.send(
            self.session, prompt=self.prompt, max_tokens=ANSWER, conversation_id=self.name
        )
        assert turn.ok, turn.error_text
        assert turn.token_ids is not None
        self.asked = self.prompt
        more = random_ids(self.seed + len(self.prompt), 40)
        self.prompt = [*self.prompt, *turn.token_ids, *more]
        return turn

    async def leave(self) -> None:
        """Close the connection."""
        await self.session.close()


@asynccontextmanager
async def talking(pair: Pair, *names: str) -> AsyncIterator[tuple[Routed, list[Talk]]]:
    """Conversations that have had a turn each, with the short TTL in force."""
    pair.set_ttl(TTL)
    async with routed(pair, ttl=safe_router_ttl(TTL), renew_idle=IDLE) as router:
        talks = [Talk(router, name, 100 + place, 400) for place, name in enumerate(names)]
        try:
            for talk in talks:
                await talk.turn()
            yield router, talks
        finally:
            for talk in talks:
                await talk.leave()


async def kept(pair: Pair, session: aiohttp.ClientSession) -> int:
    """Blocks in use on decode."""
    usage = (await pair.metrics(session, "decode")).kv_usage
    assert usage is not None
    return round(usage * (BLOCKS - 1))


async def until_free(pair: Pair, session: aiohttp.ClientSession, limit: float) -> float:
    """Seconds until decode keeps nothing any more."""
    began = time.monotonic()
    async with asyncio.timeout(limit):
        while await kept(pair, session):
            await asyncio.sleep(0.2)
    return time.monotonic() - began


async def handles(router: Routed) -> int:
    """Turns that could be reused."""
    totals = await router.router.shared.store.totals()
    return sum(total.handles for total in totals.values())


async def is_cold(pair: Pair, session: aiohttp.ClientSession, talk: Talk, turn: Turn) -> bool:
    cold = await pair.cold(session, prompt=talk.asked, max_tokens=ANSWER)
    return cold.token_ids == turn.token_ids


def nothing_was_declined(pair: Pair, mark: LogMark) -> bool:
    return DECLINED not in pair.log_since(mark, "prefill")


async def test_it_is_kept_while_its_client_is_there_and_given_back_after(
    pair: Pair, session: aiohttp.ClientSession
) -> None:
    mark = pair.mark()
    async with talking(pair, "stays", "leaves") as (router, (stays, leaves)):
        both = await kept(pair, session)
        await leaves.leave()
        await asyncio.sleep(TTL - 1)
        assert 0 < await kept(pair, session) < both, "of the one that left nothing is kept"
        await asyncio.sleep(WAIT - TTL + 1)

        turn = await stays.turn()
        assert turn.explanation is not None
        assert turn.explanation.outcome == "HIT", turn.explanation
        assert turn.explanation.retries == ()
        assert turn.explanation.reused_tokens > 400
        assert await is_cold(pair, session, stays, turn)

        leaves.session = session
        turn = await leaves.turn()
        assert turn.explanation is not None
        assert turn.explanation.outcome == "MISS"
        assert await is_cold(pair, session, leaves, turn)

        # It is not kept for ever, whoever is still connected.
        await stays.leave()
        assert await until_free(pair, session, IDLE + TTL) <= IDLE + 4
        renewed = router.router.shared.metrics.renewals
        assert renewed.labels("renewed")._value.get() >= 2
        assert renewed.labels("gone")._value.get() == 0
    assert nothing_was_declined(pair, mark)


async def test_a_decode_server_that_stalls_is_not_believed_in(
    pair: Pair, session: aiohttp.ClientSession
) -> None:
    mark = pair.mark()
    record = pair.record("decode")
    assert record.ref is not None
    async with talking(pair, "waits") as (router, (waits,)):
        parent = psutil.Process(record.ref.pid)
        stalled = [parent, *parent.children(recursive=True)]
        for process in stalled:
            os.kill(process.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(safe_router_ttl(TTL) + 2)
        finally:
            for process in stalled:
                os.kill(process.pid, signal.SIGCONT)
        turn = await waits.turn()
        assert turn.explanation is not None
        assert turn.explanation.outcome == "MISS"
        assert turn.explanation.attached_tokens == 0, "no handle is offered by assumption"
        assert await is_cold(pair, session, waits, turn)
        assert router.router.shared.metrics.renewals.labels("renewed")._value.get() == 0
        await waits.leave()
        await until_free(pair, session, TTL + IDLE)
    assert nothing_was_declined(pair, mark)


async def test_a_decode_server_that_is_killed_takes_its_turns_with_it(
    pair: Pair, session: aiohttp.ClientSession
) -> None:
    """The last of this module, so that nobody waits until it runs again."""
    async with talking(pair, "is lost") as (router, (talk,)):
        shared = router.router.shared
        await asyncio.sleep(safe_router_ttl(TTL) + 1)
        assert shared.metrics.renewals.labels("renewed")._value.get() > 0
        await asyncio.to_thread(pair.end, "decode", kill=True)
        async with asyncio.timeout(20):
            while len(shared.leases) or await handles(router):
                await asyncio.sleep(0.1)
        turn = await router.send(session, prompt=talk.prompt, conversation_id=talk.name)
        assert turn.status in (502, 503)


ROOMY = Setup(
    "renewal",
    # What is played twice must not be in prefill's own cache the second time.
    config={"router.renew_idle": 1, "prefill.prefix_caching": False},
)
"""With room for all conversations, so that nothing has to go before its time."""
LONG_TTL, SHORT_TTL, FASTER = 42.0, 14.0, 10


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.engines(ROOMY)
async def test_at_the_same_hit_rate_a_short_ttl_that_is_renewed_keeps_fewer_blocks(
    pair: Pair, session: aiohttp.ClientSession
) -> None:
    plan = agents(14, 600.0, 4, away=150.0)
    pauses = pauses_of(plan)
    short, long = safe_router_ttl(SHORT_TTL), safe_router_ttl(LONG_TTL)
    missed = [pause for pause in pauses if short + 1 < pause / FASTER < long - 2]
    assert len(missed) > 0.1 * len(pauses), "the short TTL alone would do"

    async def played(ttl: float, idle: float) -> tuple[dict[str, int], list[Seen]]:
        pair.set_ttl(ttl)
        traffic = Traffic()
        async with (
            routed(pair, ttl=safe_router_ttl(ttl), renew_idle=idle, limits=PATIENT) as router,
            watched(pair, session, traffic) as seen,
        ):
            outcomes = await play(router, plan, traffic, faster=FASTER)
            await until_free(pair, session, LONG_TTL + 30)
        return outcomes, seen

    rows = []
    for ttl, idle in ((LONG_TTL, 0.0), (SHORT_TTL, safe_router_ttl(LONG_TTL))):
        outcomes, seen = await played(ttl, idle)
        area = sum(one.blocks * (then.at - one.at) for one, then in pairwise(seen))
        rows.append((outcomes.get("HIT", 0), area))
        print(
            f"\n| {ttl:g} s | {idle:g} s | {outcomes} | {area:.0f} block seconds | "
            f"{max(each.blocks for each in seen)} at most |"
        )
    (long_hits, long_area), (renewed_hits, renewed_area) = rows
    assert renewed_hits >= 0.98 * long_hits
    assert renewed_area < 0.7 * long_area
