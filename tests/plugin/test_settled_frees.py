"""Prefill pulls into no block that a step may still write: on a stand-in for the scheduler."""

import importlib
from dataclasses import dataclass, field
from typing import Any

import pytest

from pdctl.plugin import settled_frees
from pdctl.plugin._guard import Guard, Outcome
from tests.plugin import engine_shapes
from tests.plugin.conftest import InstallEngine

MODULE = "vllm.v1.core.sched.scheduler"
DONE = Outcome(
    "applied", "Scheduler waits for the steps under way before it reuses blocks, on prefill too"
)


@dataclass
class Transfer:
    is_kv_consumer: bool = False
    kv_connector_extra_config: dict[str, Any] = field(
        default_factory=lambda: {"bidirectional_kv_xfer": True}
    )


@dataclass
class VllmConfig:
    kv_transfer_config: Transfer | None = field(default_factory=Transfer)
    max_concurrent_batches: int = 2


def _apply() -> Outcome:
    guard = Guard(report=lambda outcomes: None)
    guard.apply("x", settled_frees.lever, {})
    importlib.import_module(MODULE)
    return guard.outcomes["x"]


def _scheduler(config: VllmConfig) -> Any:
    return importlib.import_module(MODULE).AsyncScheduler(config)


def _free_while_a_step_runs(scheduler: Any) -> list[int]:
    """What can be given to another request when one ends between two steps under way."""
    scheduler.schedule([1, 2])
    scheduler.schedule([1, 2])
    scheduler.update_from_output()
    scheduler.free([1, 2])
    return sorted(scheduler.free_blocks)


def test_prefill_reuses_no_block_that_a_step_may_write(install_engine: InstallEngine) -> None:
    install_engine(engine_shapes.SCHEDULER)
    assert _apply() == DONE
    scheduler = _scheduler(VllmConfig())
    assert _free_while_a_step_runs(scheduler) == []
    scheduler.update_from_output()
    assert sorted(scheduler.free_blocks) == [1, 2]


def test_without_it_vllm_does(install_engine: InstallEngine) -> None:
    """The reason for the lever; decode, which waits by itself, is the other half of it."""
    install_engine(engine_shapes.SCHEDULER)
    assert _free_while_a_step_runs(_scheduler(VllmConfig())) == [1, 2]
    assert _free_while_a_step_runs(_scheduler(VllmConfig(Transfer(is_kv_consumer=True)))) == []


@pytest.mark.parametrize(
    "config",
    [
        VllmConfig(max_concurrent_batches=1),
        VllmConfig(None),
        VllmConfig(Transfer(kv_connector_extra_config={})),
        VllmConfig(Transfer(kv_connector_extra_config={"bidirectional_kv_xfer": False})),
    ],
)
def test_nothing_changes_where_nothing_is_pulled_or_overlaps(
    install_engine: InstallEngine, config: VllmConfig
) -> None:
    install_engine(engine_shapes.SCHEDULER)
    assert _apply() == DONE
    assert not _scheduler(config).defer_block_free


def test_applied_once(install_engine: InstallEngine) -> None:
    install_engine(engine_shapes.SCHEDULER)
    _apply()
    owner = importlib.import_module(MODULE).Scheduler
    before = owner.__init__
    assert _apply() == DONE
    assert owner.__init__ is before


@pytest.mark.parametrize(
    ("old", "why"),
    [
        ("defer_block_free", "Scheduler.__init__ does not use defer_block_free"),
        ("sched_step_seq", "Scheduler.schedule does not use sched_step_seq"),
        ("processed_step_seq", "Scheduler.update_from_output does not use processed_step_seq"),
    ],
)
def test_what_it_does_not_know_it_leaves_alone(
    install_engine: InstallEngine, old: str, why: str
) -> None:
    ((path, source),) = engine_shapes.SCHEDULER.items()
    install_engine({path: source.replace(old, "another")})
    assert _apply() == Outcome("not-applicable", why)
    assert not hasattr(importlib.import_module(MODULE).Scheduler.__init__, "__wrapped__")
