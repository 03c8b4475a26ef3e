"""Watches the engines and proves, pair by pair, that blocks really move both ways.

A healthy engine is no proof of a working pair: with the flag off on one side everything looks
well and nothing is reused, or a request never answers (FACTS T7). So no handle is offered between
two engines before a small two-turn probe has gone through them, and again after any restart.
"""

import asyncio
import logging
import secrets
import time
from typing import Any

import orjson

from pdctl.base.errors import BadAnswerError
from pdctl.base.facts import EngineMetrics
from pdctl.base.words import one_line
from pdctl.observe.metrics import engine_metrics, parse_samples
from pdctl.router import match
from pdctl.router.core import Answer, Failure, Policy
from pdctl.router.driver import Shared
from pdctl.router.fleet import Engine, Pair
from pdctl.router.handle import is_handle
from pdctl.router.legs import FIRST_TURN, count_of
from pdctl.router.store import Total

log = logging.getLogger("pdctl.router")

_HEALTH_LIMIT_S = 3.0
_REPROBE_S = 60.0
_SILENT_LOOKS = 5
# Counting takes time that grows with the handles; what is too late is not offered anyway.
_SWEEP_S = 5.0
_FLAG = "kv_connector_extra_config.bidirectional_kv_xfer"


class Watcher:
    """Polls health, probes pairs, forgets what is dead. Runs until cancelled."""

    def __init__(self, shared: Shared, policy: Policy, *, interval: float = 1.0) -> None:
        self._shared = shared
        self._policy = policy
        self._interval = interval
        self._models: dict[str, str] = {}
        self._next_reprobe: dict[tuple[str, str], float] = {}
        self._next_sweep = 0.0
        self._ready_told = False

    async def run(self) -> None:
        """Look at everything, again and again."""
        while True:
            try:
                await self.look()
            except Exception:
                # A look that fails must not end the watch; the next one may tell more.
                log.exception("looking at the engines failed")
            await asyncio.sleep(self._interval)

    async def look(self) -> None:
        """One round: health of all engines, then the pairs that wait for a probe."""
        fleet = self._shared.fleet
        await asyncio.gather(*(self._health(engine) for engine in fleet.engines()))
        for pair in fleet.unproven_pairs():
            await self._probe(pair)
        now = asyncio.get_running_loop().time()
        for key, pair in list(fleet.pairs.items()):
            if (
                pair.verdict == "no_reuse"
                and not pair.final
                and now >= self._next_reprobe.get(key, 0.0)
            ):
                await self._probe(pair)
        if now >= self._next_sweep:
            self._next_sweep = now + _SWEEP_S
            await self.sweep()
        self._tell()

    async def _health(self, engine: Engine) -> None:
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
        if not engine.healthy or engine.block_size is None:
            await self._learn(engine)

    async def _went_down(self, engine: Engine) -> None:
        log.warning("%s %s is down: %s", engine.role, engine.url, engine.why)
        if engine.role == "decode":
            # A dead engine holds nothing, and there is nobody to release it.
            gone = await self._shared.store.forget_engine(engine.url)
            self._shared.fleet.decode_starts.pop(engine.url, None)
            if gone:
                log.warning("%d handles to %s forgotten", gone, engine.url)

    async def _learn(self, engine: Engine) -> None:
        engines = self._shared.engines
        models = await engines.get(f"{engine.url}/v1/models", limit=_HEALTH_LIMIT_S)
        metrics = await engines.get(f"{engine.url}/metrics", limit=_HEALTH_LIMIT_S)
        version = await engines.get(f"{engine.url}/version", limit=_HEALTH_LIMIT_S)
        if models.status != 200 or not (name := _first_model(models.body)):
            engine.why = "does not list a model yet"
            return
        self._models[engine.url] = name
        if version.status == 200:
            engine.version = _version(version.body)
        facts = _read_metrics(metrics.body)
        fresh = self._shared.fleet.engine_up(
            engine.url,
            start=None if facts.process_start is None else str(facts.process_start),
            block_size=facts.block_size or None,
        )
        if fresh:
            log.info(
                "%s %s is up (vLLM %s, block size %s)",
                engine.role,
                engine.url,
                engine.version or "?",
                engine.block_size or "?",
            )

    async def _probe(self, pair: Pair) -> None:
        prober = _Prober(self._shared, self._policy, self._models.get(pair.prefill, ""))
        await prober.probe(pair)
        key = (pair.prefill, pair.decode)
        now = asyncio.get_running_loop().time()
        self._next_reprobe[key] = now + _REPROBE_S
        self._shared.metrics.pair_ok.labels(*key).set(pair.verdict == "ok")
        if pair.verdict == "ok":
            log.info("pair %s × %s proven: blocks move both ways", *key)
        else:
            log.warning("pair %s × %s does not reuse: %s", *key, pair.why)

    async def sweep(self) -> None:
        """Let go of what has expired, and count what is kept."""
        now = time.monotonic()
        for handle in await self._shared.store.take_expired(now):
            self._shared.metrics.releases.labels("expired").inc()
            log.info("conv=%s: handle expired", one_line(handle.conversation.key))
        totals = await self._shared.store.totals()
        for url in self._shared.fleet.decode:
            total = totals.get(url, Total())
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


