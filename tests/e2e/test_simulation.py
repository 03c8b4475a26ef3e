"""What `pdctl analyze` says of decode's memory, against decode's memory.

A synthetic log of ten minutes is replayed ten times as fast. The router logs what it served, and
the simulation that `analyze` uses is run over that log; the router's margin of 8 s is not scaled.
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from pdctl.analyze.lines import open_log
from pdctl.analyze.pinned import steps_of, turns_of
from pdctl.analyze.scan import Wanted, scan
from pdctl.analyze.simulate import Rules, Simulation, Turn, rules_of
from pdctl.engine.ttl import safe_router_ttl
from tests.e2e.harness import Pair, routed
from tests.e2e.replay import PATIENT, Seen, Traffic, agents, play, watched

TTL = 20.0
MINUTES, FASTER = 10, 10
SESSIONS = 14
MOST = 0.10
BIN_S = 0.1


def turns_in(log: Path) -> list[Turn]:
    """As `analyze` reads them."""
    scanned = scan([open_log(str(log))], Wanted(TTL, cores=1))
    return turns_of(steps_of(scanned.tally.sample.kept))


def simulated(turns: Sequence[Turn], rules: Rules, seen: Sequence[Seen]) -> list[float]:
    """Retained blocks at the moments at which decode was looked at."""
    since, until = turns[0].start - 1, max(each.at for each in seen) + 1
    outcome = Simulation(rules, since, BIN_S).run(turns, until=until)
    return [outcome.mean[int((each.at - since) / BIN_S)] for each in seen]


def off_by(found: Sequence[float], seen: Sequence[Seen]) -> float:
    """Differences at all moments together, as a share of all that was kept."""
    differences = sum(abs(one - each.blocks) for one, each in zip(found, seen, strict=True))
    return differences / sum(each.blocks for each in seen)


async def emptied(pair: Pair, session: aiohttp.ClientSession, limit: float) -> None:
    """Wait until decode keeps nothing: who used it gives its blocks back in its own time."""
    async with asyncio.timeout(limit):
        while (await pair.metrics(session, "decode")).kv_usage:
            await asyncio.sleep(0.2)


async def with_nothing_kept(pair: Pair, session: aiohttp.ClientSession) -> None:
    """Start decode anew where a test before this one broke a rule and left blocks until the TTL."""
    try:
        await emptied(pair, session, limit=5.0)
    except TimeoutError:
        await asyncio.to_thread(pair.restart_decode)


async def test_pinned_blocks_over_time_are_those_of_the_simulation(
    pair: Pair, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    log = tmp_path / "requests.jsonl"
    plan = agents(SESSIONS, MINUTES * 60.0, 4, away=10 * TTL)
    await with_nothing_kept(pair, session)
    pair.set_ttl(TTL)
    block = (await pair.metrics(session, "decode")).block_size
    assert block is not None
    ttl = safe_router_ttl(TTL)
    async with routed(pair, ttl=ttl, request_log=log, limits=PATIENT) as router:
        await emptied(pair, session, limit=60.0)
        began = time.monotonic()
        traffic = Traffic()
        async with watched(pair, session, traffic) as all_seen:
            outcomes = await play(router, plan, traffic, faster=FASTER)
        seconds = time.monotonic() - began

    turns = turns_in(log)
    assert len(turns) == len(plan)
    # While a turn runs it has blocks that are not retained yet, or not read yet.
    seen = [each for each in all_seen if each.quiet]
    found = simulated(turns, rules_of(TTL, block=block), seen)
    off = off_by(found, seen)
    mean = sum(each.blocks for each in seen) / len(seen)
    wrong = off_by(simulated(turns, Rules(TTL, safe_router_ttl(TTL), block), seen), seen)
    print(
        f"\n{len(plan)} turns of {SESSIONS} conversations in {seconds:.0f} s, {outcomes}; decode "
        f"kept {mean:.1f} blocks in the mean, {max(each.blocks for each in seen)} at most, "
        f"simulated {sum(found) / len(found):.1f} and {max(found):.0f}; off by {off:.1%} "
        f"({len(seen)} of {len(all_seen)} looks); with blocks kept for the whole TTL {wrong:.1%}"
    )
    assert len(seen) > 40
    assert off <= MOST
    assert wrong > MOST, "so small a difference would not be seen"
