import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pdctl.base.paths import CACHE_DIR_ENV, STATE_DIR_ENV
from tests.cli.deployed import Deployed
from tests.observe.fakes import FakePair, fake_pair

Serve = Callable[..., tuple[FakePair, Path]]


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployed]:
    """A configuration of tiny servers; none of them outlives the test."""
    monkeypatch.setenv(STATE_DIR_ENV, str(tmp_path / "st"))
    monkeypatch.setenv(CACHE_DIR_ENV, str(tmp_path / "cache"))
    made = Deployed(tmp_path)
    yield made
    made.end_everything()


@contextmanager
def in_a_thread(**faults: Any) -> Iterator[FakePair]:
    """A fake pair that answers while the command line has this thread's loop for itself."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    serving = fake_pair(**faults)
    try:
        yield asyncio.run_coroutine_threadsafe(serving.__aenter__(), loop).result(10)
    finally:
        asyncio.run_coroutine_threadsafe(serving.__aexit__(None, None, None), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """`serve(**faults)` gives a fake pair and the configuration file that points at it."""
    monkeypatch.setenv("PDCTL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "100")
    with ExitStack() as servers:

        def make(**faults: Any) -> tuple[FakePair, Path]:
            pair = servers.enter_context(in_a_thread(**faults))
            router = pair.endpoints.router
            assert router is not None
            prefill, decode = pair.router.urls
            file = tmp_path / "pd.yaml"
            file.write_text(
                "name: fake\n"
                f"model: {{id: tiny, dtype: {pair.endpoints.dtype}}}\n"
                f"target: {{kind: external, prefill: ['{prefill}'], decode: ['{decode}']}}\n"
                f"router: {{port: {urlsplit(router.url).port}}}\n"
            )
            return pair, file

        yield make
