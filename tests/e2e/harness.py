"""A real prefill and a real decode server for tests, started by the code that `pdctl up` runs.

Two engines are all that a small machine bears, so there is one pair at a time: `Pairs.get(setup)`
gives the running one when its setup is the same, and ends it first when it is not. Ports, engine
ids and log files are chosen as in any deployment. The router is not part of it: tests run it in
their own process, where a guard can be taken out (`routed`).
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import random
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import aiohttp
import psutil
import yaml

from pdctl.base import paths
from pdctl.base.errors import PdctlError
from pdctl.base.events import Event, StepDone, StepFailed, StepProgress
from pdctl.base.explain import ADMIN_TENANT
from pdctl.base.facts import EngineMetrics
from pdctl.base.process import ProcessSpec, RoleName
from pdctl.base.transfer import FIRST_TURN
from pdctl.config.model import Config
from pdctl.deploy import local, runner, teardown
from pdctl.deploy.survey import Wanted, survey
from pdctl.engine.choices import router_ttl, served_name
from pdctl.observe.endpoints import Endpoint, Endpoints, endpoints_of
from pdctl.observe.facts import read_router
from pdctl.observe.metrics import scrape_engine
from pdctl.observe.turns import Turn, TurnLimits, TurnRequest, send_turn
from pdctl.render.check import load_checked
from pdctl.render.model import Chosen, Deployment
from pdctl.render.place import place_here
from pdctl.router.keys import parse_keys
from pdctl.router.serve import serving
from pdctl.router.server import Router
from pdctl.router.settings import RouterSettings
from pdctl.state.lock import hold
from pdctl.state.model import ProcessRecord
from pdctl.state.store import StateStore

EXAMPLE = Path(__file__).parents[2] / "examples" / "local-cpu.yaml"
PYTHON_ENV = "PDCTL_E2E_PYTHON"
"""Interpreter of an environment that has vLLM for CPUs and NIXL; without it pdctl installs one."""

_VOCABULARY = range(8, 512)
"""Ids of the built-in model that are plain text."""


@dataclass(frozen=True)
class Setup:
    """How a pair differs from the example configuration.

    Attributes:
        name: for reports, and part of the deployment's name.
        config: values by dotted key, such as `{"kv.decoder_ttl": 30}`.
        connector: by role, what to merge into `--kv-transfer-config` behind the configuration's
            back, for traps that a configuration cannot express.
        env: by role, variables to set behind the configuration's back.
    """

    name: str = "default"
    config: Mapping[str, Any] = field(default_factory=dict)
    connector: Mapping[RoleName, Mapping[str, Any]] = field(default_factory=dict)
    env: Mapping[RoleName, Mapping[str, str]] = field(default_factory=dict)


DEFAULT = Setup()
"""float32, so that an answer with reuse must equal one without; plugin on; tool calls on."""


@dataclass(frozen=True)
class LogMark:
    """Sizes of the engines' logs at one moment."""

    sizes: Mapping[str, int]


class Sender:
    """Sends turns as tests want them. Times are seconds, URLs have no slash at their end.

    Attributes:
        model: served name.
        key: what the engines want to be shown; None when nothing.
    """

    def __init__(self, model: str, key: str | None = None) -> None:
        self.model, self.key = model, key

    @property
    def decode(self) -> str:
        """URL of a decode server."""
        raise NotImplementedError

    async def send(self, session: aiohttp.ClientSession, url: str, **request: Any) -> Turn:
        """A turn to any server, by the fields of `TurnRequest`; greedy, and to its full length."""
        limits = request.pop("limits", TurnLimits(first_byte=60.0, idle=60.0, total=120.0))
        fields: dict[str, Any] = {"model": self.model, "ignore_eos": True, "return_token_ids": True}
        fields |= request
        return await send_turn(session, url, TurnRequest(**fields), limits=limits)

    async def cold(self, session: aiohttp.ClientSession, **request: Any) -> Turn:
        """What decode alone answers when no cache can help: the oracle in float32."""
        salt = uuid.uuid4().hex
        return await self.send(session, self.decode, cache_salt=salt, api_key=self.key, **request)


