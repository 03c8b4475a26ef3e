"""The two-turn proof against a fake pair: what it says of a good one, and of each bad one."""

import asyncio
import random
import re
import time
from dataclasses import replace
from typing import Any

import pytest

from pdctl.base.errors import BadAnswerError, PermissionDeniedError, UnreachableError
from pdctl.base.events import Event, StepProgress, StepWaiting
from pdctl.engine.example import LIMITS
from pdctl.observe.endpoints import Endpoint
from pdctl.observe.proof import VerifyReport, format_bytes, plan_sizes
from pdctl.observe.turns import TurnLimits
from pdctl.observe.verify import VerifyOptions, random_words, verify
from tests.observe.fakes import FakeEngine, FakePair, fake_pair

QUICK = VerifyOptions(history_tokens=200, ready_s=0.0, metrics_s=0.0, poll_s=0.001, seed=7)


async def run(pair: FakePair, options: VerifyOptions = QUICK) -> VerifyReport:
    return await verify(pair.endpoints, options)


async def failing(options: VerifyOptions = QUICK, **faults: Any) -> VerifyReport:
    async with fake_pair(**faults) as pair:
        report = await run(pair, options)
    assert not report.ok
    return report


async def test_a_healthy_pair_is_proven_in_words_and_in_json() -> None:
    async with fake_pair() as pair:
        report = await run(pair)
        p_url, d_url = pair.router.urls
    # threshold 64, block 16: turn 1 generates 72 tokens after 200, of which the last has no KV.
    assert report.proved == (
        "turn 2 reused 271 of 336 prompt tokens, as prefill itself counted "
        "(`remote_prefill_cached_tokens`)",
        "`prefill-0` pulled the KV of 271 tokens (271.0 kB) from decode while that turn ran "
        "(`vllm:nixl_bytes_transferred`)",
        "the 32 tokens of the answer are those of a cold run on decode alone",
        "turn 1 generated 72 tokens, which only decode had (threshold 64, block 16): that holds "
        "with prefill's own prefix cache on or off; here it is on",
    )
    told = report.as_dict()
    turns: Any = told.pop("turns")
    assert all(turn.pop("ttft_ms") > 0 for turn in turns)
    assert turns == [
        {"turn": 1, "prompt_tokens": 200, "reused_tokens": 0, "outcome": "MISS", "reason": ""},
        {"turn": 2, "prompt_tokens": 336, "reused_tokens": 271, "outcome": "HIT", "reason": ""},
    ]
    cold: Any = told.pop("cold_ttft_ms")
    assert cold > 0
    chat: Any = told.pop("chat")
    assert chat["turn"] == 2
    assert chat["reused_tokens"] == 0
    del told["proved"]
    assert told == {
        "ok": True,
        "output_equal": True,
        "bytes_pulled": 271_000,
        "pulled_tokens": 271,
        "output_note": "",
        "chat_note": "",
        "prefill": p_url,
        "decode": d_url,
        "reason": "",
        "side": None,
        "hints": [],
        "router_limits": [],
    }


async def test_with_several_engines_each_has_to_take_part() -> None:
    async with fake_pair() as pair:
        first, decode = pair.endpoints.engines
        # The same server by another name, of which the router knows nothing.
        other = replace(decode, name="decode-1", url=decode.url.replace("127.0.0.1", "localhost"))
        report = await run_with(pair, (first, decode, other))
        assert not report.ok
        assert report.reason == (
            "the pair of these turns is proven, but not every engine takes part: "
            "decode-1: the router has no pair of it"
        )
        report = await run_with(pair, (first, decode, replace(decode, name="decode-1")))
        assert report.ok
        assert report.proved[-1] == "each of the 3 engines has a pair that the router has proven"


async def run_with(pair: FakePair, engines: tuple[Endpoint, ...]) -> VerifyReport:
    return await verify(replace(pair.endpoints, engines=engines), QUICK)


async def test_what_prefill_had_by_itself_is_told_apart() -> None:
    async with fake_pair(own_cache=192) as pair:
        report = await run(pair)
    assert report.ok
    assert (report.turns[1].reused_tokens, report.pulled_tokens) == (271, 79)
    assert report.proved[1] == (
        "`prefill-0` pulled the KV of 79 tokens (79.0 kB) from decode while that turn ran "
        "(`vllm:nixl_bytes_transferred`); the other 192 were in its own prefix cache"
    )


