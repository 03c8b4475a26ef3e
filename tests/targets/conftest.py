from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import pytest

from pdctl.base.process import MARK_ENV, ProcessRef, ProcessSpec
from pdctl.targets.base import Host
from pdctl.targets.local import LocalHost
from pdctl.targets.ssh.host import SshHost
from tests.targets.programs import spec_of
from tests.targets.sshd import Sshd, running_sshd, why_not

Start = Callable[..., ProcessRef]


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """One for all tests that do it no harm."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture(scope="session")
def ssh_host(sshd: Sshd) -> Iterator[SshHost]:
    found = sshd.host("localhost")
    yield found
    found.close()


@pytest.fixture(params=["local", "ssh"])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    """This machine, reached in every way there is."""
    if request.param == "ssh":
        yield request.getfixturevalue("ssh_host")
        return
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
def start(host: Host, tmp_path: Path, mark: str, log: PurePosixPath) -> Iterator[Start]:
    """Start Python code in a marked process; whatever is left at the end is killed."""

    def run(code: str, *args: str, env: dict[str, str] | None = None) -> ProcessRef:
        spec: ProcessSpec = spec_of(code, *args, env={MARK_ENV: mark, **(env or {})})
        return host.start(spec, log)

    yield run
    for process in host.find(f"{tmp_path}/"):
        host.stop(process.ref, timeout=0)
    assert host.find(f"{tmp_path}/") == []
