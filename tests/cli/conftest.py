from collections.abc import Iterator
from pathlib import Path

import pytest

from pdctl.base.paths import CACHE_DIR_ENV, STATE_DIR_ENV
from tests.cli.deployed import Deployed


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployed]:
    """A configuration of tiny servers; none of them outlives the test."""
    monkeypatch.setenv(STATE_DIR_ENV, str(tmp_path / "st"))
    monkeypatch.setenv(CACHE_DIR_ENV, str(tmp_path / "cache"))
    made = Deployed(tmp_path)
    yield made
    made.end_everything()
