from collections.abc import Iterator
from pathlib import Path

import pytest

from pdctl.base.paths import CACHE_DIR_ENV, STATE_DIR_ENV
from tests.deploy.pair import Pair


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """A pair that is not started yet; nothing of it outlives the test."""
    monkeypatch.setenv(STATE_DIR_ENV, str(tmp_path / "st"))
    monkeypatch.setenv(CACHE_DIR_ENV, str(tmp_path / "cache"))
    made = Pair()
    yield made
    made.end_everything()
    made.host.close()
