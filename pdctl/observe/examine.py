"""Everything that `doctor` judges, gathered at once: files, hosts, servers, logs, and the proof.

Hosts are looked at in threads of their own, each once, while the servers are asked. Nothing here
raises for what it finds: each source carries its own error, and one that does not answer within its
limit is left behind.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import aiohttp

from pdctl.base.awsfacts import AwsFacts, AwsWant
from pdctl.base.command import command
from pdctl.base.configfacts import ConfigFacts
from pdctl.base.errors import PdctlError
from pdctl.base.events import Listener, StepProgress, ignore
from pdctl.base.facts import HostFacts, PairFacts, RouterFacts, ServingFacts
from pdctl.base.hostfacts import HostWant
from pdctl.base.process import ProcessSpec
from pdctl.base.runfacts import ProcessFacts, SideChannel, StoreFacts, WeightFacts
from pdctl.observe.aws import read_aws
from pdctl.observe.endpoints import Endpoint, Endpoints
from pdctl.observe.facts import has_still_to_say, read_engine, read_router, read_switches
from pdctl.observe.host import read_host
from pdctl.observe.logfacts import log_facts
from pdctl.observe.processes import HeldLog, read_log, read_process
from pdctl.observe.side_channel import SideAddress, ask_side_channels
from pdctl.observe.store import ask_store
from pdctl.observe.turns import TurnLimits
from pdctl.observe.verify import VerifyOptions, verify
from pdctl.observe.weights import read_weights
from pdctl.state.model import DeploymentState, ProcessRecord
from pdctl.targets.base import Host

ROUTER = "router"
"""Name of the router among what nobody asked."""
AWS = "aws"
"""Name of EC2 among what nobody asked."""
OFFLINE = "`--offline` asks no server"
_SOON_S = 3.0
_STARVED_AGAIN_S = 2.0
"""A busy engine may have waiting requests for a moment; one without room has them for long."""


@dataclass(frozen=True)
class Model:
    """The model's files: path or id, revision, and the hub's folder on the hosts."""

    id: str
    revision: str | None = None
    hub: str | None = None


@dataclass(frozen=True)
class Case:
    """What is to be looked at.

    Attributes:
        config: the file.
        hosts: those that can be reached, by name.
        wants: what the deployment asks of them.
        endpoints: servers to ask; those in `not_asked` are left out.
        routers: the further ones, of several.
        not_asked: why something is not looked at, by the name of a host, engine or `router`.
        specs: processes as the configuration renders them now, by name.
        model: None where its files are not on hosts that pdctl reaches.
        store: URL of where routers share handles, password and all; None for none.
        aws: what is asked of EC2, as which profile; None for another target.
    """

    name: str
    config: ConfigFacts
    hosts: Mapping[str, Host] = field(default_factory=dict)
    wants: Mapping[str, HostWant] = field(default_factory=dict)
    endpoints: Endpoints | None = None
    routers: tuple[Endpoint, ...] = ()
    state: DeploymentState | None = None
    not_asked: Mapping[str, str] = field(default_factory=dict)
    specs: Mapping[str, ProcessSpec] = field(default_factory=dict)
    model: Model | None = None
    store: str | None = field(default=None, repr=False)
    aws: AwsWant | None = None
    aws_profile: str | None = None


@dataclass(frozen=True)
class Look:
    """How it is looked at; times in seconds.

    Attributes:
        offline: ask no server and run no proof.
        aws: ask EC2, where the target is EC2.
        proof: run the two-turn proof.
        connect_s: within this a host or a server answers, or it counts as dead.
        host_s: the longest that looking at a host that answers takes.
        ready_s: how long the router may take to prove its pairs.
        turn_s: how long the first byte of a turn of the proof may take.
        window_s: of the logs, how far back.
        log_bytes: of each log, at most.
    """

    offline: bool = False
    aws: bool = True
    proof: bool = True
    connect_s: float = 10.0
    host_s: float = 90.0
    ready_s: float = 15.0
    turn_s: float = 60.0
    window_s: float = 3600.0
    log_bytes: int = 8 << 20


def examine(
    case: Case, look: Look | None = None, listen: Listener = ignore
) -> tuple[PairFacts, tuple[HeldLog, ...]]:
    """Look at everything; also gives what was read of the logs."""
    return asyncio.run(examine_async(case, look, listen))


async def examine_async(
    case: Case, look: Look | None = None, listen: Listener = ignore
) -> tuple[PairFacts, tuple[HeldLog, ...]]:
    """`examine`, in a loop that runs."""
    look = look or Look()
    if look.offline:
        case = _without_servers(case)
    if case.aws is not None and not look.aws:
        case = replace(case, not_asked={**case.not_asked, AWS: OFFLINE})
    facts = PairFacts(
        name=case.name, taken_at=time.time(), config=case.config, not_asked=case.not_asked
    )
    watch = _Hosts(case, look)
    listen(StepProgress("doctor-look", _telling(case, look)))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        served, looked, aws = await asyncio.gather(
            _servers(session, case, look),
            asyncio.to_thread(watch.results),
            asyncio.to_thread(_aws, case, look),
        )
    facts = replace(facts, aws=aws, **served)  # type: ignore[arg-type]
    facts = _with_hosts(facts, case, looked)
    held = tuple(log for each in looked.values() for log in each.logs)
    facts = await asyncio.to_thread(_with_logs, facts, held, look)
    return await _with_proof(facts, case, look, listen), held


def _without_servers(case: Case) -> Case:
    ends = case.endpoints
    names = [*(engine.name for engine in ends.engines), ROUTER] if ends else [ROUTER]
    wants = {name: replace(want, peers=()) for name, want in case.wants.items()}
    not_asked = {**dict.fromkeys(names, OFFLINE), **case.not_asked}
    return replace(case, wants=wants, not_asked=not_asked)


def _telling(case: Case, look: Look) -> str:
    hosts = f"{len(case.hosts)} host{'' if len(case.hosts) == 1 else 's'}"
    return f"looking at {hosts}" + ("" if look.offline else " and asking the servers")


def _aws(case: Case, look: Look) -> AwsFacts | None:
    """What EC2 says; None where it is not asked, which `not_asked` explains."""
    if case.aws is None or not look.aws:
        return None
    return read_aws(case.aws, case.aws_profile)


# --- servers ---------------------------------------------------------------------------------


async def _servers(session: aiohttp.ClientSession, case: Case, look: Look) -> dict[str, object]:
    ends = case.endpoints
    if ends is None:
        return {}
    engines, routers, store = await asyncio.gather(
        asyncio.gather(*(_engine(session, case, each, look) for each in ends.engines)),
        asyncio.gather(*(_router(session, case, each, look) for each in _routers(case))),
        _store(case, look),
    )
    return {
        "engines": tuple(engines),
        "router": routers[0] if routers else None,
        "replicas": tuple(routers[1:]),
        "store": store,
    }


def _routers(case: Case) -> list[Endpoint]:
    first = case.endpoints.router if case.endpoints else None
    return [] if first is None or ROUTER in case.not_asked else [first, *case.routers]


async def _engine(
    session: aiohttp.ClientSession, case: Case, endpoint: Endpoint, look: Look
) -> ServingFacts:
    if endpoint.name in case.not_asked:
        return ServingFacts(endpoint.name, endpoint.role, endpoint.host, endpoint.url)
    assert case.endpoints is not None
    key = case.endpoints.engine_key
    found = await read_engine(session, endpoint, key, look.connect_s)
    if found.metrics is None or not found.metrics.starved:
        return found
    await asyncio.sleep(_STARVED_AGAIN_S)
    return await read_engine(session, endpoint, key, look.connect_s)


async def _router(
    session: aiohttp.ClientSession, case: Case, endpoint: Endpoint, look: Look
) -> RouterFacts:
    assert case.endpoints is not None
    key = case.endpoints.router_key
    found = await read_router(session, endpoint, key, look.connect_s)
    return await read_switches(session, found, key, look.connect_s)


async def _store(case: Case, look: Look) -> StoreFacts | None:
    if case.store is None or look.offline:
        return None
    return await ask_store(case.store, look.connect_s)


# --- hosts -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Looked:
    """What one host showed."""

    facts: HostFacts
    processes: tuple[ProcessFacts, ...] = ()
    logs: tuple[HeldLog, ...] = ()
    side_channels: tuple[SideChannel, ...] = ()
    weights: WeightFacts | None = None


class _Hosts:
    """Looks at all hosts at once, each in a thread that is left behind when it hangs.

    Threads of a pool would be waited for when the interpreter ends, however dead their hosts are.
    """

    def __init__(self, case: Case, look: Look) -> None:
        self._case, self._look = case, look
        self._told: queue.Queue[tuple[str, _Looked | None]] = queue.Queue()
        self._began = time.monotonic()
        for name, host in case.hosts.items():
            thread = threading.Thread(
                target=self._visit, args=(name, host), name=f"doctor-{name}", daemon=True
            )
            thread.start()

    def results(self) -> dict[str, _Looked]:
        """By host, in their order; whoever does not answer in time has its error set."""
        reached: set[str] = set()
        done: dict[str, _Looked] = {}
        waiting = set(self._case.hosts)
        while waiting:
            try:
                name, looked = self._told.get(timeout=self._patience(waiting <= reached))
            except queue.Empty:
                late = waiting - reached or waiting
                for name in late:
                    done[name] = _Looked(HostFacts(name, error=self._why_late(name in reached)))
                waiting -= late
                continue
            if looked is None:
                reached.add(name)
            elif name in waiting:
                done[name] = looked
                waiting.discard(name)
        return {name: done[name] for name in self._case.hosts}

    def _patience(self, all_reached: bool) -> float:
        limit = self._look.host_s if all_reached else self._look.connect_s
        return max(0.0, self._began + limit - time.monotonic())

    def _why_late(self, reached: bool) -> str:
        if reached:
            return f"it answered, but looking at it took more than {self._look.host_s:g} s"
        return f"no answer within {self._look.connect_s:g} s"

    def _visit(self, name: str, host: Host) -> None:
        try:
            host.run(command("true"), timeout=self._look.connect_s)
        except Exception as error:
            self._told.put((name, _Looked(HostFacts(name, error=_said(error)))))
            return
        self._told.put((name, None))
        try:
            self._told.put((name, _look_at(name, host, self._case, self._look)))
        except Exception as error:
            self._told.put((name, _Looked(HostFacts(name, error=_said(error)))))


def _said(error: Exception) -> str:
    if isinstance(error, PdctlError):
        return error.message
    return f"{type(error).__name__}: {error}"


def _look_at(name: str, host: Host, case: Case, look: Look) -> _Looked:
    records = [r for r in (case.state.processes.values() if case.state else ()) if r.host == name]
    want = case.wants.get(name)
    logs = tuple(read_log(host, record, look.log_bytes) for record in records)
    starts = {log.name: log.starts for log in logs}
    processes = _processes(host, records, case, want)
    return _Looked(
        facts=read_host(host, want) if want else HostFacts(name),
        processes=tuple(replace(each, starts=starts[each.name]) for each in processes),
        logs=logs,
        side_channels=() if look.offline else tuple(_side_channels(name, host, case)),
        weights=_weights(host, case, want),
    )


def _processes(
    host: Host, records: Sequence[ProcessRecord], case: Case, want: HostWant | None
) -> Iterator[ProcessFacts]:
    try:
        running = host.find(want.marks) if want and records else []
    except PdctlError:
        running = []
    for record in records:
        try:
            yield read_process(host, record, case.specs.get(record.name), running)
        except PdctlError as error:
            yield ProcessFacts(record.name, record.role, record.host, error=error.message)


def _side_channels(name: str, host: Host, case: Case) -> Iterator[SideChannel]:
    """The side channels that the engines of a host talk to: those of the other role."""
    records = list(case.state.processes.values()) if case.state else []
    roles = {record.role for record in records if record.host == name and record.role != "router"}
    wanted = [
        SideAddress(record.name, record.address, record.side_channel_port)
        for record in records
        if record.side_channel_port and record.ref and roles - {record.role}
    ]
    yield from ask_side_channels(host, wanted)


def _weights(host: Host, case: Case, want: HostWant | None) -> WeightFacts | None:
    if case.model is None or want is None or not want.engine:
        return None
    return read_weights(host, case.model.id, case.model.revision, case.model.hub)


def _with_hosts(facts: PairFacts, case: Case, looked: Mapping[str, _Looked]) -> PairFacts:
    unseen = tuple(HostFacts(name) for name in case.wants if name not in looked)
    every = looked.values()
    return replace(
        facts,
        hosts=tuple(each.facts for each in every) + unseen,
        processes=tuple(process for each in every for process in each.processes),
        side_channels=tuple(asked for each in every for asked in each.side_channels),
        weights=tuple(each.weights for each in every if each.weights is not None),
    )


# --- logs and the proof ----------------------------------------------------------------------


def _with_logs(facts: PairFacts, held: Sequence[HeldLog], look: Look) -> PairFacts:
    if not held:
        return replace(facts, no_logs="no process of this deployment was started by pdctl")
    return replace(facts, logs=log_facts(held, facts.taken_at - look.window_s))


async def _with_proof(facts: PairFacts, case: Case, look: Look, listen: Listener) -> PairFacts:
    if why := why_no_proof(facts, look):
        return replace(facts, no_proof=why)
    assert case.endpoints is not None
    options = VerifyOptions(
        chat=False,
        ready_s=look.ready_s if _may_become_ready(facts) else min(_SOON_S, look.ready_s),
        limits=TurnLimits(first_byte=look.turn_s, idle=look.turn_s, total=2 * look.turn_s),
    )
    try:
        report = await verify(case.endpoints, options, listen=listen)
    except PdctlError as error:
        return replace(facts, no_proof=error.message)
    return replace(facts, two_turn=report.facts())


def _may_become_ready(facts: PairFacts) -> bool:
    """Whether the router has still to say what its pairs are worth."""
    return facts.router is None or not facts.router.pairs or has_still_to_say(facts.router)


def why_no_proof(facts: PairFacts, look: Look) -> str:
    """Why the proof is not to be run; empty when it is. It must never make things worse."""
    if look.offline:
        return OFFLINE
    if not look.proof:
        return "`--no-proof` was given"
    router, settings = facts.router, facts.settings
    if router is None:
        return facts.not_asked.get(ROUTER, "the deployment has no router")
    if settings is not None and not settings.bidirectional:
        return "`kv.bidirectional` is false"
    silent = [e.name for e in facts.engines if e.error or e.name in facts.not_asked]
    if silent or router.error:
        return f"needs {silent[0] if silent else 'the router'} to answer"
    return _why_harmful(facts, router)


def _why_harmful(facts: PairFacts, router: RouterFacts) -> str:
    starved = [e.name for e in facts.engines if e.metrics and e.metrics.starved]
    if starved:
        return f"{starved[0]} has no room, so its turns would wait"
    off = [
        each.name
        for each in facts.processes
        if each.role == "prefill" and each.bidirectional is False
    ]
    # pdctl's router keeps handles from such a prefill; any other would hang it (FACTS T7).
    if off and not router.ours:
        return f"{off[0]} runs without `bidirectional_kv_xfer` and would never answer its turn"
    return ""
