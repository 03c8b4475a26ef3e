"""An engine's Python process, as far as the plugin can tell."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pdctl.plugin import _imports
from tests.plugin import engine_shapes

InstallEngine = Callable[..., None]


@pytest.fixture
def install_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InstallEngine]:
    """Put stand-ins for vLLM and NIXL on the path; afterwards nothing of them is left."""
    root = tmp_path / "site-packages"

    def install(*trees: dict[str, str]) -> None:
        engine_shapes.write(root, *trees)
        monkeypatch.syspath_prepend(str(root))

    _forget()
    yield install
    _forget()


def _forget() -> None:
    for name in list(sys.modules):
        if name.split(".")[0] in ("vllm", "nixl", "nixl_cu12"):
            del sys.modules[name]
    _imports._waiting.clear()
    sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, _imports._Finder)]
