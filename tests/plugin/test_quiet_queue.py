"""How long a reader of the shared-memory queue spins."""

import importlib

import pytest

from pdctl.plugin import quiet_queue
from pdctl.plugin._guard import Guard, Outcome
from tests.plugin import engine_shapes
from tests.plugin.conftest import InstallEngine

MODULE = "vllm.distributed.device_communicators.shm_broadcast"


def _apply(value: str = "0") -> Guard:
    guard = Guard(report=lambda outcomes: None)
    guard.apply("x", quiet_queue.lever, {"PDCTL_QUEUE_SPIN_MS": value} if value else {})
    return guard


def test_readers_do_not_spin(install_engine: InstallEngine) -> None:
    install_engine(engine_shapes.QUEUE)
    guard = _apply()
    assert guard.outcomes["x"].state == "waiting"
    condition = importlib.import_module(MODULE).SpinCondition
    assert guard.outcomes["x"] == Outcome(
        "applied", "readers of the shared-memory queue spin 0 ms before they sleep"
    )
    assert condition(True).busy_loop_s == 0
    assert condition(is_reader=False).busy_loop_s == 0


def test_a_shorter_time_of_vllms_own_is_kept(install_engine: InstallEngine) -> None:
    install_engine(engine_shapes.QUEUE)
    _apply("500")
    condition = importlib.import_module(MODULE).SpinCondition
    assert condition(True).busy_loop_s == 0.5
    assert condition(True, 0.1).busy_loop_s == 0.1


def test_no_reader_waits_long_for_a_notification_that_may_be_lost(
    install_engine: InstallEngine,
) -> None:
    install_engine(engine_shapes.QUEUE)
    _apply()
    reader = importlib.import_module(MODULE).SpinCondition(True)
    for given, waited in ((None, 2), (1000, 2), (1, 1)):
        reader.wait(timeout_ms=given)
        assert reader.waited == waited


def test_applied_once(install_engine: InstallEngine) -> None:
    install_engine(engine_shapes.QUEUE)
    _apply()
    condition = importlib.import_module(MODULE).SpinCondition
    patched = condition.__init__
    _apply()
    assert condition.__init__ is patched


@pytest.mark.parametrize(
    ("found", "put", "why"),
    [
        ("busy_loop_s", "spin_s", "SpinCondition takes no busy_loop_s"),
        ("timeout_ms=None", "ms=None", "SpinCondition.wait takes no timeout_ms"),
        ("class SpinCondition", "class Condition", "has no SpinCondition"),
    ],
)
def test_not_applicable_where_the_shape_is_another(
    install_engine: InstallEngine, found: str, put: str, why: str
) -> None:
    install_engine(
        {path: source.replace(found, put) for path, source in engine_shapes.QUEUE.items()}
    )
    guard = _apply()
    importlib.import_module(MODULE)
    assert guard.outcomes["x"].state == "not-applicable"
    assert why in guard.outcomes["x"].why


@pytest.mark.parametrize(("value", "state"), [("", "off"), ("-1", "not-applicable")])
def test_what_was_not_asked_for_is_not_done(
    install_engine: InstallEngine, value: str, state: str
) -> None:
    install_engine(engine_shapes.QUEUE)
    assert _apply(value).outcomes["x"].state == state
