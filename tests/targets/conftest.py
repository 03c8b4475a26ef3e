from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import pytest

from pdctl.base.process import MARK_ENV, ProcessRef, ProcessSpec
from pdctl.targets.local import LocalHost
from tests.targets.programs import spec_of

Start = Callable[..., ProcessRef]


@pytest.fixture
def host() -> Iterator[LocalHost]:
    local = LocalHost()
    yield local
    local.close()


@pytest.fixture
def mark(tmp_path: Path) -> str:
    return f"{tmp_path}/prefill-0"


@pytest.fixture
def log(tmp_path: Path) -> PurePosixPath:
    return PurePosixPath(tmp_path / "logs" / "p.log")


@pytest.fixture
def start(host: LocalHost, tmp_path: Path, mark: str, log: PurePosixPath) -> Iterator[Start]:
    """Start Python code in a marked process; whatever is left at the end is killed."""

    def run(code: str, *args: str, env: dict[str, str] | None = None) -> ProcessRef:
        spec: ProcessSpec = spec_of(code, *args, env={MARK_ENV: mark, **(env or {})})
        return host.start(spec, log)

    yield run
    for process in host.find(f"{tmp_path}/"):
        host.stop(process.ref, timeout=0)
    assert host.find(f"{tmp_path}/") == []
