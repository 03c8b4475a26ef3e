"""The traps of FACTS section 2, each forced on the real pair: with the guard, the client sees a
right answer in time; with the guard taken out, the trap closes. The engines' own logs and counters
show that it was met.
"""

import asyncio
from collections.abc import Generator
from typing import Any

import aiohttp
import pytest

from pdctl.config.model import RouterLimits
from pdctl.observe.turns import Turn, TurnLimits, TurnTimeoutError
from pdctl.observe.verify import VerifyOptions, verify
from pdctl.router import core, match
from pdctl.router.handle import Handle
from pdctl.router.memory import MemoryStore
from tests.e2e.harness import Pair, Routed, Setup, random_ids, routed

DECLINED = "Declining expired remote read"
INVALID_BLOCKS = "Potentially invalid KV blocks for unrecognized request"
FLAG_OFF = {"kv_connector_extra_config": {"bidirectional_kv_xfer": False}}


async def begin(router: Routed, session: aiohttp.ClientSession, name: str, seed: int) -> list[int]:
    """Turn 1 of a conversation; gives the prompt of turn 2."""
    prompt = random_ids(seed, 500)
    turn = await router.send(session, prompt=prompt, max_tokens=40, conversation_id=name)
    assert turn.ok, turn.error_text
    assert turn.token_ids is not None
    return [*prompt, *turn.token_ids, *random_ids(seed + 1, 20)]


async def follow(
    router: Routed, session: aiohttp.ClientSession, name: str, prompt: list[int], **more: Any
) -> Turn:
    """A later turn. A salt would change the scope, so prefill's own cache may take part."""
    return await router.send(session, prompt=prompt, max_tokens=16, conversation_id=name, **more)


async def equals_cold(pair: Pair, session: aiohttp.ClientSession, turn: Turn, prompt: list[int]):
    cold = await pair.cold(session, prompt=prompt, max_tokens=16)
    return turn.token_ids == cold.token_ids


