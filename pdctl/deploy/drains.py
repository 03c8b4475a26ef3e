"""Telling all routers which engines get nothing new, and waiting until those have nothing left.

What is drained is recorded before the routers hear of it, and everything recorded is told each
time: a router that forgot, or was not there, knows it then.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from pdctl.base.durations import format_duration
from pdctl.base.errors import TemporaryError
from pdctl.base.events import StepWaiting
from pdctl.base.words import listed
from pdctl.deploy.world import World
from pdctl.observe.engines import EngineView, RouterView, Setting, ask_engines
from pdctl.state.model import DeploymentState, ProcessRecord

_POLL_S = 0.3
_WORD_EVERY_S = 15.0
DRAIN_LIMIT_S = 600.0
"""For requests to end by themselves; a long answer takes minutes."""
_PROOF_LIMIT_S = 180.0

Views = Sequence[RouterView]


@dataclass(frozen=True)
class Routers:
    """The routers of a deployment that run.

    Attributes:
        key: an API key of the tenant `admin`, where routers want one.
    """

    world: World
    records: tuple[ProcessRecord, ...]
    key: str | None

    @classmethod
    def of(cls, world: World, state: DeploymentState, key: str | None) -> "Routers":
        """Those of a state that live; one that is dead sends nothing anywhere."""
        records = tuple(
            record
            for record in state.of_role("router")
            if record.ref is not None and world.hosts[record.host].alive(record.ref)
        )
        return cls(world, records, key)

    def tell(self, state: DeploymentState) -> Views:
        """Tell all of them everything that is recorded of engines.

        Raises:
            PdctlError: one does not answer, or refuses.
        """
        return self._ask(_setting_of(state))

    def wait_idle(self, step: str, state: DeploymentState, names: Collection[str]) -> str:
        """Until no router has a request that needs one of these engines.

        Raises:
            TemporaryError: `DRAIN_LIMIT_S` passed; they stay drained.
        """
        urls = {state.processes[name].url: name for name in names if name in state.processes}

        def busy(views: Views) -> list[str]:
            return [
                f"{urls[engine.url]} has {_requests(engine.turns)} of {view.name}"
                for view in views
                for engine in view.engines.values()
                if engine.url in urls and engine.turns
            ]

        def late(left: list[str]) -> TemporaryError:
            return TemporaryError(
                f"requests did not end within {format_duration(DRAIN_LIMIT_S)}; "
                f"{listed(sorted(urls.values()))} stays drained and was not ended",
                detail=left,
                hints=["run it again to wait on", "`pdctl undrain` lets requests go there again"],
            )

        self._until(step, busy, late, limit=DRAIN_LIMIT_S)
        return ""

    def wait_proven(self, step: str, state: DeploymentState, names: Collection[str]) -> str:
        """Until each router has proven a pair of each of these engines that it knows.

        Raises:
            TemporaryError: that did not come about in time; says why it did not.
        """
        urls = {state.processes[name].url: name for name in names}

        def unproven(views: Views) -> list[str]:
            return [
                f"{urls[engine.url]} by {view.name}: {'; '.join(engine.reasons) or 'no pair yet'}"
                for view in views
                for engine in view.engines.values()
                if engine.url in urls and not _is_proven(engine, view)
            ]

        def late(left: list[str]) -> TemporaryError:
            return TemporaryError(
                f"KV was not seen to go both ways within {format_duration(_PROOF_LIMIT_S)}",
                detail=left,
                expected="a pair of each engine that is proven",
                hints=[
                    "it gets no requests; what was not replaced yet goes on serving",
                    "`pdctl doctor` looks for the cause; `pdctl up` goes on from here",
                ],
            )

        self._until(step, unproven, late, limit=_PROOF_LIMIT_S)
        return ""

    def _until(
        self,
        step: str,
        left_of: Callable[[Views], list[str]],
        late: Callable[[list[str]], TemporaryError],
        *,
        limit: float,
    ) -> None:
        world, began = self.world, self.world.monotonic()
        told = 0.0
        while left := left_of(self._ask(None)):
            elapsed = world.monotonic() - began
            if elapsed >= limit:
                raise late(left)
            if elapsed - told >= _WORD_EVERY_S:
                told = elapsed
                world.listen(StepWaiting(step, "; ".join(left), elapsed, limit))
            world.sleep(_POLL_S)

    def _ask(self, setting: Setting | None) -> Views:
        asked = [(record.name, self.world.near(record)) for record in self.records]
        return asyncio.run(ask_engines(asked, self.key, setting)) if asked else []


def _is_proven(engine: EngineView, view: RouterView) -> bool:
    # Where nothing is reused at all (`kv.bidirectional: false`, some models), one way is all.
    return engine.healthy and (engine.proven or (engine.moves_kv and not view.reuses))


def _setting_of(state: DeploymentState) -> Mapping[str, Mapping[str, str]]:
    return {
        record.url: {
            "drained": state.drained.get(name, ""),
            "generation": state.generations.get(name, ""),
        }
        for name, record in state.processes.items()
        if record.role != "router"
    }


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"
