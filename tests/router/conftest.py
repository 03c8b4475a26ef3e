"""The router's tests run on the loop that the router runs on; some share a redis-server."""

import asyncio
from collections.abc import Callable, Iterator, Mapping

import pytest

from pdctl.router.serve import loop_factory
from tests.router.redis_server import RedisServer


@pytest.hookimpl(optionalhook=True)  # older versions of pytest-asyncio do without
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"router": loop_factory() or asyncio.new_event_loop}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One for all tests of a module that leave it as it is."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server
