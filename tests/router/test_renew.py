"""Renewal through a router with fake engines: what is asked, and what is believed."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from pdctl.config.model import RouterLimits
from pdctl.router import renew
from pdctl.router.redis_store import RedisStore
from pdctl.router.renew import Renewer
from pdctl.router.serve import serving
from pdctl.router.server import Router
from pdctl.router.settings import RouterSettings
from pdctl.router.store import Found
from tests.router.fake import AHEAD, TTL, FakeEngine, error
from tests.router.redis_server import RedisServer, needs_redis_server
from tests.router.test_server import LONG, World, world

ROUTER_TTL = TTL - 8
LATER = 60.0
"""More than half of the TTL: then it is due."""
SLACK = 2.0


@asynccontextmanager
async def renewing(d: FakeEngine | None = None, **settings: Any) -> AsyncIterator[World]:
    decode = d or FakeEngine("decode", renews=True)
    async with world(d=decode, ttl=ROUTER_TTL, **({"renew_idle": 300.0} | settings)) as w:
        yield w


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


async def begun(w: World, **more: Any) -> list[dict[str, Any]]:
    """A first turn; what the second would say."""
    status, answer, told = await w.ask(user(LONG), **more)
    assert (status, told["outcome"]) == (200, "MISS")
    message = answer["choices"][0]["message"]
    return [*user(LONG), message, {"role": "user", "content": "more"}]


async def later(w: World, seconds: float = LATER) -> None:
    """A round of renewals, as it would be then."""
    renewer = Renewer(w.router.shared)
    await renewer.round(lambda: time.monotonic() + seconds, w.router.policy.ttl)


def counted(w: World, result: str) -> float:
    return w.router.shared.metrics.renewals.labels(result)._value.get()  # type: ignore[no-any-return]


def expiry_told(w: World, request_id: str) -> float:
    """What prefill was told of decode's deadline when it pulled that turn."""
    pulls = [body["kv_transfer_params"] for body in w.p.seen]
    (told,) = [
        each["remote_blocks_expiry_time"]
        for each in pulls
        if each.get("remote_request_id") == request_id and each["remote_num_tokens"]
    ]
    return told  # type: ignore[no-any-return]


async def kept(w: World) -> Found:
    """The only handle there is."""
    async with asyncio.timeout(5):
        while True:
            store: Any = w.router.shared.store
            for handle in store._handles.values():
                return Found.of(handle, b"")
            await asyncio.sleep(0.01)


async def test_it_is_kept_for_as_long_as_decode_says() -> None:
    async with renewing() as w:
        second = await begun(w)
        first = await kept(w)
        await later(w)
        (asked,) = w.d.renewals
        assert asked["engine_id"] == "start1"
        ((name, until),) = asked["until"].items()
        assert until == pytest.approx(time.monotonic() + LATER + TTL + AHEAD, abs=SLACK)
        now = await kept(w)
        assert now.deadline == pytest.approx(first.deadline + LATER, abs=SLACK)
        assert counted(w, "renewed") == 1
        # Prefill is told decode's new deadline, and so does not decline.
        assert w.d.kept[name] == until
        status, _, told = await w.ask(second)
        assert (status, told["outcome"]) == (200, "HIT")
        assert expiry_told(w, name) == until


async def test_decodes_word_counts_and_not_what_was_asked() -> None:
    async with renewing() as w:
        w.d.grants = lambda until: {name: each - 30 for name, each in until.items()}
        await begun(w)
        first = await kept(w)
        await later(w)
        assert (await kept(w)).deadline == pytest.approx(first.deadline + LATER - 30, abs=SLACK)


@pytest.mark.parametrize(
    "fault",
    [
        lambda request, body: error(500, "no"),
        lambda request, body: error(400, "no"),
        lambda request, body: error(503, "later"),
    ],
)
async def test_what_decode_does_not_confirm_keeps_its_deadline(fault: Callable[..., Any]) -> None:
    async with renewing() as w:
        second = await begun(w)
        first = await kept(w)
        w.d.fault = fault
        await later(w)
        assert (await kept(w)).deadline == first.deadline
        assert counted(w, "failed") == 1
        # And it is tried again until it is too late.
        w.d.fault = None
        await later(w, LATER + 2)
        assert (await kept(w)).deadline > first.deadline + LATER - SLACK
        assert (await w.ask(second))[2]["outcome"] == "HIT"


async def test_an_answer_that_comes_too_late_is_not_counted_on() -> None:
    async with renewing() as w:
        await begun(w)
        first = await kept(w)
        w.d.fault = lambda request, body: asyncio.sleep(60)
        w.router.shared.fleet.decode[w.d.url].healthy = True
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(renew, "_ANSWER_S", 0.1)
            await later(w)
        assert (await kept(w)).deadline == first.deadline
        assert counted(w, "failed") == 1


async def test_what_decode_has_let_go_is_not_asked_for_again() -> None:
    async with renewing() as w:
        await begun(w)
        first = await kept(w)
        w.d.held.clear()
        await later(w)
        assert counted(w, "gone") == 1
        assert (await kept(w)).deadline == first.deadline
        await later(w, LATER + 5)
        assert len(w.d.renewals) == 1


