"""The router's tests run on the loop that the router runs on."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from pdctl.router import server


@pytest.hookimpl(optionalhook=True)  # older versions of pytest-asyncio do without
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"router": server.loop_factory() or asyncio.new_event_loop}
