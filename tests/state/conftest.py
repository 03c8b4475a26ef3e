from pathlib import Path

import pytest

from pdctl.base.paths import STATE_DIR_ENV


@pytest.fixture(autouse=True)
def state_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "state"
    monkeypatch.setenv(STATE_DIR_ENV, str(root))
    return root
