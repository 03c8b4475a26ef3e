"""The watcher: what it proves, what it never risks, and that nothing silent holds up the rest."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from pdctl.config.model import RouterLimits
from pdctl.router import watch
from pdctl.router.server import Router
from pdctl.router.settings import RouterSettings
from tests.router.fake import FakeEngine, error, running
from tests.router.test_server import LONG, user, world


@asynccontextmanager
async def watched(*engines: FakeEngine, reuse_base: float = 0.2) -> AsyncIterator[Router]:
    """A router that does not serve, its engines, and no watch but what the test starts."""
    prefill = [engine for engine in engines if engine.role == "prefill"]
    decode = [engine for engine in engines if engine.role == "decode"]
    for engine in prefill:
        engine.peer = engine.peer or decode[0]
    async with running(*engines):
        router = Router(
            RouterSettings(
                tuple(engine.url for engine in prefill),
                tuple(engine.url for engine in decode),
                threshold=2,
                limits=RouterLimits(reuse_base=reuse_base, drain=0.1),
            )
        )
        try:
            yield router
        finally:
            await router.shared.background.drain(0.1)
            await router.shared.engines.close()


def a_pair(router: Router) -> Any:
    (pair,) = router.shared.fleet.pairs.values()
    return pair


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdctl.observe.sides._FALL_S", 0.3)


# The safe probe.


async def test_a_pair_is_proven_and_nothing_stays_pinned() -> None:
    p, d = FakeEngine("prefill"), FakeEngine("decode", blocks=1000)
    async with watched(p, d) as router:
        await router.watcher.look()
        assert a_pair(router).verdict == "ok"
        assert len(p.pulls) == len(p.released) == 1
        assert d.held == {}


async def test_two_looks_at_once_are_one_probe() -> None:
    p, d = FakeEngine("prefill"), FakeEngine("decode", blocks=1000)
    async with watched(p, d) as router:
        await asyncio.gather(router.watcher.look(), router.watcher.look())
        assert a_pair(router).verdict == "ok"
        assert len(p.pulls) == 1


async def test_a_one_sided_prefill_is_found_without_a_request_that_hangs() -> None:
    """T7: each one that hangs keeps blocks, and a core, until prefill restarts."""
    p, d = FakeEngine("prefill", one_sided=True), FakeEngine("decode", blocks=1000)
    async with watched(p, d) as router:
        await router.watcher.look()
        pair = a_pair(router)
        assert (pair.verdict, pair.moves_kv, pair.final) == ("no_reuse", True, False)
        assert pair.why.startswith("prefill does nothing with a handle")
        asked = [body.get("kv_transfer_params", {}) for body in p.seen]
        assert not any(kv["remote_num_tokens"] for kv in asked if kv.get("do_remote_decode")
                       and kv.get("remote_block_ids"))  # fmt: skip
        assert d.held == {}
        # A busy machine can look like it, so it is asked again soon. But a flag does not change
        # while an engine runs, and looking is not free.
        now = asyncio.get_running_loop().time
        assert 30 < pair.again_at - now() < 100
        pair.again_at = 0.0
        await router.watcher.look()
        assert pair.again_at > now() + 500


async def test_a_pair_that_loses_requests_blocks_is_looked_at_often_until_they_arrive() -> None:
    p, d = FakeEngine("prefill"), FakeEngine("decode", blocks=1000)
    async with watched(p, d) as router:
        await router.watcher.look()
        router.shared.fleet.blocks_lost(p.url, d.url)
        d.fault = lambda request, body: web.json_response({}, status=500)
        await router.watcher.look()
        pair = a_pair(router)
        assert (pair.verdict, pair.lost) == ("no_reuse", True)
        assert pair.again_at - asyncio.get_running_loop().time() < 11
        d.fault, pair.again_at = None, 0.0
        await router.watcher.look()
        assert (pair.verdict, pair.lost) == ("ok", False)
        assert router.shared.fleet.blocks_arrive(p.url)


async def test_where_decode_is_busy_the_pull_tells_within_its_limit() -> None:
    p, d = FakeEngine("prefill", one_sided=True), FakeEngine("decode", blocks=1000, others=3)
    async with watched(p, d) as router:
        await router.watcher.look()
        pair = a_pair(router)
        assert (pair.verdict, pair.final) == ("no_reuse", True)
        assert pair.why.startswith("prefill never answers")
        asked = p.asked
        pair.again_at = 0.0
        await router.watcher.look()
        assert p.asked == asked


async def test_a_prefill_that_is_slow_with_everything_is_asked_again_later() -> None:
    p, d = FakeEngine("prefill"), FakeEngine("decode")

    async def busy(request: web.Request, body: dict[str, Any]) -> None:
        # From the pull on, whatever comes.
        kv = body.get("kv_transfer_params") or {}
        if p.pulls or (kv.get("remote_num_tokens") and not body.get("use_beam_search")):
            p.pulls.append(0)
            await asyncio.sleep(3600)

    p.fault = busy
    async with watched(p, d) as router:
        await router.watcher.look()
        pair = a_pair(router)
        assert (pair.verdict, pair.final) == ("no_reuse", False)
        assert pair.why == "prefill is too busy to tell whether it pulls"
        # It may be read yet.
        assert len(d.held) == 1
        assert not any(body.get("use_beam_search") for body in p.seen[-2:])
        p.fault = None
        pair.again_at = 0.0
        await router.watcher.look()
        assert pair.verdict == "ok"


async def test_a_pull_that_takes_too_long_is_not_aborted() -> None:
    """With a receive and a send pending, an abort is the known way to crash an engine."""
    p, d = FakeEngine("prefill"), FakeEngine("decode")
    go = asyncio.Event()

    async def slow(request: web.Request, body: dict[str, Any]) -> None:
        kv = body.get("kv_transfer_params") or {}
        if kv.get("remote_num_tokens") and not body.get("use_beam_search"):
            await go.wait()

    p.fault = slow
    async with watched(p, d, reuse_base=0.6) as router:
        await router.watcher.look()
        assert a_pair(router).verdict == "no_reuse"
        go.set()
        async with asyncio.timeout(5):
            while d.held:
                await asyncio.sleep(0.01)
        assert p.left == 0


async def test_a_prefill_that_was_proven_once_is_not_asked_for_its_flag_again() -> None:
    p = FakeEngine("prefill")
    d, other = FakeEngine("decode", blocks=1000), FakeEngine("decode", blocks=1000)
    async with watched(p, d, other) as router:
        for key in router.shared.fleet.pairs:
            p.peer = d if key[1] == d.url else other
            for engine in router.shared.fleet.engines():
                await router.watcher._look_at(engine)
            await router.watcher._prove(key)
        assert [pair.verdict for pair in router.shared.fleet.pairs.values()] == ["ok", "ok"]
        assert (len(p.pulls), len(p.released)) == (2, 1)


async def test_what_a_probe_did_not_use_is_given_back() -> None:
    p, d = FakeEngine("prefill"), FakeEngine("decode", blocks=1000)
    p.fault = lambda request, body: (
        error(500, "x") if body.get("kv_transfer_params", {}).get("remote_num_tokens") and
        not body.get("use_beam_search") else None
    )  # fmt: skip
    async with watched(p, d) as router:
        await router.watcher.look()
        assert "could not pull" in a_pair(router).why
        assert d.held == {}


# Silence.


async def test_a_silent_pair_does_not_hold_up_others_nor_their_health() -> None:
    p, silent, d = FakeEngine("prefill"), FakeEngine("prefill"), FakeEngine("decode", blocks=1000)
    # It is healthy, and never answers a request.
    silent.fault = lambda request, body: asyncio.sleep(3600)
    async with watched(silent, p, d) as router:
        router.watcher._interval = 0.02
        fleet = router.shared.fleet
        task = asyncio.create_task(router.watcher.run())
        try:
            async with asyncio.timeout(5):
                while fleet.pairs[(p.url, d.url)].verdict != "ok":
                    await asyncio.sleep(0.01)
                assert fleet.pairs[(silent.url, d.url)].verdict == "unknown"
                d.up = False
                while fleet.decode[d.url].healthy:
                    await asyncio.sleep(0.01)
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_a_probe_that_ends_behind_a_restart_says_nothing() -> None:
    p, d = FakeEngine("prefill"), FakeEngine("decode")
    async with watched(p, d) as router:
        fleet = router.shared.fleet
        restarted = False

        def restart(request: web.Request, body: dict[str, Any]) -> None:
            nonlocal restarted
            if not restarted:
                restarted = True
                fleet.engine_up(d.url, start="other", block_size=4)
                fleet.engine_down(d.url, "test")

        d.fault = restart
        await router.watcher.look()
        assert restarted
        assert a_pair(router).verdict == "unknown"
        await router.watcher.look()
        assert a_pair(router).verdict == "ok"


# Quarantine.


async def test_a_quarantine_lasts_until_a_restart_and_no_probe_lifts_it() -> None:
    d = FakeEngine("decode", started=1.75e9)
    async with watched(FakeEngine("prefill"), d) as router:
        await router.watcher.look()
        pair = a_pair(router)
        ok = router.shared.metrics.pair_ok.labels(pair.prefill, pair.decode)
        assert ok._value.get() == 1
        router.shared.fleet.quarantine(pair.prefill, pair.decode, "other logprobs")
        pair.again_at = 0.0
        await router.watcher.look()
        assert (pair.verdict, pair.why) == ("no_reuse", "other logprobs")
        assert ok._value.get() == 0
        d.started = 1.75e9 + 60
        await router.watcher.look()
        assert a_pair(router).verdict == "ok"
        assert ok._value.get() == 1


async def test_a_quarantine_while_a_probe_runs_stands() -> None:
    p, d = FakeEngine("prefill"), FakeEngine("decode")
    async with watched(p, d) as router:
        d.fault = lambda request, body: router.shared.fleet.quarantine(p.url, d.url, "wrong")
        await router.watcher.look()
        pair = a_pair(router)
        assert (pair.verdict, pair.why) == ("no_reuse", "wrong")


# What is read every second.


async def test_the_watch_reads_room_use_and_queue() -> None:
    p, d = FakeEngine("prefill", blocks=500), FakeEngine("decode", blocks=1000)
    d.metrics += b'vllm:num_requests_waiting_by_reason{reason="capacity"} 4\n'
    async with watched(p, d) as router:
        d.held["other"] = [0] * 400
        await router.watcher.look()
        await router.watcher.look()
        fleet = router.shared.fleet
        decode = fleet.decode[d.url]
        assert (decode.capacity_tokens, decode.kv_usage, decode.waiting) == (4000, 0.1, 4)
        assert decode.others == 400
        told = (await router.state())["engines"][1]
        assert (told["capacity_tokens"], told["kv_usage"], told["waiting"]) == (4000, 0.1, 4)
        assert fleet.prefixes.room == {p.url: 2000}


async def test_use_that_is_there_for_one_look_only_is_nobody_elses() -> None:
    d = FakeEngine("decode", blocks=1000)
    async with watched(FakeEngine("prefill"), d) as router:
        await router.watcher.look()
        d.held["just ended"] = [0] * 400
        await router.watcher.look()
        assert router.shared.fleet.decode[d.url].others == 0


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_restart_between_two_looks_is_seen(role: str) -> None:
    d = FakeEngine("decode", started=1.75e9)
    p = FakeEngine("prefill", started=1.75e9)
    async with world(p=p, d=d) as w:
        await w.ask([user(LONG)])
        engine = w.p if role == "prefill" else w.d
        pair = a_pair(w.router)
        assert (await w.router.state())["handles"] == 1
        await w.router.watcher.look()
        assert a_pair(w.router) is pair
        engine.started = 1.75e9 + 60
        w.d.held.clear()
        await w.router.watcher.look()
        assert a_pair(w.router) is not pair
        assert a_pair(w.router).verdict == "ok"
        assert (await w.router.state())["handles"] == (1 if role == "prefill" else 0)


async def test_a_page_that_fails_once_is_no_restart() -> None:
    p, d = FakeEngine("prefill"), FakeEngine("decode", started=1.75e9)
    async with watched(p, d) as router:
        await router.watcher.look()
        pair, page = a_pair(router), d.metrics
        for metrics, started in ((b"garbage", None), (page, 1.75e9)):
            d.metrics, d.started = metrics, started
            await router.watcher.look()
            assert a_pair(router) is pair


async def test_a_look_that_fails_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = 0

    def broken(page: bytes) -> Any:
        nonlocal looks
        looks += 1
        raise ValueError("no such thing")

    monkeypatch.setattr(watch, "read_vitals", broken)
    async with watched(FakeEngine("prefill"), FakeEngine("decode")) as router:
        router.watcher._interval = 0.01
        task = asyncio.create_task(router.watcher.run())
        async with asyncio.timeout(5):
            while looks < 6:
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
    assert "looking at the engines failed" in caplog.text
