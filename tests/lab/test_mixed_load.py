"""Two prefill and two decode hosts and a router, under the mixed load of `tests/proofs`.

The agents and the oracle are those of the tests on one machine; what they need of the engines goes
over the lab's wire. Prefill's own prefix cache is off there, so what was not computed was pulled.
"""

import asyncio
import itertools
import re
import time
from datetime import datetime

import aiohttp
import pytest

from tests.e2e.harness import Sender
from tests.e2e.play import Door, Stage, judge
from tests.lab.callers import calling, told
from tests.lab.site import MARK, Operator, Site
from tests.proofs.agents import LONGEST, Agent, team
from tests.targets.programs import wait_until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

TWO = {
    "target.hosts.prefill": [{"address": "10.77.254.11"}, {"address": "10.77.254.14"}],
    "target.hosts.decode": [{"address": "10.77.254.12"}, {"address": "10.77.254.15"}],
}
THRESHOLD = 64
ROUTER_TTL_S = 472.0
OVERALL, OVERALL_SHORT = 0.95, 0.9
"""Of what the oracle says was possible; in a short session two or three turns decide."""

_SOAK = (pytest.mark.soak, pytest.mark.timeout(1800))
QUICK, LONG = 150, 300
"""Turns with stand-ins, and in a soak."""
REAL_QUICK, REAL_LONG = 48, 120
"""With vLLM: four engines and their clients on two cores make one or two turns a second."""
REAL_LONGEST = 1500
"""Tokens of an agent's history there: every turn is also computed cold, on the same cores."""
REAL_AGENTS, REAL_PAUSE_S = 4, 4.0
"""During an upgrade with vLLM, which takes minutes: as fast as they can they would make a thousand
turns, and take the cores that the new engines load on."""


class Far(Sender):
    """The lab's engines; cold answers come from both decode hosts."""

    def __init__(self, site: Site) -> None:
        super().__init__("pdctl/tiny-random", key=site.operator.engine_key)
        hosts = (site.decode, site.lab.hosts[4])
        self._urls = itertools.cycle(f"http://{host.address}:8100" for host in hosts)

    @property
    def decode(self) -> str:
        """Each in turn."""
        return next(self._urls)


@pytest.fixture(scope="module")
def grown(site: Site) -> Operator:
    """The example with two engines more; the ones that run are left alone."""
    if site.real and site.operator.tries("status").status != 0:
        # Not four at once: each that loads keeps a core busy for most of a minute.
        site.operator.types("up", "--yes")
    before = {
        role["role"]: role["pid"]
        for role in site.operator.tries("status", "--json").json["roles"]
        if role["healthy"]
    }
    operator = site.edit(TWO)
    said = operator.types("up", "--yes")
    if set(before) >= {"prefill", "decode"}:
        for name in ("prefill", "decode"):
            assert f"because pid {before[name]} runs as configured" in said.err
    return operator