class Pair(Sender):
    """A running prefill/decode pair. Times are seconds, URLs have no slash at their end."""

    def __init__(self, pairs: "Pairs", setup: Setup, config: Config, file: Path) -> None:
        super().__init__(served_name(config))
        self._pairs, self.setup, self.config, self.file = pairs, setup, config, file

    # --- what runs ----------------------------------------------------------------------

    def record(self, role: RoleName) -> ProcessRecord:
        """What is recorded of an engine now: pid, ports, engine id, log."""
        with self._pairs.environment():
            state = StateStore(self.config.name).load()
        assert state is not None
        return state.processes[f"{role}-0"]

    def runs(self, record: ProcessRecord) -> bool:
        """Whether that very process runs; one that has ended and waits for its parent does not."""
        return self._pairs.runs(record)

    def environment(self) -> contextlib.AbstractContextManager[None]:
        """The state directory in which this pair is recorded."""
        return self._pairs.environment()

    @property
    def prefill(self) -> str:
        """URL of the prefill server; the same after a restart."""
        return self.record("prefill").url

    @property
    def decode(self) -> str:
        """URL of the decode server; the same after a restart."""
        return self.record("decode").url

    @property
    def endpoints(self) -> Endpoints:
        """Both engines, for `verify` and friends; the router is added by `routed`."""
        return endpoints_of(self.config, [self.record("prefill"), self.record("decode")])

    def restart(self, role: RoleName, *, kill: bool = False) -> None:
        """End an engine and start it again on the same port; returns when it is healthy."""
        self.end(role, kill=kill)
        self._pairs.bring_up(self)

    def bring_up(self) -> None:
        """Start again what has been ended; returns when all is healthy."""
        self._pairs.bring_up(self)

    def restart_decode(self, *, kill: bool = False) -> None:
        """`restart("decode")`: handles from before are dead, engine id and process are new."""
        self.restart("decode", kill=kill)

    def end(self, role: RoleName, *, kill: bool = False) -> None:
        """End an engine, at once with `kill`; `restart` or the next test brings it back."""
        record = self.record(role)
        self._pairs.end(self, record, timeout=0.0 if kill else 20.0)

    # --- control and logs ---------------------------------------------------------------

    def set_ttl(self, seconds: float | None) -> None:
        """Change decode's TTL for turns that finish from now on; None: as configured."""
        file = self.ttl_file
        if seconds is None:
            file.unlink(missing_ok=True)
            return
        scratch = file.with_name(f".{file.name}.new")
        scratch.write_text(json.dumps({"decoder_ttl": seconds}))
        scratch.replace(file)

    @property
    def ttl_file(self) -> Path:
        """The control file that decode's plugin reads."""
        return Path(self.record("decode").env["PDCTL_TTL_FILE"])

    def mark(self) -> LogMark:
        """Now, in both logs."""
        roles: tuple[RoleName, ...] = ("prefill", "decode")
        return LogMark({role: Path(self.record(role).log).stat().st_size for role in roles})

    def log_since(self, mark: LogMark, role: RoleName) -> str:
        """What an engine wrote since the mark."""
        with Path(self.record(role).log).open("rb") as log:
            log.seek(mark.sizes[role])
            return log.read().decode("utf-8", "replace")

    # --- turns past the router, leg by leg ------------------------------------------------

    async def prefill_leg(
        self, session: aiohttp.ClientSession, kv: Mapping[str, Any] = FIRST_TURN, **request: Any
    ) -> Turn:
        """The first leg by hand: `turn.kv_transfer_params` is what decode gets."""
        extra = {"kv_transfer_params": dict(kv), **request.pop("extra", {})}
        fields = {"max_tokens": 1, "stream": False, **request}
        return await self.send(session, self.prefill, extra=extra, **fields)

    async def decode_leg(
        self, session: aiohttp.ClientSession, kv: Mapping[str, Any] | None, **request: Any
    ) -> Turn:
        """The second leg by hand: `turn.kv_transfer_params` is the handle for the next turn."""
        extra = {"kv_transfer_params": dict(kv or {}), **request.pop("extra", {})}
        return await self.send(session, self.decode, extra=extra, **{"stream": False, **request})

    async def turn_by_hand(
        self,
        session: aiohttp.ClientSession,
        prompt: Sequence[int],
        *,
        handle: Mapping[str, Any] | None = None,
        max_tokens: int = 16,
        **request: Any,
    ) -> tuple[Turn, Turn]:
        """Both legs as the published proxy runs them: nothing compared, the handle as it is.

        Returns the turns on prefill and on decode. A prefill leg that fails is not followed up:
        then both are that one.
        """
        kv = FIRST_TURN
        if handle is not None:
            kv = {**handle, "do_remote_decode": True, "do_remote_prefill": False}
        first = await self.prefill_leg(session, kv, prompt=prompt, **request)
        if not first.ok:
            return first, first
        second = await self.decode_leg(
            session, first.kv_transfer_params, prompt=prompt, max_tokens=max_tokens, **request
        )
        return first, second

    async def metrics(self, session: aiohttp.ClientSession, role: RoleName) -> EngineMetrics:
        """An engine's /metrics."""
        return await scrape_engine(session, self.record(role).url)


