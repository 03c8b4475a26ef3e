"""Whether turns that reuse say what cold runs of the same prompt say.

In float32 token for token. Otherwise two cold runs differ as well, by how the engine batched them,
so the first token's logprobs are compared within the band that two cold runs of it span: they
depend on every token of the prompt, and so on every block that was pulled.
"""

import random
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import aiohttp

from pdctl.base.errors import BadAnswerError, UnreachableError
from pdctl.observe.endpoints import Endpoints
from pdctl.observe.facts import gather
from pdctl.observe.http import ask, ask_json
from pdctl.observe.proof import Sizes, plan_sizes
from pdctl.observe.turns import Turn, TurnLimits, TurnRequest, send_turn
from pdctl.observe.verify import random_words
from pdctl.router.audit import Comparison, asking, compare, first_logprobs
from pdctl.router.eligible import COMPLETIONS

_DEFAULT_BLOCK = 128
_HISTORY = 600


@dataclass(frozen=True)
class Compared:
    """One second turn that reused, and its cold runs.

    Attributes:
        reused: tokens that the engine counted as pulled.
        comparison: of the first token's logprobs.
        tokens_equal: the whole answer against the nearer cold run.
    """

    outcome: str
    reused: int
    comparison: Comparison
    tokens_equal: bool

    def problem(self, *, exact: bool) -> str:
        """What speaks against it; empty when nothing does."""
        if self.outcome not in ("HIT", "PARTIAL") or not self.reused:
            return f"turn 2 was no reuse ({self.outcome})"
        if exact and not self.tokens_equal:
            return "the answer differs from the cold ones"
        if not exact and self.comparison.result in ("breach", "unreadable"):
            told = self.comparison
            return (
                f"the first token is {told.distance:.3f} nats off, cold runs {told.noise:.3f}"
                if told.result == "breach"
                else "the engine told no logprobs"
            )
        return ""

    def as_dict(self) -> dict[str, object]:
        """Plain values; what is infinite is None."""
        told = asdict(self.comparison)
        finite = {k: v if not isinstance(v, float) or v < 1e300 else None for k, v in told.items()}
        return {
            "outcome": self.outcome,
            "reused": self.reused,
            "tokens_equal": self.tokens_equal,
            **finite,
        }


async def compare_turns(
    endpoints: Endpoints, *, count: int, floor: float, limits: TurnLimits
) -> list[Compared]:
    """Several conversations of two turns through the router, each with two cold runs beside it.

    Args:
        floor: nats; a smaller difference is never a breach.

    Raises:
        UnreachableError, BadAnswerError: there is nothing to compare.
    """
    if endpoints.router is None:
        raise UnreachableError("this deployment has no router", where=endpoints.name)
    async with aiohttp.ClientSession() as session:
        facts = await gather(session, endpoints)
        blocks = [e.metrics.block_size for e in facts.engines if e.metrics and e.metrics.block_size]
        sizes = plan_sizes(
            threshold=endpoints.threshold,
            block_size=max(blocks, default=_DEFAULT_BLOCK),
            max_model_len=min(
                (e.max_model_len for e in facts.engines if e.max_model_len), default=None
            ),
            history=_HISTORY,
        )
        model = next((e.model for e in facts.role("decode") if e.model), "")
        pair = _Pair(session, endpoints, endpoints.router.url, model, limits)
        pool = await pair.ids(count * (sizes.prompt + sizes.question))
        return [await pair.conversation(pool, sizes, floor) for _ in range(count)]


class _Pair:
    def __init__(
        self,
        session: aiohttp.ClientSession,
        endpoints: Endpoints,
        url: str,
        model: str,
        limits: TurnLimits,
    ) -> None:
        self._session, self._endpoints, self._url = session, endpoints, url
        self._model, self._limits = model, limits

    async def ids(self, count: int) -> list[int]:
        """So many ids of random words, by prefill's own tokenizer."""
        url = self._endpoints.role("prefill")[0].url + "/tokenize"
        found: list[int] = []
        while len(found) < count:
            words = random_words(random.Random(), count)
            body = {"model": self._model, "prompt": words, "add_special_tokens": False}
            key = self._endpoints.engine_key
            answer = await ask_json(self._session, url, method="POST", body=body, key=key)
            tokens = answer.get("tokens")
            if not isinstance(tokens, list) or not tokens:
                raise BadAnswerError("/tokenize gives no tokens", where=url)
            found += tokens
        return found

    async def conversation(self, pool: list[int], sizes: Sizes, floor: float) -> Compared:
        name = f"pdctl-accept-{uuid.uuid4().hex}"
        prompt = [pool.pop() for _ in range(sizes.prompt)]
        try:
            first = await self._turn(prompt, sizes.answer, conversation_id=name)
            new = [pool.pop() for _ in range(sizes.question)]
            history = [*prompt, *(first.token_ids or ()), *new]
            warm = await self._turn(history, sizes.final, conversation_id=name, logprobs=True)
            cold = [
                await self._turn(history, sizes.final, salt=uuid.uuid4().hex, logprobs=True)
                for _ in range(2)
            ]
        finally:
            await self._forget(name)
        said = warm.explanation
        told = compare(*(first_logprobs(turn.chunks[0]) for turn in (warm, *cold)), floor=floor)
        return Compared(
            outcome=said.outcome if said else "unknown",
            reused=said.reused_tokens if said else 0,
            comparison=told,
            tokens_equal=warm.token_ids in [turn.token_ids for turn in cold],
        )

    async def _turn(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        conversation_id: str | None = None,
        salt: str | None = None,
        logprobs: bool = False,
    ) -> Turn:
        request = TurnRequest(
            model=self._model,
            prompt=prompt,
            max_tokens=max_tokens,
            stream=False,
            ignore_eos=True,
            return_token_ids=True,
            conversation_id=conversation_id,
            cache_salt=salt,
            explain=True,
            api_key=self._endpoints.router_key,
            extra=asking(COMPLETIONS) if logprobs else {},
        )
        turn = await send_turn(self._session, self._url, request, limits=self._limits)
        if not turn.ok or not turn.chunks:
            raise BadAnswerError(
                f"a turn failed (HTTP {turn.status}): {turn.error_text}", where=self._url
            )
        return turn

    async def _forget(self, name: str) -> None:
        """Let decode free what these turns left there."""
        url = f"{self._url}/v1/conversations/{name}"
        try:
            await ask(
                self._session, url, method="DELETE", key=self._endpoints.router_key, timeout=5.0
            )
        except UnreachableError:
            return
