"""Draining engines and keeping cells apart while the router runs."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pdctl.config.model import RouterLimits
from pdctl.router.admin import WrongSetting
from pdctl.router.engine_switch import parse_engines
from pdctl.router.server import Router
from pdctl.router.settings import RouterSettings
from tests.router.fake import FakeEngine, running
from tests.router.playbook import a_fleet
from tests.router.test_admin import begin, kept, put
from tests.router.test_server import LONG, World, answered, serving, user, world

PATH = "/pdctl/v1/engines"
P, D = ("http://p:1", "http://p:2"), ("http://d:1", "http://d:2")


async def drain(w: World, url: str, why: str = "restart") -> tuple[int, Any]:
    return await put(w, {"engines": {url: {"drained": why}}}, path=PATH)


def of(answer: Any, url: str) -> Any:
    return next(engine for engine in answer["engines"] if engine["url"] == url)


@asynccontextmanager
async def fleet_of(
    prefill: Sequence[FakeEngine], decode: Sequence[FakeEngine], cells: Sequence[str]
) -> AsyncIterator[World]:
    """Several engines behind one router, in cells by index; `World` tells of the first ones."""
    async with running(*prefill, *decode), aiohttp.ClientSession() as http:
        router = Router(
            RouterSettings(
                tuple(p.url for p in prefill),
                tuple(d.url for d in decode),
                port=0,
                threshold=2,
                limits=RouterLimits(drain=1.0),
                cells={
                    engine.url: cell
                    for *pair, cell in zip(prefill, decode, cells, strict=True)
                    for engine in pair
                },
            )
        )
        async with serving(router) as url:
            await router.watcher.look()
            yield World(url, router, prefill[0], decode[0], http)


async def test_a_drained_decode_gets_nothing_new_and_its_handles_go() -> None:
    async with world() as w:
        await begin(w)
        assert await kept(w) == 1
        status, said = await drain(w, w.d.url)
        assert (status, said["released"]) == (200, 1)
        assert of(said, w.d.url)["drained"] == "restart"
        await w.until(lambda: not w.d.held)
        assert (await w.ask([user(LONG)]))[0] == 503
        assert w.router.shared.fleet.ready() is False
        await drain(w, w.d.url, "")
        assert (await w.ask([user(LONG)]))[0] == 200


async def test_what_runs_goes_on_to_its_end_and_leaves_nothing_pinned() -> None:
    async with world() as w:
        w.d.words, w.d.gap = 20, 0.02
        turn = asyncio.create_task(w.ask([user(LONG)], stream=True))
        await w.until(lambda: len(w.d.seen) == 1)
        assert of((await drain(w, w.d.url))[1], w.d.url)["turns"] == 1
        status, raw, _ = await turn
        assert status == 200
        assert raw.endswith(b"data: [DONE]\n\n")
        await w.until(lambda: not w.d.held)
        assert await kept(w) == 0
        async with w.http.get(w.url + PATH) as answer:
            assert {each["turns"] for each in (await answer.json())["engines"]} == {0}


async def test_prefill_is_needed_until_decode_has_begun() -> None:
    go = asyncio.Event()

    async def later(request: Any, body: dict[str, Any]) -> Any:
        await go.wait()
        return None

    async with world() as w:
        w.d.fault = later
        turn = asyncio.create_task(w.ask([user(LONG)]))
        await w.until(lambda: len(w.d.seen) == 1)
        assert of((await drain(w, w.p.url))[1], w.p.url)["turns"] == 1
        go.set()
        assert (await turn)[0] == 200
        assert w.router.shared.fleet.prefill[w.p.url].turns == 0


async def test_without_prefill_decode_does_it_alone() -> None:
    async with world() as w:
        await drain(w, w.p.url)
        status, _, told = await w.ask([user(LONG)])
        assert (status, told["reason"]) == (200, "prefill_down")
        assert w.p.seen == []


async def test_an_unknown_engine_and_an_odd_setting_are_refused() -> None:
    async with world() as w:
        assert (await drain(w, "http://elsewhere:1"))[0] == 400
        assert (await put(w, {"engines": {w.d.url: {"drain": "x"}}}, path=PATH))[0] == 400


@pytest.mark.parametrize(
    "raw", ["[]", "{}", '{"engines": []}', '{"engines": {"u": {}}}', '{"engines": {"u": 1}}',
            '{"engines": {"u": {"drained": true}}}', '{"engines": {}, "x": 1}'],
)  # fmt: skip
def test_only_settings_are_settings(raw: str) -> None:
    with pytest.raises(WrongSetting):
        parse_engines(raw.encode())


async def test_a_conversation_stays_in_its_cell() -> None:
    p, d = [FakeEngine("prefill") for _ in range(2)], [FakeEngine("decode") for _ in range(2)]
    for one, other in zip(p, d, strict=True):
        one.peer = other
    async with fleet_of(p, d, ("blue", "green")) as w:
        async with w.http.get(w.url + PATH) as answer:
            pairs = [each for e in (await answer.json())["engines"] for each in e["pairs"]]
        assert {(each["prefill"], each["decode"]) for each in pairs} == {
            (p[0].url, d[0].url),
            (p[1].url, d[1].url),
        }
        async with w.http.get(w.url + "/metrics") as answer:
            page = await answer.text()
        told = re.findall(r'pdctl_router_pair_ok{decode="(.*?)",prefill="(.*?)"} 1.0', page)
        # A pair that is not to be is not one that fails, for whoever is alerted at 0.
        assert set(told) == {(y.url, x.url) for x, y in zip(p, d, strict=True)}
        assert page.count("pdctl_router_pair_ok{") == 2
        for number in range(8):
            text = f"{number} " + LONG
            _, first, told = await w.ask([user(text)])
            assert (told["prefill"], told["decode"]) in {
                (x.url, y.url) for x, y in zip(p, d, strict=True)
            }
            history = [user(text), answered(first), user("more")]
            _, _, again = await w.ask(history)
            assert (again["outcome"], again["prefill"]) == ("HIT", told["prefill"])


async def test_what_was_said_of_engines_outlives_the_router(tmp_path: Path) -> None:
    file = tmp_path / "engines.json"
    async with world(engines_file=file) as w:
        await put(w, {"engines": {w.d.url: {"drained": "restart", "generation": "g2"}}}, path=PATH)
        urls = (w.p.url, w.d.url)
        again = Router(RouterSettings((w.p.url,), (w.d.url,), engines_file=file))
        assert again.shared.fleet.decode[urls[1]].drained == "restart"
        assert not again.shared.fleet.together(*urls)
        await put(w, {"engines": {w.d.url: {"drained": "", "generation": ""}}}, path=PATH)
        assert json.loads(file.read_text()) == {"engines": {}}


def test_two_generations_and_two_versions_have_no_pairs() -> None:
    fleet = a_fleet(prefill=P, decode=D)
    fleet.move(P[0], "new")
    fleet.move(D[0], "new")
    assert fleet.choose_decode(prefill=P[0]) == D[0]
    assert fleet.choose_decode(prefill=P[1]) == D[1]
    assert fleet.reuse_refused(P[1], D[0], "1", 0.0) == "another_cell"
    fleet.move(P[0], "")
    fleet.move(D[0], "")
    fleet.prefill[P[0]].version = fleet.decode[D[0]].version = "0.34.0"
    fleet.prefill[P[1]].version = fleet.decode[D[1]].version = "0.33.0"
    assert fleet.choose_decode(prefill=P[0]) == D[0]


def test_a_pair_that_was_proven_in_its_generation_stays_so_when_generations_end() -> None:
    fleet = a_fleet(prefill=P, decode=D)
    for url in (P[0], D[0]):
        fleet.move(url, "new")
    assert fleet.pairs[(P[0], D[0])].verdict == "unknown"
    pair = fleet.pairs[(P[0], D[0])]
    pair.moves_kv, pair.verdict = True, "ok"
    for url in (P[0], D[0]):
        fleet.move(url, "")
    assert fleet.reuse_refused(P[0], D[0], "1", 0.0) is None
    # Those that could not be proven meanwhile are not taken to be.
    assert fleet.reuse_refused(P[0], D[1], "1", 0.0) == "pair_not_proven"


def test_prefill_without_a_partner_is_chosen_last() -> None:
    fleet = a_fleet(prefill=P, decode=D)
    fleet.move(P[0], "new")
    fleet.move(D[0], "new")
    fleet.drain(D[0], "restart")
    assert {fleet.choose_prefill() for _ in range(20)} == {P[1]}
