"""The real pair and the means of testing it, shown on what all other tests stand on."""

from pathlib import Path

import aiohttp

from pdctl.observe.verify import VerifyOptions, verify
from tests.e2e.harness import Pair, Routed, random_ids, routed


async def test_the_proof_on_a_healthy_pair(router: Routed) -> None:
    report = await verify(router.endpoints, VerifyOptions(history_tokens=600))
    assert report.ok, report.reason
    assert report.output_equal is True
    turns = report.turns
    # Block 128, threshold 64: 264 generated tokens, and what prefill had of the prompt by itself.
    assert turns[1].reused_tokens is not None
    assert turns[1].reused_tokens >= 200
    assert report.bytes_pulled
    assert report.bytes_pulled >= turns[1].reused_tokens * 1000
    assert turns[0].reused_tokens == 0
    assert report.chat is not None


async def test_turns_by_hand_reuse_and_equal_a_cold_run(
    pair: Pair, session: aiohttp.ClientSession
) -> None:
    prompt = random_ids(1, 700)
    first_p, first = await pair.turn_by_hand(session, prompt, max_tokens=40)
    assert first_p.ok
    assert first.ok
    assert first.kv_transfer_params is not None
    assert first.token_ids is not None
    following = [*prompt, *first.token_ids, *random_ids(2, 30)]
    mark = pair.mark()
    # A salt of its own keeps prefill's cache out, so that all must come from decode.
    second_p, second = await pair.turn_by_hand(
        session, following, handle=first.kv_transfer_params, cache_salt="by-hand"
    )
    assert second_p.kv_transfer_params is not None
    assert second_p.kv_transfer_params["remote_prefill_cached_tokens"] == 739
    cold = await pair.cold(session, prompt=following, max_tokens=16)
    assert second.token_ids == cold.token_ids
    assert "POST /v1/completions" in pair.log_since(mark, "decode")


async def test_the_ttl_follows_its_file(pair: Pair, session: aiohttp.ClientSession) -> None:
    async def expiry() -> float:
        _, turn = await pair.turn_by_hand(session, random_ids(3, 130), max_tokens=2)
        assert turn.kv_transfer_params is not None
        return float(turn.kv_transfer_params["remote_blocks_expiry_time"])

    configured = await expiry()
    pair.set_ttl(30)
    assert configured - await expiry() > 400
    pair.set_ttl(None)
    assert await expiry() > configured


async def test_a_restarted_decode_is_new_and_reuses_again(
    pair: Pair, session: aiohttp.ClientSession
) -> None:
    before = pair.record("decode")
    assert before.ref is not None
    pair.restart_decode(kill=True)
    after = pair.record("decode")
    assert after.ref is not None
    assert not pair.runs(before)
    assert pair.runs(after)
    assert after.url == before.url
    assert after.engine_id != before.engine_id
    assert Path(after.log) == Path(before.log)
    async with routed(pair) as router:
        _, second, prompt = await router.conversation(
            session, random_ids(4, 400), random_ids(5, 20), conversation_id="after-restart"
        )
    assert second.explanation is not None
    assert second.explanation.reused_tokens > 0
    assert second.token_ids == (await pair.cold(session, prompt=prompt, max_tokens=16)).token_ids