async def test_what_is_sent_is_fresh_exact_and_given_back() -> None:
    async with fake_pair() as pair:
        await run(pair, replace(QUICK, seed=None))
        first, second, cold, *chat = pair.router.turns
        (oracle,) = pair.decode.completions
        assert sorted(pair.router.forgotten) == sorted(
            {first["conversation_id"], chat[0]["conversation_id"]}
        )
        again = len(pair.router.turns)
        await run(pair, replace(QUICK, seed=None))
        assert pair.router.turns[again]["prompt"] != first["prompt"]
    assert (first["max_tokens"], first["ignore_eos"], first["return_token_ids"]) == (72, True, True)
    assert first["conversation_id"] == second["conversation_id"]
    assert second["prompt"][:200] == first["prompt"]
    assert cold["prompt"] == oracle["prompt"] == second["prompt"]
    assert "conversation_id" not in cold
    assert cold["cache_salt"] != oracle["cache_salt"]
    assert len(chat) == 2


async def test_every_server_is_shown_its_own_key_and_no_other() -> None:
    async with fake_pair() as pair:
        report = await verify(replace(pair.endpoints, engine_key="e", router_key="r"), QUICK)
    assert report.ok
    assert pair.router.keys == {"Bearer r"}
    assert pair.prefill.keys == pair.decode.keys == {"Bearer e"}


async def test_prefix_caching_off_and_several_steps_of_lag_are_fine() -> None:
    prefill = FakeEngine("prefill", prefix_caching=False)
    async with fake_pair(prefill=prefill, bytes_move=False) as pair:

        async def later(_: float) -> None:
            prefill.pulled = 5_000_000

        options = replace(QUICK, metrics_s=5.0)
        report = await verify(pair.endpoints, options, sleep=later)
    assert report.ok
    assert report.bytes_pulled == 5_000_000
    assert report.proved[-1].endswith("here it is off")


async def test_bfloat16_is_not_compared_and_says_why() -> None:
    async with fake_pair(dtype="bfloat16", wrong_when_reusing=True) as pair:
        report = await run(pair)
        assert pair.decode.completions == []
    assert report.ok
    assert report.output_equal is None
    assert report.output_note.startswith("dtype is bfloat16: rounding differs")


async def test_another_router_is_proven_by_the_engines_own_counters() -> None:
    async with fake_pair(ours=False) as pair:
        report = await run(pair)
    assert report.ok
    assert report.turns[1].reused_tokens == 271
    assert report.turns[1].outcome is None
    assert "`vllm:prompt_tokens_by_source`" in report.proved[0]


async def test_a_proof_of_the_example_proxy_says_what_that_cannot_do() -> None:
    async with fake_pair(ours=False, example=True) as pair:
        report = await run(pair)
    assert report.ok
    assert report.as_dict()["router_limits"] == list(LIMITS)


async def test_what_a_router_only_believes_is_checked_with_the_engine() -> None:
    async with fake_pair(reason="not_counted_by_engine") as pair:
        assert "`vllm:prompt_tokens_by_source`" in (await run(pair)).proved[0]
    async with fake_pair(reason="not_counted_by_engine", external_moves=False) as pair:
        report = await run(pair)
    assert not report.ok
    assert report.turns[1].reused_tokens == 0


async def test_decode_flag_off_is_named() -> None:
    report = await failing(
        decode=FakeEngine("decode", bidirectional=False),
        reason="pair_not_proven",
        canary="no handle",
    )
    assert report.side == "decode"
    assert re.sub(r"http://\S+", "URL", report.reason) == (
        "turn 2 reused nothing: decode returns no handle, so it runs with "
        "`bidirectional_kv_xfer` off; the router says `pair_not_proven`; its probe of URL → URL "
        "found: no handle"
    )
    assert report.hints[0].startswith('start decode with `"bidirectional_kv_xfer": true`')
    assert report.bytes_pulled == 0
    assert report.proved == ()
    # Without reuse both runs are cold, and still equal.
    assert report.output_equal is True


