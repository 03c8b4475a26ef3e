"""Random sessions: whatever agents do to their histories, every answer equals the cold one, and
nearly all that could be reused was.

What the agents do, and how often, is in `tests/proofs/agents.py`; the oracle that says what could
be reused is in `tests/proofs/oracle.py`. On the legs with prefill's own prefix cache, tokens count
as reused when prefill did not compute them, from wherever they came: the oracle does the same.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from pdctl.base.explain import REUSE_PATH
from pdctl.base.facts import EngineMetrics
from pdctl.engine.example import FILE_NAME, PATH, is_archive, read_from_archive
from pdctl.observe.endpoints import Endpoint
from pdctl.observe.facts import read_router
from pdctl.router import match
from tests.e2e.harness import DEFAULT, Pair, Setup, routed
from tests.e2e.play import Door, Played, Stage, Verdict, judge
from tests.e2e.test_example_proxy import NO_SOURCE, SOURCE
from tests.proofs.agents import team

NGRAM = {
    "method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1,
}  # fmt: skip
NO_CACHE = {"prefill.prefix_caching": False}
LEGS = {
    "prefill_cache": DEFAULT,
    "no_prefill_cache": Setup("no-prefill-cache", config=NO_CACHE),
    "prefill_cache_ngram": Setup("ngram", config={"model.speculative": NGRAM}),
    "no_prefill_cache_ngram": Setup(
        "no-prefill-cache-ngram", config={"model.speculative": NGRAM, **NO_CACHE}
    ),
}

KEYS = {"a": "key-of-tenant-a", "b": "key-of-tenant-b", "admin": "key-of-who-may-switch-reuse"}
SEEDS = {
    "prefill_cache": 57,
    "no_prefill_cache": 90,
    "prefill_cache_ngram": 130,
    "no_prefill_cache_ngram": 105,
}
"""Seeds with which also the short sessions have nearly all kinds of turns."""

HURRY_S = 6.0
"""TTL of the router of agents in a hurry; the others' is far longer than a test."""

OVERALL, OVERALL_SHORT = 0.95, 0.7
"""Of what the oracle says was possible. A short session has so few tokens that two or three turns
decide, in which the oracle sees that nobody will need a handle again, and the router cannot. So
the short form guards against much being lost; the bars proper are those of the long one."""
FLOORS = {"append": 0.95, "regenerate": 0.9, "twins": 0.6, "cut": 0.8, "edit": 0.7}
"""Of what the oracle says was possible, by what the turn did to its history. Kinds that can reuse
little at best, because they replace what comes first, have none: of little, much is lost by
rules that are meant, such as not to eat a stranger's handle. Of twins one has the handle; the
oracle has an older one for the other, which the router gave back when it was superseded."""

ENOUGH_TOKENS = 1000
"""Less than this was possible for a kind: then one turn decides, and there is no floor."""

short = pytest.param(48, id="short")
long = pytest.param(300, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(3600)])


@pytest.fixture
async def doors(pair: Pair) -> AsyncIterator[tuple[Door, Door]]:
    """A router with the usual TTL, and one with a short one."""
    async with _door(pair) as usual, _door(pair, ttl=HURRY_S) as hurried:
        yield usual, hurried


@asynccontextmanager
async def _door(pair: Pair, **settings: Any) -> AsyncIterator[Door]:
    async with routed(pair, keys=KEYS, **settings) as router:
        yield Door(router.url, router.router.settings.ttl, KEYS)


