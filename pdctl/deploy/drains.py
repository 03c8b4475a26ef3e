"""Telling all routers which engines get nothing new, and waiting until those have nothing left.

What is drained is recorded before the routers hear of it, and everything recorded is told each
time: a router that forgot, or was not there, knows it then.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

from pdctl.base.durations import format_duration
from pdctl.base.errors import PermissionDeniedError, TemporaryError, UsageError
from pdctl.base.events import StepDone, StepStarted, StepWaiting
from pdctl.base.explain import ADMIN_TENANT
from pdctl.base.words import listed
from pdctl.config.model import Config, ExternalTarget
from pdctl.deploy import audit
from pdctl.deploy.world import World
from pdctl.observe.engines import EngineView, RouterView, Setting, ask_engines
from pdctl.state.model import DeploymentState, ProcessRecord
from pdctl.state.store import StateStore

_POLL_S = 0.3
_WORD_EVERY_S = 15.0
_PROOF_LIMIT_S = 180.0
_HOW_TO_ADD = (
    "add one, with KEY of your own such as `openssl rand -hex 24` makes, then `pdctl up` takes "
    "it to the routers, which read it while they run"
)

Views = Sequence[RouterView]


@dataclass(frozen=True)
class Told:
    """What one router says of one engine after a change.

    Attributes:
        drained: why it gets nothing new; empty when it does.
        turns: requests of the router that still need it.
        handles: of its blocks.
    """

    router: str
    engine: str
    drained: str
    turns: int
    handles: int

    def as_dict(self) -> dict[str, object]:
        """The shape in `drain --json`."""
        return asdict(self)


def limit_of(config: Config) -> float:
    """Seconds for requests on an engine that is drained to end by themselves."""
    assert not isinstance(config.target, ExternalTarget)
    return config.target.drain_timeout


def why_not(config: Config, key: str | None) -> str:
    """Why routers do not take it from us which engines get nothing new; empty when they do.

    Args:
        key: an API key of the tenant `admin`.
    """
    if config.router.kind != "pdctl":
        return "the example proxy cannot leave an engine out"
    file = config.router.api_keys_file
    if file is None or key is not None:
        return ""
    return (
        f"routers take a drain from a key of the tenant `{ADMIN_TENANT}` only, and {file} has no "
        f"line `{ADMIN_TENANT}:KEY` (a digest in place of the key does not do); {_HOW_TO_ADD}"
    )


def require_switch(config: Config, key: str | None) -> None:
    """Refuse routers that do not take drains from us.

    Raises:
        UsageError: they are not pdctl's.
        PermissionDeniedError: they want a key that is not there; says which line to add.
    """
    why = why_not(config, key)
    if why and config.router.kind != "pdctl":
        raise UsageError(why, where="key `router.kind`")
    if why:
        file = config.router.api_keys_file
        raise PermissionDeniedError(
            f"routers take a drain from a key of the tenant `{ADMIN_TENANT}` only",
            where=f"{file}, key `router.api_keys_file`",
            expected=f"a line `{ADMIN_TENANT}:KEY`; a digest in place of the key does not do",
            hints=[_HOW_TO_ADD],
        )


def set_drained(
    world: World,
    store: StateStore,
    state: DeploymentState,
    names: Sequence[str],
    why: str,
    key: str | None,
    *,
    wait: float | None,
) -> list[Told]:
    """Drain engines for a reason, or undrain them for none.

    Args:
        wait: seconds to wait at most until they are idle; None for not at all.

    Raises:
        PdctlError: a router does not answer or refuses, or requests do not end in time.
    """
    state = state.with_drained(names, why)
    store.save(state)
    routers = Routers.of(world, state, key)
    routers.tell(state)
    change = f"{'drain' if why else 'undrain'} {', '.join(names)}"
    audit.note_on(world, routers.hosts, state.name, change)
    if wait is not None:
        step, what = f"drain-{'+'.join(names)}", f"wait for what {listed(names)} still has"
        began = world.monotonic()
        world.listen(StepStarted(step, what))
        routers.wait_idle(step, state, names, limit=wait)
        world.listen(StepDone(step, what, world.monotonic() - began))
    return look(world, state, names, key)


def look(world: World, state: DeploymentState, names: Sequence[str], key: str | None) -> list[Told]:
    """What the routers say of engines now; changes nothing."""
    urls = {state.processes[name].url: name for name in names}
    return [
        Told(view.name, urls[engine.url], engine.drained, engine.turns, engine.handles)
        for view in Routers.of(world, state, key).views()
        for engine in view.engines.values()
        if engine.url in urls
    ]


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

    @property
    def hosts(self) -> list[str]:
        """Where they are."""
        return [record.host for record in self.records]

    def tell(self, state: DeploymentState) -> Views:
        """Tell all of them everything that is recorded of engines.

        Raises:
            PdctlError: one does not answer, or refuses.
        """
        return self._ask(_setting_of(state))

    def views(self) -> Views:
        """What they say now."""
        return self._ask(None)

    def wait_idle(
        self, step: str, state: DeploymentState, names: Collection[str], *, limit: float
    ) -> str:
        """Until no router has a request that needs one of these engines.

        Args:
            limit: seconds.

        Raises:
            TemporaryError: the limit passed; they stay drained.
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
                f"requests did not end within {format_duration(limit)}; "
                f"{listed(sorted(urls.values()))} stays drained and was not ended",
                detail=left,
                hints=[
                    "run it again to wait on; `target.drain_timeout` is the limit",
                    "`pdctl undrain` lets requests go there again",
                ],
            )

        self._until(step, busy, late, limit=limit)
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
