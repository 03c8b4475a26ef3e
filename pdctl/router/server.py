"""The router's HTTP face: routes and limits. What a turn is, the core decides."""

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import orjson
from aiohttp import hdrs, web

from pdctl import __version__
from pdctl.base.explain import CONVERSATION_HEADER, EXPLAIN_HEADER, STATE_PATH
from pdctl.base.requestlog import RequestRecord
from pdctl.base.words import one_line
from pdctl.router import prefixes
from pdctl.router.actions import Report
from pdctl.router.admin import Gate, ReuseSwitch, TtlSwitch
from pdctl.router.auditor import Auditor
from pdctl.router.core import Policy, TurnRequest, run_turn
from pdctl.router.driver import Driver, Explain, explanation, without_engines
from pdctl.router.eligible import CHAT, COMPLETIONS, Endpoint
from pdctl.router.engine_switch import EngineSwitch
from pdctl.router.engines import Engines
from pdctl.router.fleet import Fleet
from pdctl.router.front import deliver, error_answer, let_browsers_in
from pdctl.router.giving import Background, Shared, give_back_all, let_all_go, take_and_let_go
from pdctl.router.handle import Conversation
from pdctl.router.inflight import InFlight
from pdctl.router.kept_ttl import read_ttl, write_ttl
from pdctl.router.keys import ApiKeys, KeyFile
from pdctl.router.leases import Leases
from pdctl.router.memory import MemoryStore
from pdctl.router.metrics import RouterMetrics
from pdctl.router.passing import PASSED, body_of, engine_headers, header_text, pass_on
from pdctl.router.patience import Patience
from pdctl.router.requestlog import RequestLog
from pdctl.router.settings import RouterSettings
from pdctl.router.store import HandleStore
from pdctl.router.tracing import Tracing
from pdctl.router.watch import Watcher

log = logging.getLogger("pdctl.router")

_LONGEST_ID = 256
_KEYS_EVERY_S = 3.0
_LEVELS_WRITTEN = 200
_LAST_WORK_S = 5.0
LAST_WORDS_S = 0.5
"""What a router that stops gives what ran too long, to say so."""
_TENANT = web.RequestKey("tenant", str)
# What load balancers and scrapers ask without a key, as they do of the engines.
_OPEN_PATHS = ("/health", "/ready", "/metrics")


