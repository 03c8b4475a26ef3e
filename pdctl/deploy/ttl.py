"""Changing the TTLs of what runs, so that no handle is ever offered for longer than it is good.

Lowering tells the routers first, raising tells decode first. Whatever stops it in between leaves
routers that offer handles for less time than decode keeps the blocks.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import aiohttp

from pdctl.base.command import command
from pdctl.base.durations import format_duration
from pdctl.base.errors import BadAnswerError, PdctlError
from pdctl.base.events import StepDone, StepFailed, StepStarted
from pdctl.base.facts import PairFacts
from pdctl.base.process import RoleName
from pdctl.config.model import Config
from pdctl.deploy import audit
from pdctl.deploy.world import World
from pdctl.observe.endpoints import endpoints_of
from pdctl.observe.facts import gather
from pdctl.observe.outlook import Outlook, gaps_in, look_out
from pdctl.observe.processes import read_process
from pdctl.observe.ttl import KeptFor, RouterTtl, ask_routers, read_kept_for
from pdctl.render.router import TTL_FILE as ROUTER_FILE
from pdctl.state.model import DeploymentState, Intervals, ProcessRecord
from pdctl.state.store import StateStore
from pdctl.targets.base import Host

if TYPE_CHECKING:
    from pdctl.deploy.survey import Wanted

_LEVER = "live_ttl"
_CLOCK = "import time; print(time.perf_counter())"
_CLOCK_LIMIT_S = 20.0
_LOG_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Changed:
    """What is in force after a change.

    Attributes:
        kept_for: by decode server, what its next handle said; None where this vLLM does not say.
    """

    kept_for: Mapping[str, KeptFor | None]
    routers: tuple[RouterTtl, ...]


@dataclass(frozen=True)
class Keys:
    """Keys to show; None where none is needed."""

    engine: str | None = None
    admin: str | None = None


def look(world: World, plan: "Wanted", state: DeploymentState, wanted: Intervals) -> Outlook:
    """What the new TTLs would mean, from what runs and from the request log; changes nothing."""
    routers = state.of_role("router")
    started = min((record.started_at or 0.0 for record in routers), default=0.0)
    return look_out(
        asyncio.run(_gather(world, plan, state)),
        gaps_in(_request_log(world, plan.config, routers)),
        router_now=state.ttl.router_ttl,
        router_then=wanted.router_ttl,
        uptime=world.now() - started,
    )


async def _gather(world: World, plan: "Wanted", state: DeploymentState) -> PairFacts:
    endpoints = endpoints_of(
        plan.config,
        state.processes.values(),
        engine_key=plan.keys.engine,
        router_key=plan.keys.admin,
        near=world.near,
    )
    async with aiohttp.ClientSession() as session:
        return await gather(session, endpoints)


def _request_log(world: World, config: Config, routers: Sequence[ProcessRecord]) -> bytes:
    log = config.router.request_log
    if log is None or not routers:
        return b""
    host = world.hosts[routers[0].host]
    return host.read_file(PurePosixPath(log), limit=_LOG_BYTES) or b""


def file_of(record: ProcessRecord) -> PurePosixPath | None:
    """Where a process keeps the TTL that was set while it ran, for when it is started again."""
    found = record.env.get("PDCTL_TTL_FILE")
    if found is None and ROUTER_FILE in record.argv:
        found = record.argv[record.argv.index(ROUTER_FILE) + 1]
    return None if found is None else PurePosixPath(found)


def why_not_live(world: World, state: DeploymentState, marks: str) -> dict[str, str]:
    """Decode servers whose TTL cannot be changed while they run, each with the reason."""
    return dict(_not_live(world, state, marks))


def _not_live(world: World, state: DeploymentState, marks: str) -> Iterator[tuple[str, str]]:
    for record in state.of_role("decode"):
        host = world.hosts[record.host]
        facts = read_process(host, record, None, host.find(marks))
        if not facts.alive:
            yield record.name, "it does not run"
        elif facts.levers is None or "PDCTL_TTL_FILE" not in record.env:
            yield record.name, "it runs without pdctl's plugin"
        elif facts.lever(_LEVER) is not True:
            yield record.name, f"the plugin could not do it there ({facts.levers.get(_LEVER)})"


def set_ttl(
    world: World, store: StateStore, state: DeploymentState, wanted: Intervals, keys: Keys,
    model: str,
) -> Changed:  # fmt: skip
    """Change routers and decode servers, in the safe order, and read back what is in force.

    Args:
        wanted: seconds; the router's must be safe for decode's.
        model: served name.

    Raises:
        BadAnswerError: a server does not take the value; nothing is unsafe then.
        PdctlError: a server does not answer.
    """
    change = _Change(world, store, state, wanted, keys, model)
    if any(router.ttl > wanted.router_ttl for router in change.ask() if router.ttl is not None):
        routers = change.routers()
        kept = change.decodes()
    else:
        # What the routers offer now is safe with the new value too.
        kept = change.decodes()
        routers = change.routers()
    hosts = [record.host for record in state.processes.values() if record.role != "prefill"]
    said = f"set the TTL: decode {wanted.decoder_ttl:g} s, routers {wanted.router_ttl:g} s"
    audit.note_on(world, hosts, state.name, said)
    return Changed(kept, routers)


def note_written(store: StateStore, wanted: Intervals) -> None:
    """The configuration's file says now what is in force."""
    if (state := store.load()) is not None:
        store.save(replace(state, kv=wanted, live_ttl=None))


