"""Fixtures of the tests on two real engines.

`pair` is the running pair; a test (or module) that needs another setup says so:

    pytestmark = pytest.mark.engines(Setup("flag-off", config={"kv.bidirectional": False}))

Tests are ordered by setup, so that each pair starts once. `router` is a router in this process
over that pair.
"""

from collections.abc import AsyncIterator, Callable, Iterator

import aiohttp
import pytest

from tests.e2e.harness import DEFAULT, Pair, Pairs, Routed, Setup, routed

_TEST_LIMIT_S = 240


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "engines(setup): the pair that the test needs")


def setup_of(item: pytest.Item) -> Setup:
    marker = item.get_closest_marker("engines")
    setup = marker.args[0] if marker else DEFAULT
    assert isinstance(setup, Setup)
    return setup


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here, limit the tests but not the start of engines, and order by setup."""
    here = [item for item in items if item.path.is_relative_to(__file__.rpartition("/")[0])]
    setups: list[Setup] = [DEFAULT]
    for item in here:
        item.add_marker(pytest.mark.e2e)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_TEST_LIMIT_S, func_only=True))
        if setup_of(item) not in setups:
            setups.append(setup_of(item))
    order = {id(item): (1, setups.index(setup_of(item))) for item in here}
    items.sort(key=lambda item: order.get(id(item), (0, 0)))


@pytest.fixture(scope="session")
def pairs(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Pairs]:
    """The pair that runs and the way to others; fails the run if anything of them is left."""
    terminal = request.config.pluginmanager.get_plugin("terminalreporter")

    def tell(text: str) -> None:
        if terminal is not None:
            terminal.write_line(f"  {text}")

    running = Pairs(tmp_path_factory.mktemp("e2e"), tell)
    try:
        yield running
    finally:
        running.stop()
        left = running.leftovers()
        assert left == [], f"the tests leave behind: {left}"


@pytest.fixture
def pair(pairs: Pairs, request: pytest.FixtureRequest) -> Pair:
    """The pair that the test asks for, healthy, with its TTL as configured."""
    return pairs.get(setup_of(request.node))


@pytest.fixture
def pair_factory(pairs: Pairs) -> Callable[[Setup], Pair]:
    """`pair_factory(setup)`: change the pair within a test; the one before is ended."""
    return pairs.get


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """A client session; what it carries is closed with the test."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield session


@pytest.fixture
async def router(pair: Pair) -> AsyncIterator[Routed]:
    """A router over the pair that has proven it."""
    async with routed(pair) as running:
        yield running
