"""What runs of a deployment: recorded state, compared with the processes and their answers."""

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace

import aiohttp

from pdctl.base.errors import PdctlError
from pdctl.base.explain import STATE_PATH
from pdctl.base.process import ROLES, Kept, ProcessRef, RoleName
from pdctl.engine.example import LIMITS
from pdctl.observe.http import ask, ask_json
from pdctl.state.model import DeploymentState, Intervals, Phase, ProcessRecord
from pdctl.targets.base import Host

_TIMEOUT_S = 5.0
_AT_ONCE = 64

Near = Callable[[ProcessRecord], str]


def _own_url(record: ProcessRecord) -> str:
    return record.url


@dataclass(frozen=True)
class RoleStatus:
    """One process now.

    Attributes:
        pid: None when the recorded process is gone.
        healthy: it runs, and it answers.
        problem: why it is not healthy; empty when it is.
        version: vLLM's, or pdctl's for the router; None when it does not say.
        age_s: seconds since `up` started it; None when it is gone.
        restarts: how often it was started again since; None where nothing would.
        drained: why the routers send it nothing new; empty when they do.
        idle_s: seconds since a router last ended a client's request; None where it does not say.
    """

    role: RoleName
    index: int
    host: str
    pid: int | None
    port: int
    healthy: bool
    version: str | None
    engine_id: str | None
    problem: str = ""
    age_s: float | None = None
    restarts: int | None = None
    ref: ProcessRef | None = None
    drained: str = ""
    idle_s: float | None = None

    @property
    def name(self) -> str:
        """`prefill-0`."""
        return f"{self.role}-{self.index}"

    def as_dict(self) -> dict[str, object]:
        """The shape in `status --json`."""
        return {
            "role": self.role,
            "index": self.index,
            "host": self.host,
            "pid": self.pid,
            "port": self.port,
            "healthy": self.healthy,
            "version": self.version,
            "engine_id": self.engine_id,
            **({} if self.restarts is None else {"restarts": self.restarts}),
            **({"drained": self.drained} if self.drained else {}),
        }


@dataclass(frozen=True)
class Status:
    """A deployment now; without roles when nothing was started.

    Attributes:
        decoder_ttl, router_ttl: seconds, in force.
        configured: what `up` would make of them, when they were changed since.
        phase: where `up` or `down` is; None when there is no state.
        proven_at, reused_tokens: the last proof that succeeded, if it was about what runs now.
        router_limits: what a router that is not pdctl's cannot do.
    """

    name: str
    target: str
    roles: tuple[RoleStatus, ...]
    decoder_ttl: float | None
    router_ttl: float | None
    phase: Phase | None = None
    configured: Intervals | None = None
    proven_at: float | None = None
    reused_tokens: int | None = None
    router_limits: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether something was started and all of it answers."""
        return bool(self.roles) and all(role.healthy for role in self.roles)

    def as_dict(self) -> dict[str, object]:
        """The shape of `status --json`."""
        ttl: dict[str, object] = {"decoder_ttl": self.decoder_ttl, "router_ttl": self.router_ttl}
        if self.configured:
            ttl["configured"] = asdict(self.configured)
        return {
            "name": self.name,
            "target": self.target,
            "roles": [role.as_dict() for role in self.roles],
            "kv": ttl,
            **({"router_limits": list(self.router_limits)} if self.router_limits else {}),
        }


async def read_status(
    hosts: Mapping[str, Host], state: DeploymentState, near: Near = _own_url
) -> Status:
    """Ask hosts and servers, all at the same time; what does not answer has its `problem` set.

    Args:
        near: gives the URL at which this machine reaches a process.
    """
    records = sorted(state.processes.values(), key=lambda r: (ROLES.index(r.role), r.index))
    # By itself it would be a few threads, and hosts would wait for each other.
    pool = ThreadPoolExecutor(min(max(len(records), 1), _AT_ONCE))
    asyncio.get_running_loop().set_default_executor(pool)
    async with aiohttp.ClientSession() as session:
        found = await asyncio.gather(*(_read_role(session, hosts, each, near) for each in records))
    roles = [replace(role, drained=state.drained.get(role.name, "")) for role in found]
    now = tuple(r.ref for r in sorted(roles, key=lambda r: r.name) if r.ref is not None)
    proof = state.proof if state.proof and state.proof.processes == now else None
    return Status(
        name=state.name,
        target=state.target,
        roles=tuple(roles),
        decoder_ttl=state.ttl.decoder_ttl,
        router_ttl=state.ttl.router_ttl,
        configured=state.kv if state.live_ttl else None,
        phase=state.phase,
        proven_at=proof.at if proof else None,
        reused_tokens=proof.reused_tokens if proof else None,
        router_limits=LIMITS if any(map(_is_example, records)) else (),
    )


def _is_example(record: ProcessRecord) -> bool:
    return record.role == "router" and record.argv[1:4] != ("-m", "pdctl", "router")


async def _read_role(
    session: aiohttp.ClientSession, hosts: Mapping[str, Host], record: ProcessRecord, near: Near
) -> RoleStatus:
    kept, problem = await asyncio.to_thread(_kept, hosts.get(record.host), record)
    alive = kept is not None and kept.ref is not None
    url = await asyncio.to_thread(near, record) if alive else record.url
    problem = await _problem(session, url + record.health_path) if alive else problem
    version, idle = (None, None) if problem else await _own_words(session, record, url)
    return RoleStatus(
        role=record.role,
        index=record.index,
        host=record.host,
        pid=kept.ref.pid if kept and kept.ref else None,
        port=record.port,
        healthy=not problem,
        version=version,
        engine_id=kept.engine_id if kept and kept.engine_id else record.engine_id,
        problem=problem,
        age_s=time.time() - record.started_at if alive and record.started_at else None,
        restarts=None if record.supervision == "none" or not kept else kept.restarts,
        ref=kept.ref if kept else None,
        idle_s=idle,
    )


def _kept(host: Host | None, record: ProcessRecord) -> tuple[Kept | None, str]:
    """What it is now, and why it does not run when it does not."""
    if record.ref is None:
        return None, "not started"
    if host is None:
        return None, f"the configuration has no host `{record.host}` any more"
    try:
        kept = host.kept(record.ref)
    except PdctlError as error:
        return None, f"{record.host}: {error.message}"
    if kept is not None:
        return kept, f"it ended, and is about to be started again ({kept.restarts} times so far)"
    if record.supervision != "none":
        return None, "it is gone, and is not started again: it ended too often, or was ended"
    return None, f"pid {record.ref.pid} is gone"


async def _problem(session: aiohttp.ClientSession, url: str) -> str:
    try:
        await ask(session, url, timeout=_TIMEOUT_S)
    except PdctlError as error:
        return error.message
    return ""


async def _own_words(
    session: aiohttp.ClientSession, record: ProcessRecord, url: str
) -> tuple[str | None, float | None]:
    """Version, and how long a router has had nothing to do. A router passes `/version` on to
    decode; its own is in its state."""
    path = STATE_PATH if record.role == "router" else "/version"
    try:
        answer = await ask_json(session, url + path, timeout=_TIMEOUT_S)
    except PdctlError:
        return None, None
    version, idle = answer.get("version"), answer.get("idle_s")
    return (
        version if isinstance(version, str) else None,
        float(idle) if isinstance(idle, int | float) else None,
    )