class _Change:
    def __init__(
        self,
        world: World,
        store: StateStore,
        state: DeploymentState,
        wanted: Intervals,
        keys: Keys,
        model: str,
    ) -> None:
        self._world, self._store, self._state = world, store, state
        self._wanted, self._keys, self._model = wanted, keys, model

    def ask(self) -> tuple[RouterTtl, ...]:
        """What the routers say now; the first that does not is the error."""
        return self._told(None)

    def routers(self) -> tuple[RouterTtl, ...]:
        """Tell all routers; the first that fails is the error, after all were told."""
        ttl = self._wanted.router_ttl
        with self._step("routers", f"let the routers offer handles for {format_duration(ttl)}"):
            found = self._told(ttl)
            self._record(replace(self._state.ttl, router_ttl=ttl))
        return found

    def _told(self, ttl: float | None) -> tuple[RouterTtl, ...]:
        asked = [(each.name, self._world.near(each)) for each in self._running("router")]
        found = tuple(asyncio.run(ask_routers(asked, self._keys.admin, ttl)))
        for router in found:
            if router.error is not None:
                raise router.error
        return found

    def decodes(self) -> dict[str, KeptFor | None]:
        """Write each control file, and read the TTL off the next handle."""
        ttl = self._wanted.decoder_ttl
        kept = {}
        for record in self._running("decode"):
            what = f"let {record.name} keep blocks for {format_duration(ttl)}"
            with self._step(record.name, what):
                kept[record.name] = self._decode(record, ttl)
        self._record(replace(self._state.ttl, decoder_ttl=ttl))
        return kept

    def _decode(self, record: ProcessRecord, ttl: float) -> KeptFor | None:
        host, file = self._world.hosts[record.host], PurePosixPath(record.env["PDCTL_TTL_FILE"])
        before = host.read_file(file)
        host.write_file(file, json.dumps({"decoder_ttl": ttl}).encode() + b"\n")
        try:
            kept = asyncio.run(self._read(host, record))
            if kept is not None and not kept.is_about(ttl):
                raise BadAnswerError(
                    f"{record.name} still keeps blocks for about {kept.least:.0f} s, not {ttl:g} s",
                    where=f"{host.name}: {file}",
                    expected="its next handle to have the new deadline",
                    hints=[f"pdctl logs --role decode --grep {_LEVER}"],
                )
        except PdctlError:
            _put_back(host, file, before)
            raise
        return kept

    async def _read(self, host: Host, record: ProcessRecord) -> KeptFor | None:
        python = record.argv[0]

        async def clock() -> float:
            return await asyncio.to_thread(_clock_of, host, python)

        prefill = next(iter(self._running("prefill")), None)
        if prefill is None:
            return None  # nobody through whom to ask
        near = self._world.near
        return await read_kept_for(
            near(prefill), near(record), clock, model=self._model, key=self._keys.engine
        )

    def _record(self, now: Intervals) -> None:
        live = None if now == self._state.kv else now
        self._state = replace(self._state, live_ttl=live)
        self._store.save(self._state)

    def _running(self, role: RoleName) -> list[ProcessRecord]:
        """What is not there has nothing to change; when it starts, the configuration holds."""
        return [
            each
            for each in self._state.of_role(role)
            if each.ref is not None and self._world.hosts[each.host].alive(each.ref)
        ]

    @contextmanager
    def _step(self, name: str, what: str) -> Iterator[None]:
        began = self._world.monotonic()
        self._world.listen(StepStarted(name, what))
        try:
            yield
        except PdctlError as error:
            seconds = self._world.monotonic() - began
            self._world.listen(StepFailed(name, what, seconds, error.message))
            raise
        self._world.listen(StepDone(name, what, self._world.monotonic() - began))


def _clock_of(host: Host, python: str) -> float:
    result = host.run(command(python, "-c", _CLOCK), timeout=_CLOCK_LIMIT_S)
    try:
        return float(result.stdout)
    except ValueError:
        raise BadAnswerError(
            "the engine's interpreter does not tell the time",
            where=f"{host.name}: {python}",
            detail=result.stderr.splitlines()[-3:],
        ) from None


def _put_back(host: Host, file: PurePosixPath, content: bytes | None) -> None:
    """As it was: a value that did not take is not to take later by surprise."""
    with suppress(PdctlError):
        if content is None:
            host.remove_tree(file)
        else:
            host.write_file(file, content)
