"""Watches the engines and proves, pair by pair, that blocks really move both ways.

A healthy engine is no proof of a working pair: with the flag off on one side everything looks
well and nothing is reused, or a request never answers (FACTS T7). So no handle is offered between
two engines before a small two-turn probe has gone through them, and again after any restart.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from pdctl.base.sse import SseSplitter
from pdctl.base.transfer import FIRST_TURN, for_pull, is_handle
from pdctl.base.words import one_line
from pdctl.observe.sides import give_back, probe_sides
from pdctl.router import match, retention
from pdctl.router.core import Answer, Failure, Policy
from pdctl.router.driver import Shared, let_go, make_room
from pdctl.router.eligible import CHAT
from pdctl.router.fleet import Engine, Pair
from pdctl.router.legs import ClientWants, StreamCleaner, count_of
from pdctl.router.store import Total
from pdctl.router.vitals import Vitals, read_vitals

log = logging.getLogger("pdctl.router")

_HEALTH_LIMIT_S = 3.0
_REPROBE_S = 60.0
# A flag that is off stays off until a restart, and asking for it pins a block for a while.
_LONG_S = 600.0
_SILENT_LOOKS = 5
_SWEEP_S = 1.0
# Decode holds blocks for at least this long after a handle is not offered any more: the least
# margin between the two TTLs is 8 s (FACTS T1). A later release could meet another's blocks.
_SURELY_HELD_S = 5.0
_FLAG = "kv_connector_extra_config.bidirectional_kv_xfer"

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
        self._others: dict[str, int] = {}
        self._next_sweep = 0.0
        self._ready_told = False

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

    async def _keep_house(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._next_sweep:
            self._next_sweep = now + _SWEEP_S
            await self.sweep()
        for pair in self._shared.fleet.pairs.values():
            ok = self._shared.metrics.pair_ok.labels(pair.prefill, pair.decode)
            ok.set(pair.verdict == "ok")
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
            self._shared.fleet.decode_starts.pop(engine.url, None)
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
        """Probe a pair if that is due."""
        pair = self._shared.fleet.pairs[key]
        if not self._due(pair, asyncio.get_running_loop().time()):
            return
        model = self._models.get(pair.prefill, "")
        prober = _Prober(self._shared, self._policy, model, self._probing[pair.decode])
        found = await prober.probe(pair)
        if self._shared.fleet.pairs[key] is not pair or pair.final:
            return  # one of the two was restarted meanwhile, or is known to give wrong answers
        pair.moves_kv, pair.why, pair.final = found.moves_kv, found.why, found.final
        pair.verdict = "no_reuse" if found.why else "ok"
        pair.again_at = asyncio.get_running_loop().time() + found.again_s
        self._note(pair)

    def _due(self, pair: Pair, now: float) -> bool:
        fleet = self._shared.fleet
        if not (fleet.prefill[pair.prefill].healthy and fleet.decode[pair.decode].healthy):
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


@dataclass(frozen=True)
class _Found:
    """What a probe found: as `Pair` has it, `why` being empty where blocks come back.

    Attributes:
        again_s: seconds until it is worth to look again.
        lost: the handle may still be read, so it must not be given back.
    """

    moves_kv: bool
    why: str
    final: bool = False
    again_s: float = _REPROBE_S
    lost: bool = False


class _Prober:
    """One probe of one pair: a two-turn conversation of random text.

    Args:
        alone: held while decode's memory is looked at, so that no other probe changes it.
    """

    def __init__(self, shared: Shared, policy: Policy, model: str, alone: asyncio.Lock) -> None:
        self._shared = shared
        self._policy = policy
        self._model = model
        self._alone = alone
        # A salt for each turn keeps both engines' own prefix caches out of the proof.
        self._salts = (secrets.token_hex(16), secrets.token_hex(16))

    async def probe(self, pair: Pair) -> _Found:
        """Find out whether prefill's blocks reach decode, and whether decode's come back."""
        block_size = self._shared.fleet.decode[pair.decode].block_size
        ids = await self._ids(pair, (block_size or 16) * 2 + self._policy.threshold)
        if ids is None:
            return _Found(False, "prefill does not answer /tokenize")
        first = await self._ask(pair.prefill, ids, 1, FIRST_TURN, self._salts[0])
        kv = _kv(first)
        if kv is None or not kv.get("remote_block_ids"):
            return _Found(False, f"prefill offers no blocks to decode{_because(first)}")
        async with self._alone:
            return await self._on_decode(pair, ids, kv, block_size)

    async def _on_decode(
        self, pair: Pair, ids: list[int], kv: dict[str, Any], block_size: int | None
    ) -> _Found:
        second = await self._ask(pair.decode, ids, 2, kv, self._salts[0])
        if isinstance(second, Failure):
            return _Found(False, f"decode did not get prefill's blocks{_because(second)}")
        handle = _kv(second)
        if handle is None or not is_handle(handle):
            return _Found(True, f"decode returned no handle: {_FLAG} is not true there")
        found = await self._back(pair, ids, handle, block_size)
        if found.why and not found.lost:
            await self._give_back(pair, handle, ids)
        return found

    async def _back(
        self, pair: Pair, ids: list[int], handle: dict[str, Any], block_size: int | None
    ) -> _Found:
        if (why := match.unproven(handle)) is not None:
            return _Found(True, f"reuse is not proven for this model or layout ({why})")
        if not block_size or not match.covers(handle, block_size):
            return _Found(True, "the block size of decode is not known")
        held = match.retained(
            match.packed(ids) or b"",
            b"",
            completion_tokens=0,
            remote_num_tokens=handle.get("remote_num_tokens"),
        )
        tokens = match.attachable(held.certain, block_size)
        if tokens < 1:
            return _Found(True, "decode does not say how many tokens it holds")
        if await self._ignores_handles(pair, ids):
            why = f"prefill does nothing with a handle: {_FLAG} is not true there"
            return _Found(True, why, again_s=_LONG_S)
        return await self._pull(pair, ids, for_pull(handle, tokens, block_size))

    async def _ignores_handles(self, pair: Pair, ids: list[int]) -> bool:
        """Whether prefill surely has the flag off, asked in a way that cannot hang (FACTS T7).

        False where decode has other work, which hides what it frees: then the pull will tell.
        """
        fleet = self._shared.fleet
        if any(other.verdict == "ok" for (p, _), other in fleet.pairs.items() if p == pair.prefill):
            return False  # another decode server has proven it
        sides = await probe_sides(
            self._shared.engines.session,
            pair.prefill,
            pair.decode,
            model=self._model,
            # Not the beginning of what decode has already.
            prompt=ids[::-1],
            key=self._shared.engines.key,
            timeout=self._shared.limits.reuse_base + self._shared.limits.connect,
        )
        return sides.prefill_takes_handle is False

    async def _pull(self, pair: Pair, ids: list[int], params: dict[str, Any]) -> _Found:
        # Not to be cut off when the router stops: that is how an engine crashes (vllm#46240).
        third = await asyncio.shield(
            self._shared.background.run(
                self._ask(
                    pair.prefill, [*ids, *ids[:3]], 1, params, self._salts[1],
                    limit=self._policy.reuse_base,
                )
            )
        )  # fmt: skip
        if isinstance(third, Failure):
            if third.kind == "timeout":
                return await self._silent(pair, ids)
            return _Found(True, f"prefill could not pull decode's blocks{_because(third)}")
        pulled, tokens = _kv(third) or {}, params["remote_num_tokens"]
        if pulled.get("remote_prefill_cached_tokens", tokens) != tokens:
            return _Found(True, "prefill pulled nothing of what decode offered")
        return _Found(True, "")

    async def _silent(self, pair: Pair, ids: list[int]) -> _Found:
        """Tell a prefill server that never answers handles from one that has much to do."""
        plain = await self._ask(
            pair.prefill, ids[:3], 1, {}, self._salts[1], limit=self._policy.reuse_base
        )
        if isinstance(plain, Failure) and plain.kind == "timeout":
            return _Found(True, "prefill is too busy to tell whether it pulls", lost=True)
        # Each such request keeps its blocks, and a core busy, until prefill restarts.
        why = f"prefill never answers a request with a handle: {_FLAG} is not true there"
        return _Found(True, why, final=True, lost=True)

    async def _give_back(self, pair: Pair, handle: dict[str, Any], ids: list[int]) -> None:
        """Free what decode holds for nothing; where it was pulled after all, this does nothing."""
        await give_back(
            self._shared.engines.session,
            pair.prefill,
            handle,
            model=self._model,
            prompt=ids[:3],
            key=self._shared.engines.key,
            timeout=self._policy.reuse_base,
        )

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
        kv: Mapping[str, Any],
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
            "kv_transfer_params": dict(kv),
        }
        result = await self._shared.engines.post_json(
            f"{url}/v1/completions",
            body,
            limit=limit or self._shared.limits.prefill_base,
            headers={},
        )
        return _streamed(result) or result


def _streamed(result: Answer | Failure) -> Answer | None:
    """The handle in an answer that was streamed though nobody asked for that, as proxies do."""
    if isinstance(result, Answer) or not result.content_type.startswith("text/event-stream"):
        return None
    cleaner = StreamCleaner(ClientWants(False, False), None, hold_end=False)
    cleaner.feed_all(SseSplitter().feed(result.body))
    return None if cleaner.harvest.failed else Answer({"kv_transfer_params": cleaner.harvest.kv}, 0)


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