def random_ids(seed: int, count: int) -> list[int]:
    """A prompt of token ids of the built-in model; the same for the same seed."""
    return random.Random(seed).choices(_VOCABULARY, k=count)


class Pairs:
    """The pair that runs, and the way to another one. One for a test session."""

    def __init__(self, root: Path, tell: Callable[[str], None]) -> None:
        self._root, self._tell = root, tell
        # One for all, so that what it started is also what it waits for.
        self._world = local.this_machine(self._listen)
        self._current: Pair | None = None
        self._names: list[str] = []
        self._ports: set[int] = set()
        self.marks = f"{root / 'state'}/"

    @contextlib.contextmanager
    def environment(self) -> Iterator[None]:
        """The state directory of these pairs, whatever a test has set for itself."""
        with mock.patch.dict(os.environ, {paths.STATE_DIR_ENV: str(self._root / "state")}):
            yield

    def get(self, setup: Setup = DEFAULT) -> Pair:
        """A healthy pair of this setup; a running one of another setup is ended first."""
        pair = self._current
        if pair is not None and pair.setup != setup:
            self.stop()
            pair = None
        if pair is None:
            pair = self._current = self._new(setup)
            self.bring_up(pair)
        elif not self._answers(pair):
            # A test has ended an engine: that one is started again, the other left alone.
            self.bring_up(pair)
        pair.set_ttl(None)
        return pair

    def stop(self) -> None:
        """End the running pair, if there is one."""
        pair, self._current = self._current, None
        if pair is None:
            return
        with self.environment(), hold(pair.config.name, "tests"):
            store = StateStore(pair.config.name)
            place = place_here(pair.config.name)
            teardown.tear_down(self._world, store, store.load(), place=place)

    def bring_up(self, pair: Pair) -> None:
        """What `pdctl up --no-verify` does, without a router."""
        with self.environment(), hold(pair.config.name, "tests"):
            store = StateStore(pair.config.name)
            wanted = self._wanted(pair)
            found = survey(self._world, wanted, store)
            with _evidence():
                state = runner.up(self._world, wanted, store, found, prove=_no_proof).state
        for record in state.processes.values():
            self._ports |= {record.port, record.side_channel_port or record.port}

    def runs(self, record: ProcessRecord) -> bool:
        """Whether the process of a record runs."""
        return record.ref is not None and self._world.hosts[record.host].alive(record.ref)

    def _answers(self, pair: Pair) -> bool:
        with self.environment():
            records = [pair.record("prefill"), pair.record("decode")]
            return all(
                self.runs(record) and self._world.probe(record.url + record.health_path) is None
                for record in records
            )

    def end(self, pair: Pair, record: ProcessRecord, timeout: float) -> None:
        """End one engine, behind the deployment's back."""
        with self.environment():
            assert record.ref is not None
            assert self._world.hosts[record.host].stop(record.ref, timeout=timeout)

    def leftovers(self) -> list[str]:
        """What is still there of all pairs: processes, their ports, their sockets' folders."""
        with self.environment():
            left = [
                f"pid {each.ref.pid}: {' '.join(each.argv)[:100]}"
                for host in self._world.hosts.values()
                for each in host.find(self.marks)
            ]
            left += [
                f"port {port}: {holder}"
                for port in sorted(self._ports)
                for host in self._world.hosts.values()
                if (holder := host.port_holder("127.0.0.1", port))
            ]
            folders = [paths.temp_dir(name) for name in self._names]
        left += [f"folder {folder}" for folder in folders if folder.exists()]
        left += [f"child {child.pid} of the tests: {child.name()}" for child in _children()]
        return left

    def _new(self, setup: Setup) -> Pair:
        name = f"e2e-{setup.name}-{uuid.uuid4().hex[:6]}"
        self._names.append(name)
        file = self._root / f"{name}.yaml"
        file.write_text(yaml.safe_dump(configuration(name, setup), sort_keys=False))
        self._tell(f"starting the pair `{setup.name}`")
        return Pair(self, setup, load_checked(file).config, file)

    def _wanted(self, pair: Pair) -> Wanted:
        secrets = local.read_secrets(pair.config)
        wanted = local.wanted_of(pair.config, pair.file, secrets, verify=False)

        def rendered(chosen: Chosen) -> Deployment:
            deployment = wanted.rendered(chosen)
            engines = [spec for spec in deployment.processes if spec.role != "router"]
            changed = tuple(_behind_the_back(spec, pair.setup) for spec in engines)
            return dataclasses.replace(deployment, processes=changed)

        return dataclasses.replace(wanted, rendered=rendered)

    def _listen(self, event: Event) -> None:
        match event:
            case StepDone(what=what, seconds=seconds) if seconds >= 1:
                self._tell(f"{what} ({seconds:.0f} s)")
            case StepFailed(what=what, message=message):
                self._tell(f"{what}: {message}")
            case StepProgress(text=text):
                self._tell(text)


