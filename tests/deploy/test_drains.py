"""What deploying says to routers, said to a real one."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from pdctl.base.command import command
from pdctl.base.paths import STATE_DIR_ENV
from pdctl.base.process import ProcessRef, ProcessSpec, RoleName
from pdctl.deploy import drains
from pdctl.deploy.world import World
from pdctl.state.model import DeploymentState, Intervals, record_of
from pdctl.state.store import StateStore
from pdctl.targets.local import LocalHost
from tests.router.test_server import LONG, user, world
from tests.router.test_server import World as Routed


class Living(LocalHost):
    """Everything that is recorded runs there."""

    def alive(self, ref: ProcessRef) -> bool:
        return True


def state_of(w: Routed) -> DeploymentState:
    state = DeploymentState(
        "demo", "local", "running", "0", "/pd.yaml", "d", 0.0, 20.0, Intervals(480.0, 472.0)
    )
    urls: tuple[tuple[RoleName, str], ...] = (
        ("prefill", w.p.url), ("decode", w.d.url), ("router", w.url)
    )  # fmt: skip
    for role, url in urls:
        port = int(url.rpartition(":")[2])
        spec = ProcessSpec(role, 0, "here", "127.0.0.1", port, None, command(role), "log")
        record = record_of(spec, log="/log", engine_id=None)
        state = state.with_process(replace(record, ref=ProcessRef(1, 1, "boot")))
    return state


async def test_a_drain_waits_for_the_turn_that_runs_and_admits_what_is_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STATE_DIR_ENV, str(tmp_path))
    there = World({"here": Living("here")})
    async with world() as w:
        state = state_of(w)
        w.d.words, w.d.gap = 20, 0.05
        turn = asyncio.create_task(w.ask([user(LONG)], stream=True))
        await w.until(lambda: len(w.d.seen) == 1)
        told = await asyncio.to_thread(
            drains.set_drained, there, StateStore("demo"), state, ["decode-0"], "by hand", None,
            wait=60.0,
        )  # fmt: skip
        assert turn.done()
        assert [(each.engine, each.drained, each.turns, each.handles) for each in told] == [
            ("decode-0", "by hand", 0, 0)
        ]
        assert (await w.ask([user(LONG)]))[0] == 503

        routers = drains.Routers.of(there, state, None)
        names = ["prefill-0", "decode-0"]
        # It was proven before, and is so while it is drained.
        await asyncio.to_thread(routers.wait_proven, "pairs", state, names)
        parted = state.with_generation(["decode-0"], "new")
        await asyncio.to_thread(routers.tell, parted)
        (view,) = await asyncio.to_thread(routers.views)
        assert [engine.proven for engine in view.engines.values()] == [False, False]
        monkeypatch.setattr(drains, "_PROOF_LIMIT_S", 0.1)
        with pytest.raises(drains.TemporaryError) as late:
            await asyncio.to_thread(routers.wait_proven, "pairs", parted, names)
        assert late.value.detail[0] == "prefill-0 by router-0: no pair yet"