class _Prober:
    """One probe of one pair: a two-turn conversation of random text."""

    def __init__(self, shared: Shared, policy: Policy, model: str) -> None:
        self._shared = shared
        self._policy = policy
        self._model = model
        # A salt for each turn keeps both engines' own prefix caches out of the proof.
        self._salts = (secrets.token_hex(16), secrets.token_hex(16))

    async def probe(self, pair: Pair) -> None:
        """Set the pair's verdict and the reason for it, when both are known."""
        moves_kv, why = await self._both_ways(pair)
        pair.moves_kv = moves_kv
        pair.verdict, pair.why = ("no_reuse", why) if why else ("ok", "")

    async def _both_ways(self, pair: Pair) -> tuple[bool, str]:
        """Whether prefill's blocks reach decode, and why decode's do not come back (or "")."""
        block_size = self._shared.fleet.decode[pair.decode].block_size
        ids = await self._ids(pair, (block_size or 16) * 2 + self._policy.threshold)
        if ids is None:
            return False, "prefill does not answer /tokenize"
        first = await self._ask(pair.prefill, ids, 1, FIRST_TURN, self._salts[0])
        kv = _kv(first)
        if kv is None or not kv.get("remote_block_ids"):
            return False, f"prefill offers no blocks to decode{_because(first)}"
        second = await self._ask(pair.decode, ids, 2, kv, self._salts[0])
        if isinstance(second, Failure):
            return False, f"decode did not get prefill's blocks{_because(second)}"
        return True, await self._back(pair, ids, _kv(second), block_size)

    async def _back(
        self, pair: Pair, ids: list[int], handle: dict[str, Any] | None, block_size: int | None
    ) -> str:
        if handle is None or not is_handle(handle):
            return f"decode returned no handle: {_FLAG} is not true there"
        if (why := match.unproven(handle)) is not None:
            return f"reuse is not proven for this model or layout ({why})"
        if not block_size or not match.covers(handle, block_size):
            return "the block size of decode is not known"
        held = match.retained(
            match.packed(ids) or b"",
            b"",
            completion_tokens=0,
            remote_num_tokens=handle.get("remote_num_tokens"),
        )
        tokens = match.attachable(held.certain, block_size)
        if tokens < 1:
            return "decode does not say how many tokens it holds"
        third = await self._ask(
            pair.prefill,
            [*ids, *ids[:3]],
            1,
            match.trim(handle, tokens, block_size),
            self._salts[1],
            limit=self._policy.reuse_base,
        )
        if isinstance(third, Failure):
            if third.kind == "timeout":
                # Each such request keeps its blocks, and a core busy, until prefill restarts.
                pair.final = True
                return f"prefill never answers a request with a handle: {_FLAG} is not true there"
            return f"prefill could not pull decode's blocks{_because(third)}"
        if (_kv(third) or {}).get("remote_prefill_cached_tokens", tokens) != tokens:
            return "prefill pulled nothing of what decode offered"
        return ""

    async def _ids(self, pair: Pair, count: int) -> list[int] | None:
        # Random words make at least a token each, whatever the tokenizer.
        text = " ".join(secrets.token_hex(3) for _ in range(count))
        answer = await self._shared.engines.post_json(
            f"{pair.prefill}/tokenize",
            {"model": self._model, "prompt": text},
            limit=self._shared.limits.tokenize,
            headers={},
        )
        tokens = answer.json.get("tokens") if isinstance(answer, Answer) else None
        if not isinstance(answer, Answer) or not isinstance(tokens, list) or not tokens:
            return None
        longest = count_of(answer.json.get("max_model_len")) or count
        return tokens[: min(count, longest - 8)]

    async def _ask(
        self,
        url: str,
        ids: list[int],
        max_tokens: int,
        kv: dict[str, Any],
        salt: str,
        limit: float | None = None,
    ) -> Answer | Failure:
        body = {
            "model": self._model,
            "prompt": ids,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_salt": salt,
            "kv_transfer_params": kv,
        }
        return await self._shared.engines.post_json(
            f"{url}/v1/completions",
            body,
            limit=limit or self._shared.limits.prefill_base,
            headers={},
        )


def _read_metrics(body: bytes) -> EngineMetrics:
    try:
        return engine_metrics(parse_samples(body.decode("utf-8", "replace")))
    except BadAnswerError:
        # Not what it should be, so it tells nothing.
        return EngineMetrics()


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


def _kv(answer: Answer | Failure) -> dict[str, Any] | None:
    kv = answer.json.get("kv_transfer_params") if isinstance(answer, Answer) else None
    return kv if isinstance(kv, dict) else None


def _because(result: Answer | Failure) -> str:
    if isinstance(result, Answer):
        return ""
    said = result.body[:200].decode("utf-8", "replace")
    words = [result.kind, str(result.status or ""), said]
    return f" ({': '.join(word for word in words if word)})"