def configuration(name: str, setup: Setup) -> dict[str, Any]:
    """The example that users start from, on free ports, with the setup's own values."""
    document: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    document["name"] = name
    document["model"]["tool_parser"] = "hermes"
    free = {"port": 0, "side_channel_port": 0}
    document["target"] = {"kind": "local", "prefill": free, "decode": dict(free)}
    document["router"]["port"] = 0
    if python := os.environ.get(PYTHON_ENV):
        document["engine"] |= {"install": "existing", "python": python}
        document["kv"]["buffer_device"] = "cpu"
    for key, value in setup.config.items():
        section = document
        *parents, last = key.split(".")
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    return document


def _behind_the_back(spec: ProcessSpec, setup: Setup) -> ProcessSpec:
    """Merge the setup's values into the rendered argument and environment."""
    if env := setup.env.get(spec.role):
        command = dataclasses.replace(spec.command, env={**spec.command.env, **env})
        spec = dataclasses.replace(spec, command=command)
    change = setup.connector.get(spec.role)
    if not change:
        return spec
    parts = list(spec.command.parts)
    at = parts.index("--kv-transfer-config") + 1
    argument = parts[at]
    assert isinstance(argument, str)
    parts[at] = json.dumps(_merged(json.loads(argument), change))
    return dataclasses.replace(spec, command=dataclasses.replace(spec.command, parts=tuple(parts)))


def _merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in change.items():
        inner = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = _merged(result[key], value) if inner else value
    return result


