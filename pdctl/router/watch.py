"""Watches the engines: who lives and how full they are, which pairs are due for a probe."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import orjson

from pdctl.base.words import one_line
from pdctl.router import retention
from pdctl.router.actions import Answer, Failure
from pdctl.router.core import Policy
from pdctl.router.eligible import CHAT
from pdctl.router.fleet import Engine, Pair
from pdctl.router.giving import Shared, let_go, make_room
from pdctl.router.probe import Prober
from pdctl.router.renew import Renewer
from pdctl.router.store import Total
from pdctl.router.vitals import Vitals, read_vitals

log = logging.getLogger("pdctl.router")

_HEALTH_LIMIT_S = 3.0
_SILENT_LOOKS = 5
# Decode holds blocks for at least this long after a handle is not offered any more: the least
# margin between the two TTLs is 8 s (FACTS T1). A later release could meet another's blocks.
_LOST_AGAIN_S = 10.0
"""Between two probes of a pair that a request's blocks did not cross either."""
_SURELY_HELD_S = 5.0

Key = tuple[str, str]


class Watcher:
    """Polls health, probes pairs, forgets what is dead. Runs until cancelled."""

    def __init__(self, shared: Shared, policy: Policy, *, interval: float = 1.0) -> None:
        self._shared = shared
        self._policy = policy
        self._interval = interval
        self._models: dict[str, str] = {}
        # What a probe sees of decode's memory, another one must not change.
        self._probing = {url: asyncio.Lock() for url in shared.fleet.decode}
        self._proving = {key: asyncio.Lock() for key in shared.fleet.pairs}
        self._others: dict[str, int] = {}
        self._ready_told = False
        self._renewer = Renewer(shared)

    async def run(self) -> None:
        """Look at everything, again and again; what is silent holds up nothing but itself."""
        fleet = self._shared.fleet
        async with asyncio.TaskGroup() as tasks:
            for engine in fleet.engines():
                tasks.create_task(self._again(partial(self._look_at, engine), self._interval))
            for key in fleet.pairs:
                # Often, since it costs nothing until an engine has come up.
                tasks.create_task(self._again(partial(self._prove, key), self._interval / 4))
            tasks.create_task(self._again(self._keep_house, self._interval))
            tasks.create_task(self._again(self._renew, self._interval / 2))

    async def look(self) -> None:
        """One round: all engines, then the pairs that wait for a probe."""
        fleet = self._shared.fleet
        await asyncio.gather(*(self._look_at(engine) for engine in fleet.engines()))
        await asyncio.gather(*(self._prove(key) for key in fleet.pairs))
        await self._keep_house()

    async def _again(self, look: Callable[[], Awaitable[None]], interval: float) -> None:
        while True:
            try:
                await look()
            except Exception:
                # A look that fails must not end the watch; the next one may tell more.
                log.exception("looking at the engines failed")
            await asyncio.sleep(interval)

    async def _renew(self) -> None:
        # Not waited for: a server that is silent must not hold up what is due on others.
        self._shared.background.run(self._renewer.round(time.monotonic, self._policy.ttl))

    async def _keep_house(self) -> None:
        await self.sweep()
        fleet, metrics = self._shared.fleet, self._shared.metrics
        for pair in fleet.pairs.values():
            key = (pair.prefill, pair.decode)
            # Those that are not to work together are never probed, and nothing is wrong with them.
            if fleet.together(*key):
                metrics.pair_ok.labels(*key).set(pair.verdict == "ok")
            else:
                with suppress(KeyError):
                    metrics.pair_ok.remove(*key)
        self._tell()

    async def _look_at(self, engine: Engine) -> None:
        answer = await self._shared.engines.get(f"{engine.url}/health", limit=_HEALTH_LIMIT_S)
        if isinstance(answer, Failure) and answer.kind == "timeout":
            # A busy engine is not a dead one; dropping its handles would cost all its reuse.
            engine.silent += 1
            if engine.silent < _SILENT_LOOKS:
                return
        else:
            engine.silent = 0
        if answer.status != 200:
            why = f"/health says {answer.status}" if answer.status else "does not answer"
            if self._shared.fleet.engine_down(engine.url, why):
                await self._went_down(engine)
            return
        page = await self._shared.engines.get(f"{engine.url}/metrics", limit=_HEALTH_LIMIT_S)
        vitals = read_vitals(page.body) if page.status == 200 else Vitals()
        if engine.healthy and vitals.start not in (None, engine.start) and engine.start:
            # It came back faster than we look.
            self._shared.fleet.engine_down(engine.url, "was restarted")
            await self._went_down(engine)
        if not engine.healthy:
            await self._learn(engine, vitals)
        elif engine.start is None or engine.block_size is None:
            self._shared.fleet.engine_up(
                engine.url, start=vitals.start, block_size=vitals.block_size
            )
        if page.status == 200:
            await self._note_vitals(engine, vitals)

    async def _note_vitals(self, engine: Engine, vitals: Vitals) -> None:
        engine.kv_usage, engine.waiting = vitals.kv_usage, vitals.waiting
        if vitals.capacity_tokens is not None:
            engine.capacity_tokens = vitals.capacity_tokens
        if engine.role == "prefill":
            if engine.capacity_tokens is not None:
                self._shared.fleet.prefixes.room[engine.url] = engine.capacity_tokens
            return
        totals = await self._shared.store.totals()
        engine.retained = totals.get(engine.url, Total()).pinned
        others = retention.held_by_others(
            engine.capacity_tokens, engine.kv_usage, engine.retained, engine.outstanding
        )
        # A turn that ends between the page and now looks like others'; the next look knows better.
        engine.others = min(others, self._others.get(engine.url, others))
        self._others[engine.url] = others
        await make_room(self._shared, engine.url)

    async def _went_down(self, engine: Engine) -> None:
        log.warning("%s %s is down: %s", engine.role, engine.url, engine.why)
        if engine.role == "decode":
            # A dead engine holds nothing, and there is nobody to release it.
            gone = await self._shared.store.forget_engine(engine.url)
            if gone:
                log.warning("%d handles to %s forgotten", gone, engine.url)

    async def _learn(self, engine: Engine, vitals: Vitals) -> None:
        engines = self._shared.engines
        models = await engines.get(f"{engine.url}/v1/models", limit=_HEALTH_LIMIT_S)
        version = await engines.get(f"{engine.url}/version", limit=_HEALTH_LIMIT_S)
        if models.status != 200 or not (name := _first_model(models.body)):
            engine.why = "does not list a model yet"
            return
        self._models[engine.url] = name
        if version.status == 200:
            engine.version = _version(version.body)
        engine.renders = engine.role == "prefill" and await self._renders(engine.url, name)
        self._shared.fleet.engine_up(engine.url, start=vitals.start, block_size=vitals.block_size)
        log.info(
            "%s %s is up (vLLM %s, block size %s)",
            engine.role,
            engine.url,
            engine.version or "?",
            engine.block_size or "?",
        )

    async def _renders(self, url: str, model: str) -> bool:
        body = {"model": model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        answer = await self._shared.engines.post_json(
            f"{url}{CHAT}/render", body, limit=_HEALTH_LIMIT_S, headers={}
        )
        return isinstance(answer, Answer) and isinstance(answer.json.get("token_ids"), list)

    async def _prove(self, key: Key) -> None:
        """Probe a pair if that is due, and nobody does."""
        async with self._proving[key]:
            await self._prove_alone(key)

    async def _prove_alone(self, key: Key) -> None:
        pair = self._shared.fleet.pairs[key]
        if not self._due(pair, asyncio.get_running_loop().time()):
            return
        model = self._models.get(pair.prefill, "")
        prober = Prober(self._shared, self._policy, model, self._probing[pair.decode])
        found = await prober.probe(pair)
        if self._shared.fleet.pairs[key] is not pair or pair.final:
            return  # one of the two was restarted meanwhile, or is known to give wrong answers
        pair.moves_kv, pair.why, pair.final = found.moves_kv, found.why, found.final
        pair.verdict = "no_reuse" if found.why else "ok"
        pair.lost = pair.lost and not found.moves_kv
        # Requests do without prefill meanwhile, which is worth a look more often.
        again_s = min(found.again_s, _LOST_AGAIN_S) if pair.lost else found.again_s
        pair.again_at = asyncio.get_running_loop().time() + again_s
        self._note(pair)

    def _due(self, pair: Pair, now: float) -> bool:
        fleet = self._shared.fleet
        if not (fleet.prefill[pair.prefill].healthy and fleet.decode[pair.decode].healthy):
            return False
        if not fleet.together(pair.prefill, pair.decode):
            return False
        if pair.verdict == "no_reuse":
            return not pair.final and now >= (pair.again_at or 0.0)
        return pair.verdict == "unknown"

    def _note(self, pair: Pair) -> None:
        key = (pair.prefill, pair.decode)
        if pair.verdict == "ok":
            log.info("pair %s × %s proven: blocks move both ways", *key)
        else:
            log.warning("pair %s × %s does not reuse: %s", *key, pair.why)
        self._tell()

    async def sweep(self) -> None:
        """Let go of what has expired, and count what is kept."""
        now = time.monotonic()
        for handle in await self._shared.store.take_expired(now):
            log.info("conv=%s: handle expired", one_line(handle.conversation.key))
            if now - handle.deadline < _SURELY_HELD_S:
                # Decode's own TTL may be far longer than the router's.
                let_go(self._shared, handle, "expired")
        totals = await self._shared.store.totals()
        for url, engine in self._shared.fleet.decode.items():
            total = totals.get(url, Total())
            if engine.capacity_tokens is not None:
                self._shared.metrics.capacity.labels(url).set(engine.capacity_tokens)
            self._shared.metrics.handles.labels(url).set(total.handles)
            self._shared.metrics.retained.labels(url).set(total.tokens)

    def _tell(self) -> None:
        ready = self._shared.fleet.ready()
        if ready and not self._ready_told:
            fleet = self._shared.fleet
            log.info(
                "Ready: %d prefill, %d decode instances", len(fleet.prefill), len(fleet.decode)
            )
        self._ready_told = ready


def _first_model(body: bytes) -> str | None:
    try:
        data = orjson.loads(body)["data"]
        return str(data[0]["id"])
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError):
        return None


def _version(body: bytes) -> str | None:
    try:
        return str(orjson.loads(body)["version"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
