"""Proves of one pair that blocks really move both ways.

A healthy engine is no proof of a working pair: with the flag off on one side everything looks
well and nothing is reused, or a request never answers (FACTS T7). So no handle is offered between
two engines before a small two-turn probe has gone through them, and again after any restart.
"""

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pdctl.base.explain import IGNORES_HANDLES
from pdctl.base.sse import SseSplitter
from pdctl.base.transfer import FIRST_TURN, for_pull, is_handle
from pdctl.observe.sides import give_back, probe_sides
from pdctl.router import match
from pdctl.router.actions import Answer, Failure
from pdctl.router.core import Policy
from pdctl.router.fleet import Pair
from pdctl.router.giving import Shared
from pdctl.router.legs import ClientWants, StreamCleaner, count_of

_REPROBE_S = 60.0
# A flag that is off stays off until a restart, and asking for it pins a block for a while. But a
# busy machine can look like it, so it is asked a second time before that is believed.
_LONG_S = 600.0
_FLAG = "kv_connector_extra_config.bidirectional_kv_xfer"


@dataclass(frozen=True)
class Proof:
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


class Prober:
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

    async def probe(self, pair: Pair) -> Proof:
        """Find out whether prefill's blocks reach decode, and whether decode's come back."""
        block_size = self._shared.fleet.decode[pair.decode].block_size
        ids = await self._ids(pair, (block_size or 16) * 2 + self._policy.threshold)
        if ids is None:
            return Proof(False, "prefill does not answer /tokenize")
        first = await self._ask(pair.prefill, ids, 1, FIRST_TURN, self._salts[0])
        kv = _kv(first)
        if kv is None or not kv.get("remote_block_ids"):
            return Proof(False, f"prefill offers no blocks to decode{_because(first)}")
        async with self._alone:
            return await self._on_decode(pair, ids, kv, block_size)

    async def _on_decode(
        self, pair: Pair, ids: list[int], kv: dict[str, Any], block_size: int | None
    ) -> Proof:
        second = await self._ask(pair.decode, ids, 2, kv, self._salts[0])
        if isinstance(second, Failure):
            return Proof(False, f"decode did not get prefill's blocks{_because(second)}")
        handle = _kv(second)
        if handle is None or not is_handle(handle):
            return Proof(True, f"decode returned no handle: {_FLAG} is not true there")
        found = await self._back(pair, ids, handle, block_size)
        if found.why and not found.lost:
            await self._give_back(pair, handle, ids)
        return found

    async def _back(
        self, pair: Pair, ids: list[int], handle: dict[str, Any], block_size: int | None
    ) -> Proof:
        if (why := match.unproven(handle)) is not None:
            return Proof(True, f"reuse is not proven for this model or layout ({why})")
        if not block_size or not match.covers(handle, block_size):
            return Proof(True, "the block size of decode is not known")
        held = match.retained(
            match.packed(ids) or b"",
            b"",
            completion_tokens=0,
            remote_num_tokens=handle.get("remote_num_tokens"),
        )
        tokens = match.attachable(held.certain, block_size)
        if tokens < 1:
            return Proof(True, "decode does not say how many tokens it holds")
        if await self._ignores_handles(pair, ids):
            why = f"{IGNORES_HANDLES}: {_FLAG} is not true there"
            return Proof(True, why, again_s=_LONG_S if pair.why == why else _REPROBE_S)
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

    async def _pull(self, pair: Pair, ids: list[int], params: dict[str, Any]) -> Proof:
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
            return Proof(True, f"prefill could not pull decode's blocks{_because(third)}")
        pulled, tokens = _kv(third) or {}, params["remote_num_tokens"]
        if pulled.get("remote_prefill_cached_tokens", tokens) != tokens:
            return Proof(True, "prefill pulled nothing of what decode offered")
        return Proof(True, "")

    async def _silent(self, pair: Pair, ids: list[int]) -> Proof:
        """Tell a prefill server that never answers handles from one that has much to do."""
        plain = await self._ask(
            pair.prefill, ids[:3], 1, {}, self._salts[1], limit=self._policy.reuse_base
        )
        if isinstance(plain, Failure) and plain.kind == "timeout":
            return Proof(True, "prefill is too busy to tell whether it pulls", lost=True)
        # Each such request keeps its blocks, and a core busy, until prefill restarts.
        why = f"prefill never answers a request with a handle: {_FLAG} is not true there"
        return Proof(True, why, final=True, lost=True)

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


def _kv(answer: Answer | Failure) -> dict[str, Any] | None:
    kv = answer.json.get("kv_transfer_params") if isinstance(answer, Answer) else None
    return kv if isinstance(kv, dict) else None


def _because(result: Answer | Failure) -> str:
    if isinstance(result, Answer):
        return ""
    said = result.body[:200].decode("utf-8", "replace")
    words = [result.kind, str(result.status or ""), said]
    return f" ({': '.join(word for word in words if word)})"
