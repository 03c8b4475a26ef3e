"""What is scheduled anew on prefill does not wait for a pull that nobody starts."""

import importlib
from dataclasses import dataclass
from typing import Any

import pytest

from pdctl.plugin import lease_renewal, pull_once
from pdctl.plugin._guard import Guard, Outcome
from tests.plugin import engine_shapes
from tests.plugin.conftest import InstallEngine

MODULE = "vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler"
DONE = Outcome("applied", "NixlPullConnectorScheduler counts on each pull once")


@dataclass
class Request:
    kv_transfer_params: dict[str, Any] | None
    request_id: str = "r"


def _handle() -> dict[str, Any]:
    return {"do_remote_decode": True, "remote_block_ids": [[1, 2]], "remote_num_tokens": 300}


def _apply() -> Outcome:
    guard = Guard(report=lambda outcomes: None)
    guard.apply("x", pull_once.lever, {})
    importlib.import_module(MODULE)
    return guard.outcomes["x"]


def _scheduler() -> Any:
    return importlib.import_module(MODULE).NixlPullConnectorScheduler()


def _waits_for_ever(scheduler: Any, request: Request) -> bool:
    """Schedule a request: it waits for a pull, and none is started."""
    tokens, waits = scheduler.get_num_new_matched_tokens(request, 0)
    scheduler._reqs_need_recv.clear()
    scheduler.update_state_after_alloc(request, None, tokens)
    return bool(waits) and not scheduler._reqs_need_recv


def test_scheduled_anew_it_is_computed(install_engine: InstallEngine) -> None:
    install_engine(engine_shapes.PULLS)
    assert _apply() == DONE
    scheduler, request = _scheduler(), Request(_handle())
    assert not _waits_for_ever(scheduler, request)
    assert scheduler._reqs_need_recv == {"r": 300}
    assert not _waits_for_ever(scheduler, request)
    assert scheduler.get_num_new_matched_tokens(request, 0) == (0, False)


def test_without_it_it_waits_for_ever(install_engine: InstallEngine) -> None:
    """The reason for the lever."""
    install_engine(engine_shapes.PULLS)
    scheduler, request = _scheduler(), Request(_handle())
    assert not _waits_for_ever(scheduler, request)
    assert _waits_for_ever(scheduler, request)


@pytest.mark.parametrize(
    ("params", "matched"),
    [
        (None, (0, False)),
        ({}, (0, False)),
        (_handle(), (290, True)),
        ({"do_remote_prefill": True}, (90, True)),
        ({"do_remote_prefill": True, "_remote_blocks_processed": True}, (90, True)),
    ],
)
def test_everything_else_is_as_ever(
    install_engine: InstallEngine, params: dict[str, Any] | None, matched: tuple[int, bool]
) -> None:
    install_engine(engine_shapes.PULLS)
    assert _apply() == DONE
    assert _scheduler().get_num_new_matched_tokens(Request(params), 10) == matched


def test_applied_once(install_engine: InstallEngine) -> None:
    install_engine(engine_shapes.PULLS)
    _apply()
    owner = importlib.import_module(MODULE).NixlPullConnectorScheduler
    before = owner.get_num_new_matched_tokens
    assert _apply() == DONE
    assert owner.get_num_new_matched_tokens is before


def test_another_lever_was_there_first(install_engine: InstallEngine) -> None:
    install_engine(engine_shapes.PULLS)
    owner = importlib.import_module(MODULE).NixlPullConnectorScheduler
    owner.update_state_after_alloc = lease_renewal.granting(owner.update_state_after_alloc)
    assert _apply() == DONE


@pytest.mark.parametrize(
    ("old", "new", "state", "why"),
    [
        (
            "_remote_blocks_processed",
            "_started",
            "not-applicable",
            "NixlPullConnectorScheduler.update_state_after_alloc does not use"
            " _remote_blocks_processed",
        ),
        (
            'params.get("do_remote_decode") and params.get("remote_block_ids")',
            'params.get("do_remote_decode") and not params.get("_remote_blocks_processed")',
            "not-needed",
            "NixlPullConnectorScheduler.get_num_new_matched_tokens handles"
            " _remote_blocks_processed in this vLLM",
        ),
    ],
)
def test_what_it_does_not_know_it_leaves_alone(
    install_engine: InstallEngine, old: str, new: str, state: str, why: str
) -> None:
    ((path, source),) = engine_shapes.PULLS.items()
    assert old in source
    install_engine({path: source.replace(old, new)})
    assert _apply() == Outcome(state, why)
    owner = importlib.import_module(MODULE).NixlPullConnectorScheduler
    assert not hasattr(owner.get_num_new_matched_tokens, "__wrapped__")