def without_the_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take out the guard that does a turn again without its handle."""
    guarded = core._Turn._reusing_prefill

    def unguarded(
        turn: core._Turn, handle: Handle, prefill: str
    ) -> Generator[core.Action, Any, core.Answer | None]:
        answer = yield from guarded(turn, handle, prefill)
        if answer is None:
            raise RuntimeError("the handle failed, and the guard is out")
        return answer

    monkeypatch.setattr(core._Turn, "_reusing_prefill", unguarded)


# T1: a turn that comes within 5 s of the TTL, or later.


async def test_t1_a_read_that_prefill_declines_is_done_again_cold(
    pair: Pair, session: aiohttp.ClientSession, router: Routed
) -> None:
    pair.set_ttl(6)  # behind the router's back, which goes on believing in minutes
    prompt = await begin(router, session, "t1", 100)
    await asyncio.sleep(2)
    mark = pair.mark()
    turn = await follow(router, session, "t1", prompt)
    assert DECLINED in pair.log_since(mark, "prefill")
    assert turn.ok
    assert turn.explanation is not None
    assert turn.explanation.retries == ("reuse_status",)
    assert turn.explanation.reused_tokens == 0
    assert await equals_cold(pair, session, turn, prompt)


async def test_t1_without_the_retry_the_client_gets_an_error(
    pair: Pair,
    session: aiohttp.ClientSession,
    router: Routed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_the_retry(monkeypatch)
    pair.set_ttl(6)
    prompt = await begin(router, session, "t1u", 110)
    await asyncio.sleep(2)
    mark = pair.mark()
    turn = await follow(router, session, "t1u", prompt)
    assert DECLINED in pair.log_since(mark, "prefill")
    assert turn.status == 500


async def test_t1_the_ttl_keeps_a_late_handle_from_prefill(
    pair: Pair, session: aiohttp.ClientSession
) -> None:
    async with routed(pair, ttl=1.0) as router:
        pair.set_ttl(6)  # after the router's probe, which may take longer than that leaves it
        prompt = await begin(router, session, "t1t", 120)
        await asyncio.sleep(2)
        mark = pair.mark()
        turn = await follow(router, session, "t1t", prompt)
    assert turn.ok
    assert turn.explanation is not None
    # The watcher may have swept the handle by then, or not.
    assert turn.explanation.reason in ("expired", "first_turn")
    assert turn.explanation.retries == ()
    assert DECLINED not in pair.log_since(mark, "prefill")
    assert await equals_cold(pair, session, turn, prompt)


# T3: a handle of another prompt.


async def test_t3_another_prompt_never_gets_a_conversations_blocks(
    pair: Pair, session: aiohttp.ClientSession, router: Routed
) -> None:
    await begin(router, session, "t3", 200)
    other = random_ids(210, 540)
    turn = await follow(router, session, "t3", other)
    assert turn.ok
    assert turn.explanation is not None
    assert turn.explanation.reason == "diverged"
    assert await equals_cold(pair, session, turn, other)


async def test_t3_an_edit_reuses_only_what_is_before_it(
    pair: Pair, session: aiohttp.ClientSession, router: Routed
) -> None:
    prompt = await begin(router, session, "t3e", 220)
    prompt[300:310] = random_ids(221, 10)
    turn = await follow(router, session, "t3e", prompt)
    assert turn.ok
    assert turn.explanation is not None
    assert turn.explanation.attached_tokens == 300
    assert await equals_cold(pair, session, turn, prompt)


async def test_t3_without_the_token_check_the_answer_is_silently_wrong(
    pair: Pair,
    session: aiohttp.ClientSession,
    router: Routed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def blind(left: bytes, right: bytes) -> int:
        return min(match.count(left), match.count(right))

    monkeypatch.setattr(match, "common_prefix", blind)
    await begin(router, session, "t3u", 230)
    other = random_ids(240, 540)
    turn = await follow(router, session, "t3u", other)
    assert turn.ok
    assert turn.explanation is not None
    assert turn.explanation.reused_tokens > 500
    assert not await equals_cold(pair, session, turn, other)


# T5: a handle used twice.


async def several_at_once(
    router: Routed, session: aiohttp.ClientSession, seed: int
) -> tuple[list[Turn], list[list[int]]]:
    prompt = await begin(router, session, f"t5-{seed}", seed)
    prompts = [[*prompt, *random_ids(seed + 10 + place, 10)] for place in range(3)]
    sent = (follow(router, session, f"t5-{seed}", each) for each in prompts)
    return list(await asyncio.gather(*sent)), prompts


async def test_t5_turns_at_once_never_share_a_handle(
    pair: Pair, session: aiohttp.ClientSession, router: Routed
) -> None:
    mark = pair.mark()
    turns, prompts = await several_at_once(router, session, 300)
    for turn, prompt in zip(turns, prompts, strict=True):
        assert turn.ok
        assert await equals_cold(pair, session, turn, prompt)
    told = [turn.explanation for turn in turns]
    attached = [each for each in told if each is not None and each.attached_tokens]
    assert len(attached) == 1
    assert INVALID_BLOCKS not in pair.log_since(mark, "decode")


async def test_t5_without_the_claim_decode_is_asked_for_blocks_it_has_freed(
    pair: Pair,
    session: aiohttp.ClientSession,
    router: Routed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def shared(store: MemoryStore, handle_id: str) -> Handle | None:
        return store._handles.get(handle_id)

    monkeypatch.setattr(MemoryStore, "take", shared)
    mark = pair.mark()
    await several_at_once(router, session, 330)
    async with asyncio.timeout(20):
        while INVALID_BLOCKS not in pair.log_since(mark, "decode"):
            await pair.cold(session, prompt=[9, 9, 9], max_tokens=1)
            await asyncio.sleep(0.2)


# T9: streams without handles.


async def chat_twice(
    router: Routed, session: aiohttp.ClientSession, name: str, *, stream: bool
) -> tuple[Turn, Turn]:
    words = " ".join(f"word{place}" for place in random_ids(400, 150))
    messages: list[dict[str, Any]] = [{"role": "user", "content": words}]
    sent = {"max_tokens": 30, "conversation_id": name, "stream": stream}
    first = await router.send(session, messages=messages, **sent)
    assert first.ok
    messages += [first.message, {"role": "user", "content": "and then"}]
    return first, await router.send(session, messages=messages, **sent)


@pytest.mark.parametrize("stream", [True, False])
async def test_t9_a_streamed_chat_reuses_like_any_other(
    session: aiohttp.ClientSession, router: Routed, stream: bool
) -> None:
    first, second = await chat_twice(router, session, f"t9-{stream}", stream=stream)
    assert second.ok
    assert second.explanation is not None
    assert second.explanation.attached_tokens > 300
    for turn in (first, second):
        assert not any(chunk.get("kv_transfer_params") for chunk in turn.chunks)


@pytest.mark.engines(
    Setup(
        "no-stream-handles",
        env={"decode": {"PDCTL_PLUGIN_LEVERS": "live_ttl,quiet_progress,quiet_queue"}},
    )
)
async def test_t9_without_the_plugin_streams_bring_no_handle_and_the_router_goes_on(
    session: aiohttp.ClientSession, pair: Pair
) -> None:
    async with routed(pair) as router:
        _, streamed = await chat_twice(router, session, "t9-s", stream=True)
        _, whole = await chat_twice(router, session, "t9-w", stream=False)
        proof = await verify(router.endpoints, VerifyOptions(chat=False))
    assert streamed.ok
    assert streamed.explanation is not None
    assert streamed.explanation.reason == "first_turn"
    assert whole.explanation is not None
    assert whole.explanation.attached_tokens > 300
    assert (proof.ok, proof.side) == (False, "decode")
    assert "decode puts no handle into streamed answers" in proof.reason


# T7: the flag on one side only.


@pytest.mark.engines(Setup("prefill-off", connector={"prefill": FLAG_OFF}))
async def test_t7_a_request_with_a_handle_never_answers_on_a_prefill_without_the_flag(
    session: aiohttp.ClientSession, pair: Pair
) -> None:
    _, first = await pair.turn_by_hand(session, random_ids(500, 300), max_tokens=8)
    assert first.token_ids is not None
    following = [*random_ids(500, 300), *first.token_ids, 9]
    with pytest.raises(TurnTimeoutError):
        await pair.turn_by_hand(
            session,
            following,
            handle=first.kv_transfer_params,
            cache_salt="t7",
            limits=TurnLimits(first_byte=6.0, idle=6.0, total=6.0),
        )


@pytest.mark.engines(Setup("prefill-off", connector={"prefill": FLAG_OFF}))
async def test_t7_the_probe_keeps_handles_from_such_a_prefill(
    session: aiohttp.ClientSession, pair: Pair
) -> None:
    async with routed(pair, need_pair=False) as router:
        assert "bidirectional_kv_xfer" in (await router.router.state())["pairs"][0]["reason"]
        prompt = await begin(router, session, "t7", 510)
        turn = await follow(router, session, "t7", prompt)
    assert turn.ok
    assert turn.explanation is not None
    assert turn.explanation.reason == "pair_not_proven"
    assert await equals_cold(pair, session, turn, prompt)


@pytest.mark.engines(Setup("prefill-off", connector={"prefill": FLAG_OFF}))
async def test_t7_without_the_probe_the_limit_saves_the_turn_and_without_that_it_hangs(
    session: aiohttp.ClientSession, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"reuse_base": 3.0, "prefill_per_1k_tokens": 1.0}
    async with routed(pair, need_pair=False, limits=RouterLimits(**limits)) as router:
        believed = router.router.shared.fleet.pairs[(pair.prefill, pair.decode)]
        believed.verdict = "ok"
        prompt = await begin(router, session, "t7u", 520)
        turn = await follow(router, session, "t7u", prompt)
        assert turn.ok
        assert turn.explanation is not None
        assert turn.explanation.retries == ("reuse_timeout",)
        assert await equals_cold(pair, session, turn, prompt)

        monkeypatch.setattr(router.router.policy, "reuse_base", 600.0)
        believed.pauses.clear()
        prompt = await begin(router, session, "t7v", 530)
        with pytest.raises(TurnTimeoutError):
            await follow(
                router, session, "t7v", prompt, limits=TurnLimits(first_byte=8, idle=8, total=8)
            )


# T2: decode restarted.


async def test_t2_handles_of_a_dead_engine_cost_the_client_nothing(
    pair: Pair, session: aiohttp.ClientSession
) -> None:
    async with routed(pair) as router:
        prompt = await begin(router, session, "t2", 600)
        other = await begin(router, session, "t2u", 605)
        # Without its watcher the router does not hear of the restart, as in the worst race.
        router.router.watcher_task.cancel()
        await asyncio.to_thread(pair.restart_decode, kill=True)
        with pytest.MonkeyPatch.context() as patch:
            without_the_retry(patch)
            assert (await follow(router, session, "t2u", other)).status == 500
        for believed in router.router.shared.fleet.pairs.values():
            believed.pauses.clear()

        mark = pair.mark()
        turn = await follow(router, session, "t2", prompt)
        assert turn.ok
        assert turn.explanation is not None
        assert turn.explanation.retries == ("reuse_status",)
        assert "NIXL transfer failure" in pair.log_since(mark, "prefill")
        assert await equals_cold(pair, session, turn, prompt)

        prompt = await begin(router, session, "t2-new", 610)
        turn = await follow(router, session, "t2-new", prompt)
        assert turn.explanation is not None
        assert turn.explanation.attached_tokens > 500
        assert turn.explanation.retries == ()
        assert await equals_cold(pair, session, turn, prompt)


@pytest.mark.engines(Setup("fixed-id", connector={"decode": {"engine_id": "fixed"}}))
async def test_t2_with_a_fixed_engine_id_prefill_never_reuses_again_and_clients_still_do_not_see_it(
    pair: Pair, session: aiohttp.ClientSession
) -> None:
    async with routed(pair) as router:
        prompt = await begin(router, session, "before", 620)
        assert (await follow(router, session, "before", prompt)).ok
        await asyncio.to_thread(pair.restart_decode, kill=True)
        for name, seed in (("a", 630), ("b", 640)):
            first_p, first = await pair.turn_by_hand(session, random_ids(seed, 300), max_tokens=8)
            assert first_p.ok
            assert first.token_ids is not None
            again, _ = await pair.turn_by_hand(
                session,
                [*random_ids(seed, 300), *first.token_ids, 9],
                handle=first.kv_transfer_params,
                cache_salt=name,
            )
            assert again.status == 500
        decode = router.router.shared.fleet.decode[pair.decode]
        async with asyncio.timeout(20):
            while not decode.healthy:
                await asyncio.sleep(0.1)
        prompt = await begin(router, session, "after", 650)
        turn = await follow(router, session, "after", prompt)
        assert turn.ok
        assert await equals_cold(pair, session, turn, prompt)