@pytest.mark.parametrize("turns", [short, long])
@pytest.mark.parametrize(
    "leg", [pytest.param(name, marks=pytest.mark.engines(setup)) for name, setup in LEGS.items()]
)
async def test_answers_equal_cold_ones_and_reuse_is_near_the_best(
    pair: Pair,
    session: aiohttp.ClientSession,
    doors: tuple[Door, Door],
    leg: str,
    turns: int,
) -> None:
    soak = turns > 100
    if leg.endswith("ngram"):
        turns = turns * 2 // 3  # on a CPU each step of theirs takes several times as long
    # Tests before may have left blocks there, past any router; a restart leaves none.
    at_rest = 0.0 if soak else await _usage(pair, session)
    stage = Stage(pair, session, *doors)
    agents = team(seed=SEEDS[leg] + 1000 * soak, size=9 + turns // 50)
    pulled = []
    for part in range(2 if soak else 1):
        if part:
            await restart_decode(pair, session, doors)
            stage.era += 1
        before = await pair.metrics(session, "prefill")
        await stage.play(agents, turns // 2 if soak else turns)
        pulled.append(await pulls_since(pair, session, before))
    await stage.ask_cold()

    assert before.block_size is not None
    own = before.block_size if before.prefix_caching else None
    verdict = judge(stage.played, threshold=pair.config.kv.recompute_threshold, own_cache_block=own)
    print(f"\n{leg}, {len(stage.played)} turns\n{verdict.table()}")
    assert verdict.wrong == ()
    hits = [
        each.told.reused_tokens for each in stage.played if each.told and each.told.reused_tokens
    ]
    decode = await pair.metrics(session, "decode")
    assert decode.num_blocks is not None
    assert verdict.peak_tokens < decode.num_blocks * before.block_size / 2  # room was no limit
    assert sum(each.transfers for each in pulled) == len(hits)
    if own is None:
        assert sum(each.tokens for each in pulled) == sum(hits)
    if soak:
        assert_near_the_best(verdict)
    assert verdict.total.share >= OVERALL_SHORT
    await assert_nothing_stays_pinned(pair, session, doors, stage.played, at_rest)


def assert_near_the_best(verdict: Verdict) -> None:
    """The bars, and that the oracle is one: nobody does better than it by more than a race."""
    assert verdict.total.share >= OVERALL
    low = {
        kind: tally
        for kind, tally in verdict.kinds.items()
        if tally.possible >= ENOUGH_TOKENS and tally.share < FLOORS.get(kind, 0.0)
    }
    assert low == {}
    assert verdict.total.share <= 1.05


@dataclass(frozen=True)
class Pulls:
    """What prefill says that it pulled."""

    tokens: int
    transfers: int


async def pulls_since(pair: Pair, session: aiohttp.ClientSession, before: EngineMetrics) -> Pulls:
    """By prefill's own counters."""
    now = await pair.metrics(session, "prefill")
    return Pulls(
        (now.external_tokens or 0) - (before.external_tokens or 0),
        (now.nixl_transfers or 0) - (before.nixl_transfers or 0),
    )


async def restart_decode(pair: Pair, session: aiohttp.ClientSession, doors: Sequence[Door]) -> None:
    """In the middle of everything, but between two turns; returns when it is proven again."""
    await asyncio.to_thread(pair.restart_decode, kill=True)
    async with asyncio.timeout(120):
        for door in doors:
            while not await _proven(session, door):
                await asyncio.sleep(0.2)


async def _proven(session: aiohttp.ClientSession, door: Door) -> bool:
    endpoint = Endpoint("router-0", "router", "localhost", door.url)
    facts = await read_router(session, endpoint, door.keys["admin"], 5.0)
    return bool(facts.pairs) and all(each.ok for each in facts.pairs)


async def assert_nothing_stays_pinned(
    pair: Pair,
    session: aiohttp.ClientSession,
    doors: Sequence[Door],
    played: Sequence[Played],
    at_rest: float,
) -> None:
    """Conversations with a name are deleted, the others let go by turning reuse off.

    Args:
        at_rest: share of decode's blocks that was in use before.
    """
    for name, tenant in {(each.agent.name, each.agent.tenant) for each in played}:
        for door in doors:
            headers = {"Authorization": f"Bearer {door.keys[tenant]}"}
            if name is not None:
                url = f"{door.url}/v1/conversations/{name}"
                async with session.delete(url, headers=headers) as answer:
                    assert answer.status == 200
    for door in doors:
        headers = {"Authorization": f"Bearer {door.keys['admin']}"}
        async with session.put(door.url + REUSE_PATH, json={"share": 0}, headers=headers) as answer:
            assert answer.status == 200
    async with asyncio.timeout(60):
        while await _usage(pair, session) > at_rest:
            await asyncio.sleep(0.2)


async def _usage(pair: Pair, session: aiohttp.ClientSession) -> float:
    """Share of decode's blocks in use; it is told only with a step, so one is made."""
    await pair.cold(session, prompt=[9, 9, 9], max_tokens=1)
    usage = (await pair.metrics(session, "decode")).kv_usage
    assert usage is not None
    return usage


# The harness itself: what it must find.


async def test_without_the_token_check_answers_differ(
    pair: Pair, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blind(left: bytes, right: bytes) -> int:
        return min(match.count(left), match.count(right))

    monkeypatch.setattr(match, "common_prefix", blind)
    async with _door(pair) as door:
        stage = Stage(pair, session, door)
        await stage.play(team(seed=5, size=8), 40)
        await stage.ask_cold()
    verdict = judge(stage.played, threshold=64, own_cache_block=128)
    print(f"\nwithout the token check\n{verdict.table()}")
    assert len(verdict.wrong) >= 3


@pytest.mark.skipif(SOURCE is None, reason=NO_SOURCE)
async def test_the_example_proxy_gives_different_answers(
    pair: Pair, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    agents = team(seed=6, size=8)
    for place, agent in enumerate(agents):
        agent.name = f"agent-{place}"  # without a name it does nothing at all
    async with _example(pair, session, example_proxy(tmp_path), tmp_path) as door:
        stage = Stage(pair, session, door, only_streams=True)
        await stage.play(agents, 40)
        await stage.ask_cold()
    verdict = judge(stage.played, threshold=64, own_cache_block=128)
    print(f"\nvLLM's example proxy\n{verdict.table()}")
    assert len(verdict.wrong) >= 3


@asynccontextmanager
async def _example(
    pair: Pair, session: aiohttp.ClientSession, proxy: Path, tmp_path: Path
) -> AsyncIterator[Door]:
    """The proxy as a process of its own, with the engines' interpreter."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    prefill, decode = URL(pair.prefill), URL(pair.decode)
    argv = [
        pair.record("prefill").argv[0], str(proxy), "--host", "127.0.0.1", "--port", str(port),
        "--prefiller-host", str(prefill.host), "--prefiller-port", str(prefill.port),
        "--decoder-host", str(decode.host), "--decoder-port", str(decode.port),
    ]  # fmt: skip
    with (tmp_path / "proxy.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*argv, stdout=log, stderr=log, cwd=tmp_path)
        try:
            url = f"http://127.0.0.1:{port}"
            async with asyncio.timeout(60):
                while not await _healthy(session, url):
                    assert process.returncode is None, (tmp_path / "proxy.log").read_text()
                    await asyncio.sleep(0.1)
            yield Door(url, ttl=450.0)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _healthy(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(f"{url}/health") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


def example_proxy(tmp_path: Path) -> Path:
    """Upstream's file, from where `SOURCE_ENV` says; the wheels of vLLM do not have it."""
    assert SOURCE is not None
    source = Path(SOURCE)
    if is_archive(source):
        (tmp_path / FILE_NAME).write_bytes(read_from_archive(source))
        return tmp_path / FILE_NAME
    return source / PATH if source.is_dir() else source