def agents_for(site: Site, turns: int) -> list[Agent]:
    """As many as suit a session. The example's router asks for no keys, so all are one tenant: of
    two neighbours, who begin alike to try tenants, one is enough."""
    longest = REAL_LONGEST if site.real else LONGEST
    return team(57 + turns, 2 * (8 + turns // 50), longest)[::2]


@pytest.mark.parametrize("site", ["stand-in", pytest.param("real", marks=_SOAK)], indirect=True)
@pytest.mark.parametrize("soak", [False, pytest.param(True, marks=_SOAK)], ids=["short", "long"])
async def test_four_engines_reuse_what_the_oracle_says(
    site: Site, grown: Operator, soak: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    quick, long = (REAL_QUICK, REAL_LONG) if site.real else (QUICK, LONG)
    turns = long if soak else quick
    async with aiohttp.ClientSession() as session:
        stage = Stage(Far(site), session, Door(site.url, ROUTER_TTL_S))
        await stage.play(agents_for(site, turns), turns)
        await stage.ask_cold()
    verdict = judge(stage.played, threshold=THRESHOLD, own_cache_block=None)
    with capfd.disabled():
        print(f"\n2P2D, {len(stage.played)} turns\n{verdict.table()}")
    assert verdict.wrong == ()
    assert verdict.total.share >= (OVERALL if turns > 100 else OVERALL_SHORT)
    told = [each.told for each in stage.played if each.told]
    assert len({each.prefill for each in told}) == 2
    assert len({each.decode for each in told}) == 2


@pytest.mark.parametrize("site", ["stand-in", pytest.param("real", marks=_SOAK)], indirect=True)
async def test_an_upgrade_by_cells_under_load(
    site: Site, grown: Operator, capfd: pytest.CaptureFixture[str]
) -> None:
    """What prefill and decode must have in common changes, so a pair is replaced at a time."""
    agents = agents_for(site, 0)[: REAL_AGENTS if site.real else None]
    async with aiohttp.ClientSession() as session:
        stage = Stage(Far(site), session, Door(site.url, ROUTER_TTL_S))
        await stage.play(agents, 30)
        newer = site.edit({**TWO, "model.max_model_len": 9216})
        began = time.monotonic()
        upgrade = asyncio.create_task(asyncio.to_thread(newer.types, "up", "--yes"))
        while not upgrade.done():
            await stage.play(agents, len(agents))
            await asyncio.sleep(REAL_PAUSE_S if site.real else 0)
        await stage.play(agents, 30)
        await stage.ask_cold()
    said = (await upgrade).err
    assert "one-kind" in said or "work together again" in said
    drained = drains(site, began)
    assert len(drained) == 2
    for each in stage.played:
        # Who had what on a decode server when that was drained has moved, and is cold once: what
        # was kept there is given back then, and nothing is kept of what ends there later.
        decode = each.told.decode if each.told else ""
        if each.sent < drained[decode]:
            each.until = drained[decode]
    verdict = judge(stage.played, threshold=THRESHOLD, own_cache_block=None, slack=0.0)
    with capfd.disabled():
        print(f"\nupgrade by cells, {len(stage.played)} turns, none failed\n{verdict.table()}")
    assert verdict.wrong == ()
    during = [each for each in stage.played if each.sent > min(drained.values())]
    assert {each.told.decode for each in during if each.told} == set(drained)
    assert verdict.total.share >= OVERALL


def drains(site: Site, began: float) -> dict[str, float]:
    """When each decode server was drained since `began`, by its URL, as the router tells."""
    log = site.router.path(f"{MARK}logs/router-0.log").read_text()
    offset = time.time() - time.monotonic()
    found = {}
    for line in log.splitlines():
        if told := re.match(r"(\S+ \S+) .* decode (\S+) gets nothing new", line):
            when = datetime.strptime(told[1], "%Y-%m-%d %H:%M:%S,%f").timestamp() - offset
            if when > began:
                found.setdefault(told[2], when)  # it is told of again when it parts
    return found


@pytest.mark.parametrize("site", ["stand-in"], indirect=True)
def test_a_host_that_died_is_taken_out_of_the_file(site: Site, grown: Operator) -> None:
    lost = site.lab.hosts[4]
    with calling(site.url, count=4) as callers:
        wait_until(lambda: len(callers.seen) > 12, limit=30)
        began = time.monotonic()
        lost.power_off()
        time.sleep(12)
        seen = told(callers.since(began), began)
    print(f"fault: one of two decode hosts lost its power: {seen}")
    assert seen.failed <= 4  # those that decode was answering
    assert callers.wrong(site.decode.address, site.operator.engine_key) == []
    refused = grown.types("up", "--yes", expect=69)
    assert lost.address in refused.err
    hosts = {**TWO, "target.hosts.decode": TWO["target.hosts.decode"][:1]}
    left = site.edit(hosts)
    said = left.types("up", "--yes").err
    assert f"{lost.address} is not in the configuration any more and cannot be reached" in said
    assert [each["role"] for each in left.asks("status")["roles"]] == [
        "prefill", "prefill", "decode", "router",
    ]  # fmt: skip
    lost.power_on()
    again = site.edit(TWO)
    again.types("up", "--yes")
    assert len(again.asks("status")["roles"]) == 5
