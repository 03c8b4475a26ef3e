"""The shadow audit on real engines: quiet when the answers are right, loud when they are wrong."""

import asyncio

import aiohttp
import pytest

from pdctl.router import match
from tests.e2e.harness import Pair, Routed, random_ids, routed
from tests.e2e.test_traps import begin, follow

WORDS = "The river runs past the old mill, and nobody remembers who built it. "


def audits(router: Routed) -> dict[str, float]:
    """How many audits ended how."""
    metrics = router.router.shared.metrics.audits.collect()[0]
    return {
        sample.labels["result"]: sample.value
        for sample in metrics.samples
        if sample.name.endswith("_total") and sample.value
    }


async def ended(router: Routed, count: int) -> dict[str, float]:
    async with asyncio.timeout(40):
        while sum(audits(router).values()) < count:
            await asyncio.sleep(0.1)
    return audits(router)


async def test_right_answers_pass_also_with_a_floor_that_allows_float32s_noise_only(
    pair: Pair, session: aiohttp.ClientSession
) -> None:
    async with routed(pair, audit_share=1.0, audit_floor=0.001) as router:
        prompt = await begin(router, session, "audit-ids", 400)
        turn = await follow(router, session, "audit-ids", prompt)
        assert turn.explanation is not None
        assert turn.explanation.outcome == "HIT"
        assert await ended(router, 1) == {"ok": 1}

        chat = [{"role": "user", "content": WORDS * 12}]
        first = await router.send(session, messages=chat, max_tokens=16, conversation_id="audit-c")
        chat += [
            {"role": "assistant", "content": first.text},
            {"role": "user", "content": "And then?"},
        ]
        second = await router.send(session, messages=chat, max_tokens=16, conversation_id="audit-c")
        assert second.explanation is not None
        assert second.explanation.reused_tokens > 64
        assert await ended(router, 2) == {"ok": 2}


async def test_without_the_token_check_it_finds_the_breach_and_ends_reuse(
    pair: Pair, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blind(left: bytes, right: bytes) -> int:
        return min(match.count(left), match.count(right))

    async with routed(pair, audit_share=1.0) as router:
        with monkeypatch.context() as patch:
            patch.setattr(match, "common_prefix", blind)
            await begin(router, session, "audit-x", 430)
            turn = await follow(router, session, "audit-x", random_ids(440, 540))
        assert turn.explanation is not None
        assert turn.explanation.reused_tokens > 500
        assert await ended(router, 1) == {"breach": 1}
        prompt = await begin(router, session, "audit-y", 450)
        after = await follow(router, session, "audit-y", prompt)
        assert after.ok
        assert after.explanation is not None
        assert (after.explanation.reused_tokens, after.explanation.reason) == (
            0,
            "pair_not_proven",
        )