@pytest.mark.timeout(20)
async def test_prefill_flag_off_is_named_without_ever_sending_it_tokens_to_pull(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pdctl.observe.sides._FALL_S", 0.05)
    prefill = FakeEngine("prefill", bidirectional=False)
    async with fake_pair(prefill=prefill, canary="prefill never answered") as pair:
        report = await run(pair)
    assert not report.ok
    assert report.side == "prefill"
    assert report.reason.startswith(
        "turn 2 reused nothing: decode returns handles but prefill does nothing with them, so "
        "prefill runs with `bidirectional_kv_xfer` off; its probe of http://"
    )
    assert report.reason.endswith("found: prefill never answered")
    _, released, given_back, step = prefill.completions
    assert released["kv_transfer_params"]["remote_num_tokens"] == 0
    assert given_back["kv_transfer_params"]["do_remote_prefill"] is True
    assert given_back["use_beam_search"] is True
    assert "kv_transfer_params" not in step
    assert pair.decode.usage == 0.0


@pytest.mark.parametrize("canary", ["", "blocks do not arrive"])
async def test_streams_without_handles_are_named(canary: str) -> None:
    """Whether the router has proven the pair, whose probe does not stream, or has not."""
    decode = FakeEngine("decode", streams_handles=False)
    async with fake_pair(decode=decode, reason="first_turn", loses_handles=True) as pair:
        pair.router.canary = canary
        report = await run(pair)
    assert not report.ok
    assert report.side == "decode"
    assert report.reason.startswith(
        "turn 2 reused nothing: decode puts no handle into streamed answers, as vLLM does from "
        "0.33 on, or with pdctl's plugin; turns that do not stream are reused; the router says "
        "`first_turn`"
    )
    assert "`engine.plugin`" in report.hints[0]


async def test_streams_with_handles_are_not_blamed() -> None:
    async with fake_pair(reason="first_turn", loses_handles=True) as pair:
        report = await run(pair)
        assert report.reason == "turn 2 reused nothing; the router says `first_turn`"
        assert pair.decode.usage == 0.0


async def test_a_busy_decode_leaves_prefill_as_the_side_by_elimination(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pdctl.observe.sides._FALL_S", 0.05)
    report = await failing(
        prefill=FakeEngine("prefill", bidirectional=False),
        decode=FakeEngine("decode", others=3),
        canary="prefill never answered",
    )
    assert report.side == "prefill"
    assert "higher `kv_recompute_threshold` than configured" in report.reason


async def test_a_pair_that_the_router_has_proven_has_no_side_at_fault() -> None:
    async with fake_pair(loses_handles=True, reason="expired") as pair:
        report = await run(pair)
        # Nor is anything asked of the engines: both are known to take part.
        assert [body.get("kv_transfer_params") for body in pair.decode.completions] == [None]
    assert not report.ok
    assert report.side is None
    assert report.reason == "turn 2 reused nothing; the router says `expired`"


async def test_both_flags_on_leaves_the_word_to_the_router() -> None:
    report = await failing(canary="the block size of decode is not known")
    assert report.side is None
    assert report.reason.startswith("turn 2 reused nothing; its probe of ")
    assert report.reason.endswith("the block size of decode is not known")


async def test_the_configuration_itself_may_say_off() -> None:
    report = await failing(
        bidirectional=False,
        prefill=FakeEngine("prefill", bidirectional=False),
        decode=FakeEngine("decode", bidirectional=False),
    )
    assert report.side == "config"
    assert "`kv.bidirectional: false`" in report.reason


async def test_wrong_output_with_reuse_is_found() -> None:
    report = await failing(wrong_when_reusing=True)
    assert report.output_equal is False
    assert report.reason == "the answer with reuse differs from the cold one, from token 4 on"


async def test_wrong_output_without_reuse_is_not_blamed_on_reuse() -> None:
    report = await failing(wrong_always=True)
    assert report.output_equal is False
    assert report.reason.startswith("answers differ from decode's own even without reuse")


async def test_bytes_that_do_not_move_are_no_proof() -> None:
    report = await failing(bytes_move=False)
    assert report.reason == (
        "`prefill-0` counted 271 reused tokens, but its `vllm:nixl_bytes_transferred` did not move"
    )
    assert report.bytes_pulled == 0


async def test_an_engine_without_the_metric_says_so() -> None:
    report = await failing(prefill=FakeEngine("prefill", pulled=None))
    assert report.bytes_pulled is None
    assert "`prefill-0` does not say how many bytes it pulled" in report.reason


async def test_a_router_that_is_not_ready_is_waited_for_and_then_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pdctl.observe.verify._FIRST_WORD_S", 0.0)
    events: list[Event] = []
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    faults: dict[str, Any] = {"ready": False, "canary": "decode did not get prefill's blocks"}
    async with fake_pair(fail=(503, "no pair"), **faults) as pair:
        report = await verify(
            pair.endpoints, replace(QUICK, ready_s=0.5), listen=events.append, sleep=sleep
        )
    assert slept
    waiting = [event for event in events if isinstance(event, StepWaiting)]
    # Told at the first look and then seldom, however often it looks.
    assert [event.waiting_for for event in waiting] == [
        "the router to prove a prefill/decode pair (decode did not get prefill's blocks)"
    ]
    assert report.side == "router"
    assert re.fullmatch(
        r"turn 1 failed \(HTTP 503\): no pair: http://\S+ → http://\S+: "
        r"decode did not get prefill's blocks",
        report.reason,
    )
    assert report.turns == ()


async def test_a_router_that_still_looks_at_its_pair_gets_longer() -> None:
    """On a busy machine the look takes long, and turns before its end would reuse nothing."""
    began = time.monotonic()
    async with fake_pair(canary="not probed yet") as pair:

        async def sleep(seconds: float) -> None:
            await asyncio.sleep(0.02)
            if time.monotonic() - began > 0.5:
                pair.router.canary = ""

        report = await verify(pair.endpoints, replace(QUICK, ready_s=0.4), sleep=sleep)
    assert report.ok, report.reason


async def test_a_dead_engine_is_not_waited_for_as_long_as_a_look() -> None:
    began = time.monotonic()
    async with fake_pair(canary="not probed yet", decode=FakeEngine("decode", alive=False)) as pair:
        with pytest.raises(UnreachableError, match="`decode-0` does not answer"):
            await verify(pair.endpoints, replace(QUICK, ready_s=2.0))
    assert time.monotonic() - began < 7


IGNORES = "prefill does nothing with a handle: bidirectional_kv_xfer is not true there"


async def test_a_restart_that_the_router_sees_only_between_the_turns_is_waited_for() -> None:
    async with fake_pair() as pair:

        def overtake(event: Event) -> None:
            if isinstance(event, StepProgress) and event.text.startswith("turn 2:"):
                first = len(pair.router.turns) == 1
                pair.router.canary = "not probed yet" if first else ""
                pair.router.reason = "pair_not_proven" if first else "continued"

        async def sleep(seconds: float) -> None:
            pair.router.canary = ""

        report = await verify(pair.endpoints, QUICK, listen=overtake, sleep=sleep)
    assert report.ok
    assert len(pair.router.turns) == 2 * 5  # two turns, the cold run and a chat of two, twice


@pytest.mark.parametrize("recovers", [True, False])
async def test_a_router_that_wrongly_holds_a_flag_for_off_is_given_its_second_look(
    recovers: bool,
) -> None:
    """Seen once on a busy machine, with real engines that both had the flag on."""
    began = time.monotonic()
    async with fake_pair(canary=IGNORES) as pair:

        async def sleep(seconds: float) -> None:
            await asyncio.sleep(0.02)
            if recovers and len(pair.router.turns) >= 2 and time.monotonic() - began > 0.3:
                pair.router.canary = ""

        report = await verify(pair.endpoints, replace(QUICK, ready_s=0.2), sleep=sleep)
    assert report.ok is recovers
    if not recovers:
        assert report.reason.startswith("turn 2 reused nothing; ")
        assert IGNORES in report.reason


async def test_a_flag_that_is_off_indeed_is_told_without_another_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pdctl.observe.sides._FALL_S", 0.05)
    prefill = FakeEngine("prefill", bidirectional=False)
    events: list[Event] = []
    async with fake_pair(prefill=prefill, canary=IGNORES) as pair:
        report = await verify(pair.endpoints, QUICK, listen=events.append)
    assert report.side == "prefill"
    assert not any("second look" in e.text for e in events if isinstance(e, StepProgress))


@pytest.mark.parametrize(("turn", "name"), [(1, "turn 1"), (2, "turn 2"), (3, "the cold run")])
async def test_a_turn_that_fails_is_named(turn: int, name: str) -> None:
    report = await failing(fail=(500, "boom"), fail_from=turn)
    assert report.reason == f"{name} failed (HTTP 500): boom"


async def test_a_turn_that_hangs_ends_at_its_limit() -> None:
    limits = TurnLimits(first_byte=0.05)
    report = await failing(replace(QUICK, limits=limits), hang_from=2)
    assert report.reason == "turn 2 hung: no answer within the limit `first_byte` of 0.05 s"


async def test_a_chat_that_fails_is_told_and_not_judged() -> None:
    async with fake_pair(fail=(400, "no chat template"), fail_from=4) as pair:
        report = await run(pair)
    assert report.ok
    assert report.chat is None
    assert report.chat_note == "no chat: turn 1 failed (HTTP 400): no chat template"


async def test_a_key_that_is_refused_is_no_permission() -> None:
    async with fake_pair(fail=(401, "wrong key")) as pair:
        with pytest.raises(PermissionDeniedError, match="turn 1 was refused"):
            await run(pair)


async def test_a_dead_engine_is_named_before_any_turn() -> None:
    async with fake_pair(decode=FakeEngine("decode", alive=False)) as pair:
        with pytest.raises(UnreachableError, match="`decode-0` does not answer"):
            await run(pair)
        assert pair.router.turns == []


async def test_an_engine_that_dies_meanwhile_is_named() -> None:
    async with fake_pair(fail=(502, "prefill is gone")) as pair:

        def kill(event: Event) -> None:
            if isinstance(event, StepProgress) and event.text.startswith("turn 1"):
                pair.prefill.alive = False

        with pytest.raises(UnreachableError, match="`prefill-0` does not answer"):
            await verify(pair.endpoints, QUICK, listen=kill)


async def test_a_router_that_is_down_is_named() -> None:
    async with fake_pair() as pair:
        endpoints = pair.endpoints
        router = endpoints.router
        assert router is not None
        gone = replace(endpoints, router=replace(router, url="http://127.0.0.1:9"))
        with pytest.raises(UnreachableError, match="the router does not answer"):
            await verify(gone, QUICK)
        with pytest.raises(UnreachableError, match="has no router"):
            await verify(replace(endpoints, router=None), QUICK)


async def test_a_threshold_that_no_prompt_can_exceed_is_said_at_once() -> None:
    decode = FakeEngine("decode", max_model_len=512)
    async with fake_pair(threshold=600, decode=decode) as pair:
        with pytest.raises(BadAnswerError) as caught:
            await run(pair)
        assert pair.router.turns == []
    assert caught.value.message == (
        "reuse cannot be proven: the recompute threshold is 600 tokens, a block 16, but prompt "
        "and answer together may only have 512"
    )
    assert caught.value.expected == "`model.max_model_len` of at least 744"


def test_sizes_prove_reuse_with_prefix_caching_on_or_off() -> None:
    for threshold, block, room in [(64, 16, 8192), (64, 128, 8192), (500, 16, 2048), (0, 1, None)]:
        sizes = plan_sizes(threshold=threshold, block_size=block, max_model_len=room, history=2048)
        # Prefill's own cache can hold turn 1's whole prompt; what is left must still be pulled.
        assert sizes.answer - 1 >= threshold
        assert sizes.answer >= 2 * block
        if room is not None:
            assert sizes.second_prompt + sizes.final <= room


def test_random_words_differ_and_are_words() -> None:
    text = random_words(random.Random(1), 50)
    assert len(text.split()) == 50
    assert re.fullmatch(r"[a-z ]+", text)
    assert text != random_words(random.Random(2), 50)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (50_000_000, "50.0 MB")]
)
def test_bytes_read_well(count: int, text: str) -> None:
    assert format_bytes(count) == text
