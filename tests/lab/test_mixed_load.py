"""Two prefill and two decode hosts and a router, under the mixed load of `tests/proofs`.

The agents and the oracle are those of the tests on one machine; what they need of the engines goes
over the lab's wire. Prefill's own prefix cache is off there, so what was not computed was pulled.
"""

import itertools

import aiohttp
import pytest

from tests.e2e.harness import Sender
from tests.e2e.play import Door, Stage, judge
from tests.lab.site import Operator, Site
from tests.proofs.agents import team

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

TWO = {
    "target.hosts.prefill": [{"address": "10.77.254.11"}, {"address": "10.77.254.14"}],
    "target.hosts.decode": [{"address": "10.77.254.12"}, {"address": "10.77.254.15"}],
}
THRESHOLD = 64
ROUTER_TTL_S = 472.0
OVERALL, OVERALL_SHORT = 0.95, 0.9
"""Of what the oracle says was possible; in a short session two or three turns decide."""

short = pytest.param(48, id="short")
long = pytest.param(300, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(3600)])


class Far(Sender):
    """The lab's engines; cold answers come from both decode hosts."""

    def __init__(self, site: Site) -> None:
        super().__init__("pdctl/tiny-random")
        hosts = (site.decode, site.lab.hosts[4])
        self._urls = itertools.cycle(f"http://{host.address}:8100" for host in hosts)

    @property
    def decode(self) -> str:
        """Each in turn."""
        return next(self._urls)


@pytest.fixture(scope="module")
def grown(site: Site) -> Operator:
    """The example with two engines more; the ones that run are left alone."""
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


@pytest.mark.parametrize("turns", [short, long])
async def test_four_engines_reuse_what_the_oracle_says(
    site: Site, grown: Operator, turns: int, capfd: pytest.CaptureFixture[str]
) -> None:
    async with aiohttp.ClientSession() as session:
        stage = Stage(Far(site), session, Door(site.url, ROUTER_TTL_S))
        agents = team(seed=57 + turns, size=8 + turns // 50)
        for agent in agents:
            agent.tenant = "a"  # the example's router asks for no keys
        await stage.play(agents, turns)
        await stage.ask_cold()
    verdict = judge(stage.played, threshold=THRESHOLD, own_cache_block=None)
    with capfd.disabled():
        print(f"\n2P2D, {len(stage.played)} turns\n{verdict.table()}")
    assert verdict.wrong == ()
    assert verdict.total.share >= (OVERALL if turns > 100 else OVERALL_SHORT)
    told = [each.told for each in stage.played if each.told]
    assert len({each.prefill for each in told}) == 2
    assert len({each.decode for each in told}) == 2
    assert grown.asks("status")["roles"][4]["healthy"]
