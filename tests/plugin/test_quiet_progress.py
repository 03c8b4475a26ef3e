"""The delay of NIXL's progress thread."""

import importlib
import sys

import pytest

from pdctl.plugin import _guard, quiet_progress
from pdctl.plugin._guard import Guard, Outcome
from tests.plugin import engine_shapes
from tests.plugin.conftest import InstallEngine

ENV = {"PDCTL_NIXL_PROGRESS_US": "1000"}


def _apply() -> Guard:
    guard = Guard(report=lambda outcomes: None)
    guard.apply("x", quiet_progress.lever, ENV)
    return guard


def test_through_the_meta_package(install_engine: InstallEngine) -> None:
    install_engine(engine_shapes.NIXL_151)
    guard = _apply()
    assert guard.outcomes["x"].state == "waiting"
    assert not {"nixl", "nixl_cu12"} & sys.modules.keys()  # vLLM imports it, at its own time

    api = importlib.import_module("nixl._api")

    assert guard.outcomes["x"].state == "applied"
    config = api.nixl_agent("a").agent.config
    assert (config.pthrDelay, config.lthrDelay) == (1000, 100000)


def test_in_one_package(install_engine: InstallEngine) -> None:
    install_engine(engine_shapes.NIXL_ONE_PACKAGE)
    guard = _apply()
    api = importlib.import_module("nixl._api")
    assert guard.outcomes["x"] == Outcome(
        "applied", "the progress thread of nixl._api waits 1000 µs between polls"
    )
    assert api.nixl_agent("a").agent.config.pthrDelay == 1000


def test_a_delay_that_nixl_was_given_is_kept(install_engine: InstallEngine) -> None:
    install_engine(engine_shapes.NIXL_ONE_PACKAGE)
    _apply()
    api = importlib.import_module("nixl._api")
    assert api.nixl_agent("a", delay=5).agent.config.pthrDelay == 5


def test_applied_once(install_engine: InstallEngine) -> None:
    install_engine(engine_shapes.NIXL_ONE_PACKAGE)
    _apply()
    bindings = importlib.import_module("nixl._api").nixlBind
    patched = bindings.nixlAgent
    _apply()
    assert bindings.nixlAgent is patched


def test_not_applicable_without_nixl(install_engine: InstallEngine) -> None:
    install_engine(engine_shapes.VLLM_WITHOUT_ANY)
    outcome = _apply().outcomes["x"]
    assert outcome.state == "not-applicable"
    assert "there is no module nixl._api" in outcome.why


@pytest.mark.parametrize(
    ("found", "put", "why"),
    [
        ("pthrDelay = 7", "pass", "nixlAgentConfig has no pthrDelay"),
        ("class nixlAgent:", "class Agent:", "_bindings has no nixlAgent"),
    ],
)
def test_not_applicable_where_the_shape_is_another(
    install_engine: InstallEngine, found: str, put: str, why: str
) -> None:
    tree = engine_shapes.NIXL_ONE_PACKAGE
    install_engine({path: source.replace(found, put) for path, source in tree.items()})
    guard = _apply()
    importlib.import_module("nixl._api")
    assert guard.outcomes["x"].state == "not-applicable"
    assert why in guard.outcomes["x"].why


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "fast", "1000001", "٣", "9" * 5000])
def test_odd_values_are_refused(value: str) -> None:
    guard = Guard(report=lambda outcomes: None)
    guard.apply("x", quiet_progress.lever, {"PDCTL_NIXL_PROGRESS_US": value})
    assert guard.outcomes["x"].state == "not-applicable"


@pytest.mark.parametrize("env", [{}, {"PDCTL_NIXL_PROGRESS_US": " "}])
def test_off_when_not_asked_for(env: dict[str, str]) -> None:
    with pytest.raises(_guard.Off):
        quiet_progress.lever(env)
