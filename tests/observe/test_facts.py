"""Gathering: complete where servers answer, an error and nothing else where they do not."""

from dataclasses import replace

import aiohttp

from pdctl.base.facts import (
    EngineMetrics,
    HostFacts,
    PairState,
    RouterFacts,
    ServingFacts,
)
from pdctl.observe.facts import gather
from tests.observe.fakes import FakeEngine, fake_pair


async def test_everything_that_answers() -> None:
    async with fake_pair() as pair, aiohttp.ClientSession() as session:
        facts = await gather(session, pair.endpoints)
        p_url, d_url = pair.router.urls
    assert facts.name == "fake"
    assert facts.taken_at > 1e9
    assert facts.hosts == (HostFacts("here"),)
    metrics = EngineMetrics(
        kv_usage=0.0,
        waiting=0,
        running=0,
        finished=0,
        nixl_bytes=0,
        nixl_transfers=1,
        external_tokens=0,
        block_size=16,
        num_blocks=512,
        prefix_caching=True,
        process_start=1.7e9,
    )
    prefill = ServingFacts(
        name="prefill-0",
        role="prefill",
        host="here",
        url=p_url,
        version="0.33.0",
        model="tiny",
        model_root="/models/tiny",
        max_model_len=4096,
        metrics=metrics,
    )
    assert facts.engines == (
        prefill,
        replace(prefill, name="decode-0", role="decode", url=d_url),
    )
    assert facts.role("decode") == facts.engines[1:]
    assert pair.endpoints.router is not None
    assert facts.router == RouterFacts(
        url=pair.endpoints.router.url,
        ours=True,
        ready=True,
        pairs=(PairState(p_url, d_url, True),),
        ttl=450.0,
        threshold=64,
        host="here",
        handles=0,
        retained_tokens=0,
    )


async def test_another_router_is_known_as_such() -> None:
    async with fake_pair(ours=False) as pair, aiohttp.ClientSession() as session:
        facts = await gather(session, pair.endpoints)
    assert facts.router is not None
    assert (facts.router.ours, facts.router.ready, facts.router.error) == (False, True, None)
    assert not facts.router.example


async def test_upstreams_example_is_known_by_how_it_tells_its_health() -> None:
    async with (
        fake_pair(ours=False, example=True) as pair,
        aiohttp.ClientSession() as session,
    ):
        facts = await gather(session, pair.endpoints)
    assert facts.router is not None
    assert (facts.router.ours, facts.router.example, facts.router.ready) == (False, True, True)


async def test_what_does_not_answer_has_an_error_and_stops_nothing() -> None:
    decode = FakeEngine("decode", alive=False)
    async with fake_pair(decode=decode) as pair, aiohttp.ClientSession() as session:
        router = pair.endpoints.router
        assert router is not None
        nobody = replace(router, url="http://127.0.0.1:9")
        facts = await gather(session, replace(pair.endpoints, router=nobody))
    good, bad = facts.engines
    assert good.error is None
    assert bad.error is not None
    assert "no answer from" in bad.error
    assert (bad.version, bad.metrics) == (None, None)
    assert facts.router is not None
    assert facts.router.error is not None


async def test_a_router_that_shows_its_state_to_the_admin_only() -> None:
    async with fake_pair() as pair, aiohttp.ClientSession() as session:
        pair.router.secret = True
        router = (await gather(session, pair.endpoints)).router
    assert router is not None
    assert router.error is not None
    assert "HTTP 403" in router.error
    assert "a key of the tenant `admin`" in router.error