class Router:
    """One router process: its state, its watcher and its request handlers."""

    def __init__(
        self,
        settings: RouterSettings,
        *,
        store: HandleStore | None = None,
        key: str | None = None,
        api_keys: ApiKeys | None = None,
        key_file: KeyFile | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._driver = tracing.driver if tracing else Driver
        limits, file = settings.limits, settings.ttl_file
        self.settings = settings
        self.policy = Policy(
            threshold=settings.threshold,
            ttl=read_ttl(file, settings.ttl) if file else settings.ttl,
            prefill_base=limits.prefill_base,
            prefill_per_1k_tokens=limits.prefill_per_1k_tokens,
            reuse_base=limits.reuse_base,
            share=settings.reuse_share,
        )
        engines, metrics = Engines(limits, key), RouterMetrics()
        fleet = Fleet(settings.prefill, settings.decode, settings.cells)
        self.shared = Shared(
            engines=engines,
            fleet=fleet,
            store=store or store_of(settings, metrics),
            metrics=metrics,
            limits=limits,
            background=Background(),
            auditor=Auditor(
                engines,
                fleet,
                metrics,
                floor=settings.audit_floor,
                after_breach=self._forget_after_breach,
            ),
            leases=Leases(settings.renew_idle),
            patience=Patience(limits.drain),
        )
        self.watcher = Watcher(self.shared, self.policy)
        self._key_file = key_file
        self._api_keys = key_file.keys if key_file else api_keys
        self._gate = gate = Gate(lambda: self._api_keys, lambda request: request.get(_TENANT, ""))
        self.switches = (
            ReuseSwitch(self.shared, self.policy, gate),
            TtlSwitch(self.shared, self.policy, gate, partial(write_ttl, file) if file else None),
            EngineSwitch(self.shared, gate, settings.engines_file),
        )
        self.in_flight = InFlight()
        self.shared.metrics.in_flight.set_function(lambda: self.in_flight.count)
        self.log = RequestLog(
            settings.request_log,
            max_bytes=settings.request_log_mib * 2**20,
            keep=settings.request_log_keep,
        )

    def app(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(
            client_max_size=int(self.settings.limits.body_mib * 2**20),
            middlewares=[self._counted],
        )
        add = app.router
        add.add_post(CHAT, self._turn)
        add.add_post(COMPLETIONS, self._turn)
        add.add_get("/health", self._health)
        add.add_get("/ready", self._ready)
        add.add_get("/metrics", self._metrics)
        add.add_get(STATE_PATH, self._state)
        add.add_delete("/v1/conversations/{id}", self._forget)
        for switch in self.switches:
            switch.add_to(app)
        for method, path in PASSED:
            add.add_route(method, path, self._pass)
        let_browsers_in(app, dict.fromkeys((CHAT, COMPLETIONS, *(path for _, path in PASSED))))
        app.on_startup.append(self._start)
        app.on_cleanup.append(self._stop)
        return app

    # Turns.

    async def _turn(self, request: web.Request) -> web.StreamResponse:
        raw = await body_of(self.shared, request)
        body = _json_object(raw)
        if body is None:
            # Not for us to judge: decode says what is wrong with it, in its own words.
            return await self._pass_on(request, raw)
        self._salt(body, request)
        endpoint: Endpoint = CHAT if request.path == CHAT else COMPLETIONS
        request_id = header_text(request.headers.get("X-Request-Id")) or uuid.uuid4().hex
        turn = TurnRequest(
            endpoint=endpoint,
            body=body,
            tenant=request.get(_TENANT, ""),
            conversation=Conversation(
                name_of(body, request.headers), lambda: prefixes.anchor(endpoint, body) or ""
            ),
            request_id=request_id[:_LONGEST_ID],
            audited=random.random() < self.settings.audit_share,
        )
        driver = self._driver(
            self.shared,
            request,
            turn.request_id,
            self._engine_headers(request.headers),
            explain=self._explains(request),
        )
        arrived, began = time.time(), time.monotonic()
        report = Report()
        try:
            async with self.shared.patience.limit(self.settings.limits.total):
                await driver.run(
                    run_turn(turn, self.shared.fleet, self.policy, time.monotonic, report)
                )
        except asyncio.CancelledError:
            report.status = 499
            raise
        except TimeoutError:
            report.status = 504
            begun = await driver.out_of_time()
            if begun is None:
                raise
            return begun
        except Exception:
            report.status = 500
            raise
        finally:
            self._tell(turn, report, driver, arrived, time.monotonic() - began)
            driver.told(report)
        assert driver.response is not None
        return driver.response

    def _explains(self, request: web.Request) -> Explain | None:
        """How the turn is explained to this client; None if it did not ask."""
        if request.headers.get(EXPLAIN_HEADER) != "1":
            return None
        return explanation if self._gate.engines_refusal(request) is None else without_engines

    def _salt(self, body: dict[str, Any], request: web.Request) -> None:
        """Give the request a cache salt that no other tenant can have, its own one in it."""
        own = body.get("cache_salt")
        if not self.settings.tenant_salt or self._api_keys is None:
            return
        # What is no salt, or an empty one, the engine shall refuse in its own words.
        if own is None or (isinstance(own, str) and own):
            body["cache_salt"] = self._api_keys.salt(request.get(_TENANT, ""), own or "")

    def _tell(
        self, turn: TurnRequest, report: Report, driver: Driver, arrived: float, seconds: float
    ) -> None:
        conversation = turn.conversation.key or "-"
        word = "HIT" if report.outcome in ("HIT", "PARTIAL") else report.outcome
        # One line a turn, since each costs; in the words that the example proxy's users look for.
        log.info(
            "[%s] conv=%s: cache %s (%s, reused=%d, prompt=%s, retained=%s%s)%s",
            one_line(turn.request_id),
            one_line(conversation),
            word,
            report.reason,
            report.reused_tokens,
            report.prompt_tokens,
            report.retained,
            f", retries={','.join(report.retries)}" if report.retries else "",
            "" if report.prefill_s is None else f". Prefill done in {report.prefill_s * 1e3:.0f}ms",
        )
        self.shared.metrics.count_turn(report, driver.ttft_s)
        self.log.write(
            RequestRecord(
                conversation_id=conversation,
                ts=arrived,
                prompt_tokens=report.prompt_tokens,
                output_tokens=report.output_tokens,
                reused_tokens=report.reused_tokens,
                outcome=report.outcome,
                reason=report.reason,
                ttft_ms=_ms(driver.ttft_s),
                status=report.status,
                total_ms=round(seconds * 1000, 3),
                prefill_ms=_ms(report.prefill_s),
                tenant=turn.tenant,
                decode=report.decode,
            )
        )

    # Everything else.

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        return await self._pass_on(request, await body_of(self.shared, request))

    async def _pass_on(self, request: web.Request, raw: bytes) -> web.StreamResponse:
        return await pass_on(self.shared, request, raw, self._engine_headers(request.headers))

    def _engine_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        return engine_headers(headers, own_keys=self._api_keys is not None)

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _ready(self, request: web.Request) -> web.Response:
        ready = self._is_ready()
        # Where clients need keys, addresses of engines are not for who has none.
        said = {"ready": ready} if self._api_keys is not None else await self.state()
        return web.json_response(said, status=200 if ready else 503)

    def _is_ready(self) -> bool:
        return self.shared.fleet.ready() and not self.shared.patience.ending

    async def _state(self, request: web.Request) -> web.Response:
        if (refused := self._gate.engines_refusal(request)) is not None:
            return refused
        return web.json_response(await self.state())

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self.shared.metrics.exposition(), content_type="text/plain", charset="utf-8"
        )

    async def _forget(self, request: web.Request) -> web.Response:
        tenant = request.get(_TENANT, "")
        taking = self.shared.store.take_conversation(tenant, request.match_info["id"])
        released = await take_and_let_go(self.shared, taking, "deleted")
        return web.json_response({"released": released})

    def _forget_after_breach(self, decode: str) -> None:
        """What it keeps may have been computed from what was wrong."""
        self.shared.background.run(give_back_all(self.shared, decode, "audit_breach"))

    async def state(self) -> dict[str, Any]:
        """What `/pdctl/v1/state` and `/ready` say."""
        fleet = self.shared.fleet
        totals = await self.shared.store.totals()
        return {
            "ready": self._is_ready(),
            "version": __version__,
            "idle_s": round(time.monotonic() - self.in_flight.last_work, 1),
            "ttl": self.policy.ttl,
            "threshold": self.settings.threshold,
            "handles": sum(total.handles for total in totals.values()),
            "retained_tokens": sum(total.tokens for total in totals.values()),
            "engines": [
                {
                    "role": engine.role,
                    "url": engine.url,
                    "healthy": engine.healthy,
                    "reason": engine.why,
                    "version": engine.version,
                    "block_size": engine.block_size,
                    "capacity_tokens": engine.capacity_tokens,
                    "kv_usage": engine.kv_usage,
                    "waiting": engine.waiting,
                    "outstanding_tokens": engine.outstanding,
                    "retained_tokens": engine.retained,
                    "cell": engine.cell,
                    "drained": engine.drained,
                    "engine_start": fleet.decode_starts.get(engine.url),
                }
                for engine in fleet.engines()
            ],
            "pairs": [
                {
                    "prefill": pair.prefill,
                    "decode": pair.decode,
                    "ok": pair.verdict == "ok",
                    "moves_kv": pair.moves_kv,
                    "reason": pair.why,
                }
                for pair in fleet.pairs.values()
                if fleet.together(pair.prefill, pair.decode)
            ],
        }

    # Life.

    @web.middleware
    async def _counted(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        metrics = self.shared.metrics
        resource = request.match_info.route.resource
        path = resource.canonical if resource is not None else "other"
        # A browser asks whether it may ask before it shows a key.
        asks = path not in _OPEN_PATHS and request.method != hdrs.METH_OPTIONS
        if self._api_keys is not None and asks:
            tenant = self._api_keys.tenant_of(request.headers.get("Authorization"))
            if tenant is None:
                metrics.count_request(path, 401)
                return error_answer(401, "A valid API key is needed", "unauthorized")
            request[_TENANT] = tenant
        # All that engines work for; what says how the router is goes on.
        works = request.method == hdrs.METH_POST
        if works and (refused := self._refusal()) is not None:
            metrics.count_request(path, 503)
            return refused
        try:
            with self.in_flight.one(works=works):
                response = await handler(request)
                await deliver(request, response)
        except web.HTTPException as error:
            metrics.count_request(path, error.status)
            return error_answer(error.status, error.reason, "invalid_request")
        except TimeoutError:
            metrics.count_request(path, 504)
            return error_answer(504, "The request took longer than the router allows", "timeout")
        except (asyncio.CancelledError, ConnectionError) as error:
            metrics.count_request(path, 499)
            # Who left or does not read is no error of ours, which aiohttp would log as one.
            raise asyncio.CancelledError from error
        except Exception:
            metrics.count_request(path, 500)
            if request.writer.output_size:
                raise
            log.exception("%s failed", path)
            return error_answer(500, "The router has a bug; its log says more", "internal_error")
        metrics.count_request(path, response.status)
        return response

    def _refusal(self) -> web.Response | None:
        """What new work is told that the router will not do."""
        if self.shared.patience.ending:
            refused = error_answer(503, "The router is stopping", "stopping")
            refused.force_close()
        elif self.in_flight.count >= self.settings.limits.concurrent_requests:
            refused = error_answer(503, "The router has all the requests it may have", "overloaded")
        else:
            return None
        refused.headers["Retry-After"] = "1"
        return refused

    async def finish(self) -> None:
        """Take no more work, and wait until what runs has ended or its last seconds are over.

        It listens meanwhile, so that who asks `/ready` hears that it is not.
        """
        self.shared.patience.end()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.shared.patience.left() + LAST_WORDS_S):
                await self.in_flight.no_work()

    async def _start(self, app: web.Application) -> None:
        self.watcher_task = asyncio.get_running_loop().create_task(self.watcher.run())
        self._keys_task = asyncio.get_running_loop().create_task(self._watch_keys())

    async def _watch_keys(self) -> None:
        while self._key_file is not None:
            await asyncio.sleep(_KEYS_EVERY_S)
            self._key_file.reread()
            self._api_keys = self._key_file.keys

    async def _stop(self, app: web.Application) -> None:
        self.watcher_task.cancel()
        self._keys_task.cancel()
        self.shared.auditor.stop()
        # Requests may have used up the time; what they left behind is short.
        await self.shared.background.drain(max(self.shared.patience.left(), _LAST_WORK_S))
        await let_all_go(self.shared, await self.shared.store.close())
        await self.shared.engines.close()
        self.log.close()


def store_of(settings: RouterSettings, metrics: RouterMetrics) -> HandleStore:
    """The store that the settings name.

    Raises:
        UsageError: when its URL is none, or the package for it is missing.
    """
    if settings.store == "memory":
        return MemoryStore()
    from pdctl.router.redis_store import RedisStore  # most routers need no such package

    return RedisStore.open(
        settings.store,
        name=settings.deployment,
        limit=settings.limits.store,
        on_error=lambda operation: metrics.store_errors.labels(operation).inc(),
    )


def name_of(body: Mapping[str, Any], headers: Mapping[str, str]) -> str:
    """The client's name for its conversation: `conversation_id`, or a header; empty without."""
    for value in (
        body.get("conversation_id"),
        header_text(headers.get(CONVERSATION_HEADER)),
        header_text(headers.get("X-Session-Id")),
    ):
        if isinstance(value, str) and value and len(value) <= _LONGEST_ID:
            return value
    return ""


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _json_object(raw: bytes) -> dict[str, Any] | None:
    """The body; None unless it is an object that can also be sent on."""
    try:
        body = orjson.loads(raw)
        # orjson reads more levels than it writes; few brackets cannot make many levels.
        if raw.count(b"[") + raw.count(b"{") > _LEVELS_WRITTEN:
            orjson.dumps(body)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return None
    return body if isinstance(body, dict) else None