async def test_a_decode_server_that_does_not_understand_is_not_asked_again() -> None:
    """Its plugin is gone, but its handles say otherwise. The block that it takes, it frees."""
    async with renewing() as w:
        await begun(w)
        first = await kept(w)
        w.d.grants = None
        await later(w)
        assert (await kept(w)).deadline == first.deadline
        await later(w, LATER + 5)
        assert len(w.d.renewals) == 1
        assert w.d.seen[-1]["kv_transfer_params"]["do_remote_decode"] is True


async def test_without_the_plugin_decode_is_not_asked() -> None:
    async with renewing(FakeEngine("decode")) as w:
        await begun(w)
        await later(w)
        assert w.d.renewals == []


async def test_it_is_off_by_default() -> None:
    async with renewing(renew_idle=0.0) as w:
        await begun(w)
        await later(w)
        assert w.d.renewals == []


async def test_a_handle_in_use_is_not_renewed() -> None:
    async with renewing() as w:
        await begun(w)
        found = await kept(w)
        assert await w.router.shared.store.take(found.id) is not None
        await later(w)
        assert w.d.renewals == []


async def test_one_that_is_taken_while_decode_is_asked_stays_taken() -> None:
    async with renewing() as w:
        await begun(w)
        found = await kept(w)

        async def fault(request: Any, body: dict[str, Any]) -> None:
            if "pdctl_renew" in body["kv_transfer_params"]:
                assert await w.router.shared.store.take(found.id) is not None

        w.d.fault = fault
        await later(w)
        assert len(w.d.renewals) == 1
        assert counted(w, "gone") == 1
        assert await w.router.shared.store.free([found.id]) == set()


async def test_who_waits_for_room_comes_first() -> None:
    async with renewing() as w:
        await begun(w)
        engine = w.router.shared.fleet.decode[w.d.url]
        engine.waiting = 1
        await later(w)
        assert w.d.renewals == []
        engine.waiting = 0
        await later(w, LATER + 2)
        assert len(w.d.renewals) == 1


async def test_a_decode_server_that_is_silent_holds_up_no_other() -> None:
    """Each round asks for what is due then, whatever the one before still waits for."""
    rounds, go = [], asyncio.Event()

    async def silent(clock: Callable[[], float], ttl: float) -> None:
        rounds.append(clock())
        await go.wait()

    async with renewing() as w:
        w.router.watcher._renewer.round = silent  # type: ignore[method-assign]
        await w.until(lambda: len(rounds) >= 2)
        go.set()


async def test_an_engine_that_is_drained_or_gone_is_not_asked() -> None:
    async with renewing() as w:
        await begun(w)
        fleet = w.router.shared.fleet
        fleet.drain(w.d.url, "it is to be restarted")
        await later(w)
        fleet.drain(w.d.url, "")
        engine = fleet.decode.pop(w.d.url)
        await later(w, LATER + 2)
        fleet.decode[w.d.url] = engine
        assert w.d.renewals == []
        await later(w, LATER + 4)
        assert len(w.d.renewals) == 1


async def test_an_engine_that_was_restarted_is_not_asked_for_what_it_had() -> None:
    async with renewing() as w:
        await begun(w)
        await w.router.shared.store.forget_engine(w.d.url)
        await later(w)
        assert w.d.renewals == []


async def test_the_rank_that_has_it_is_asked() -> None:
    async with renewing(FakeEngine("decode", renews=True, start_id="start1_dp3")) as w:
        await begun(w)
        await later(w)
        assert w.d.ranks == ["3"]


async def test_a_client_that_left_is_not_waited_for_unless_a_tool_was_called() -> None:
    for finish, expected in (("length", 0), ("tool_calls", 1)):
        async with renewing() as w:
            w.d.finish = finish
            async with aiohttp.ClientSession() as http:
                w.http, mine = http, w.http
                await begun(w)
            w.http = mine
            await asyncio.sleep(0.05)  # until the router has seen it leave
            await later(w)
            assert len(w.d.renewals) == expected, finish


@needs_redis_server
async def test_two_routers_renew_what_they_served_and_see_each_others(server: RedisServer) -> None:
    decode = FakeEngine("decode", renews=True)

    def store() -> RedisStore:
        return RedisStore.open(server.url, name="two", limit=5.0)

    async with renewing(decode) as w, aiohttp.ClientSession() as http:
        routers = [
            Router(
                RouterSettings(
                    (w.p.url,), (w.d.url,), port=0, threshold=2, ttl=ROUTER_TTL,
                    renew_idle=300.0, limits=RouterLimits(drain=1.0),
                ),
                store=store(),
            )
            for _ in range(2)
        ]  # fmt: skip
        async with serving(routers[0]) as one, serving(routers[1]) as two:
            for router in routers:
                await router.watcher.look()
            a, b = (
                World(url, router, w.p, w.d, http)
                for url, router in zip((one, two), routers, strict=True)
            )
            second = await begun(a)
            (handle_id,) = [lease.id for lease in a.router.shared.leases._leases.values()]
            await later(b)
            assert w.d.renewals == [], "the other router served it"
            await later(a)
            ((name, until),) = w.d.renewals[0]["until"].items()
            # The other one uses it, with the deadline that decode has confirmed.
            assert (await b.ask(second))[2]["outcome"] == "HIT"
            assert expiry_told(w, name) == until
            assert await a.router.shared.store.free([handle_id]) == set()
            await later(a, LATER + 60)
            assert all(handle_id.partition("/")[2] not in r["until"] for r in w.d.renewals[1:])
