"""Nothing here may ask the real AWS, or whoever answers at 169.254.169.254."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pdctl.base.errors import TemporaryError, UnreachableError
from pdctl.deploy import ec2, ec2things, reach
from pdctl.targets import ec2 as ec2_asks
from pdctl.targets import ec2_read
from tests.ec2.account import ARRIVED, Account
from tests.ec2.cloud import Region, moto_network


@pytest.fixture(autouse=True)
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "aws-credentials"))
    monkeypatch.setenv("PDCTL_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture(scope="package")
def moto() -> Iterator[tuple[dict[str, str], str, str]]:
    """Started once: it takes seconds."""
    with moto_network() as made:
        yield made


@pytest.fixture
def region(moto: tuple[dict[str, str], str, str]) -> Iterator[Region]:
    made = Region(*moto)
    yield made
    made.clear()


@pytest.fixture
def account(region: Region, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Account:
    monkeypatch.setattr(ec2_read, "clients_of", lambda *_: region.client)
    monkeypatch.setattr(ec2_asks, "clients_of", lambda *_: region.client)
    monkeypatch.setattr(ec2things.Clock, "poll_s", 0.0)
    monkeypatch.setattr(ec2, "arrive", _raise(TemporaryError(ARRIVED)))
    monkeypatch.setattr(reach, "connect_all", _raise(UnreachableError("no host answers")))
    made = Account(region, tmp_path)
    made.write()
    return made


def _raise(error: Exception) -> Callable[..., None]:
    def do(*_: object, **__: object) -> None:
        raise error

    return do
