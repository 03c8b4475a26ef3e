"""A real host with a real engine's Python: NIXL's backends are really loaded. Starts no engine."""

import os
from dataclasses import replace

import pytest

from pdctl.base.hostfacts import HostFacts
from pdctl.base.paths import cache_root
from pdctl.doctor.rows.host import CHECKS
from pdctl.doctor.table import run_checks
from pdctl.engine.install import cpu_recipe
from pdctl.engine.versions import default_nixl, default_vllm
from pdctl.observe.host import read_host
from pdctl.targets.local import LocalHost
from tests.doctor.hosts import LAPTOP_WANT, pair
from tests.e2e.harness import PYTHON_ENV


def engine_python() -> str:
    if python := os.environ.get(PYTHON_ENV):
        return python
    from pathlib import PurePosixPath

    vllm = default_vllm("cpu")
    recipe = cpu_recipe(
        PurePosixPath(cache_root()),
        vllm=vllm,
        nixl=default_nixl("cpu", vllm),
        python=None,
        default_python="python3",
        torch_index=None,
    )
    return str(recipe.layout.python)


@pytest.fixture(scope="module")
def host() -> HostFacts:
    python = engine_python()
    if not os.path.exists(python):
        pytest.skip(f"no engine is installed: there is no {python}")
    want = replace(LAPTOP_WANT, engine_python=python, backends=("UCX", "LIBFABRIC"))
    return read_host(LocalHost("localhost"), want)


def test_ucx_loads(host: HostFacts) -> None:
    assert host.nixl is not None
    ucx = host.nixl.backends[0]
    assert (ucx.backend, ucx.ok) == ("UCX", True), ucx
    assert host.nixl.ucx
    assert host.nixl.vllm


def test_libfabric_does_not_load_without_efa_and_says_what_is_missing(host: HostFacts) -> None:
    if host.efa is None or host.efa.devices:
        pytest.skip("this machine has EFA")
    assert host.nixl is not None
    libfabric = host.nixl.backends[1]
    assert libfabric.ok is False
    assert libfabric.missing or "No network devices" in libfabric.error
    found = {f.id: f for f in run_checks(pair(host), CHECKS)}["host.nixl.backend"]
    assert found.status == "fail"
    assert found.fix is not None
    assert "see what the loader says" not in found.fix.text  # it knows better than that