@contextlib.contextmanager
def _evidence() -> Iterator[None]:
    """The last lines of an engine's log belong in the report: its file is gone by then."""
    try:
        yield
    except PdctlError as error:
        for line in (error.where or "", *error.detail):
            error.add_note(line)
        raise


def _no_proof(state: object) -> runner.Proven:
    raise AssertionError("the pair is started without a router, so there is no proof to run")


def _children() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [child for child in children if child.status() != psutil.STATUS_ZOMBIE]


# --- the router in this process ---------------------------------------------------------------


@dataclass(frozen=True)
class Routed:
    """A router that serves in the test's own process.

    Attributes:
        url: without a slash at its end.
        router: the object, so that a test can take a guard out.
        endpoints: the pair with this router, as `verify` wants it.
    """

    url: str
    router: Router
    endpoints: Endpoints
    pair: Pair

    async def send(self, session: aiohttp.ClientSession, **request: Any) -> Turn:
        """A turn through the router that asks for the explanation; see `Pair.send`."""
        return await self.pair.send(session, self.url, **{"explain": True, **request})

    async def conversation(
        self,
        session: aiohttp.ClientSession,
        prompt: Sequence[int],
        more: Sequence[int],
        *,
        conversation_id: str,
        max_tokens: int = 80,
    ) -> tuple[Turn, Turn, list[int]]:
        """Two turns of one conversation of token ids; also gives the second prompt."""
        first = await self.send(
            session, prompt=prompt, max_tokens=max_tokens, conversation_id=conversation_id
        )
        assert first.ok, first.error_text
        assert first.token_ids is not None
        second_prompt = [*prompt, *first.token_ids, *more]
        second = await self.send(
            session, prompt=second_prompt, max_tokens=16, conversation_id=conversation_id
        )
        return first, second, second_prompt


@contextlib.asynccontextmanager
async def routed(
    pair: Pair,
    *,
    wait: float = 90.0,
    need_pair: bool = True,
    keys: Mapping[str, str] | None = None,
    **settings: Any,
) -> AsyncIterator[Routed]:
    """Run a router over the pair, on a port of its own, until the block ends.

    Args:
        wait: seconds to wait until its probe is through, whatever it found.
        need_pair: fail when the probe did not prove reuse.
        keys: API key by tenant; none: no key is needed.
        settings: fields of `RouterSettings`.
    """
    defaults: dict[str, Any] = {
        "prefill": (pair.prefill,),
        "decode": (pair.decode,),
        "port": 0,
        "ttl": router_ttl(pair.config),
        "threshold": pair.config.kv.recompute_threshold,
        "limits": pair.config.router.limits,
    }
    lines = "\n".join(f"{tenant}:{key}" for tenant, key in (keys or {}).items())
    api_keys = parse_keys(lines, "keys") if keys else None
    router = Router(RouterSettings(**(defaults | settings)), api_keys=api_keys)
    async with serving(router) as url:
        if wait:
            # The state is for the tenant `admin`, where there is one.
            first = next(iter((keys or {}).values()), None)
            await _probed(url, wait, need_pair, key=(keys or {}).get(ADMIN_TENANT, first))
        at = Endpoint("router-0", "router", "localhost", url)
        yield Routed(url, router, dataclasses.replace(pair.endpoints, router=at), pair)


async def _probed(url: str, limit: float, need_pair: bool, key: str | None) -> None:
    async with aiohttp.ClientSession() as session:
        try:
            async with asyncio.timeout(limit):
                while True:
                    endpoint = Endpoint("router-0", "router", "localhost", url)
                    facts = await read_router(session, endpoint, key, 5.0)
                    reasons = {pair.reason for pair in facts.pairs}
                    if facts.pairs and not reasons & {"not probed yet", "probe did not finish"}:
                        break
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"the router did not probe its pair within {limit} s") from None
    if need_pair:
        assert all(pair.ok for pair in facts.pairs), facts.pairs
