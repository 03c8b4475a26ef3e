"""What holds for all tests."""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from pdctl.base.paths import STATE_DIR_ENV

# A busy machine is no error; whatever has to be fast is measured in benchmarks/.
settings.register_profile("pdctl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pdctl")


# A shell has Ctrl-C ignored in what it puts into the background, and so in all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _state_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Deployments that run on this machine are not for tests to see, and less to change."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(STATE_DIR_ENV, str(tmp_path_factory.mktemp("state")))
        yield
