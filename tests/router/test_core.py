"""Conversations with the router's core; each is one rule of docs/router.md or one trap of FACTS."""

from dataclasses import replace
from typing import Any

import pytest

from pdctl.router.actions import (
    Alarm,
    Failure,
    Find,
    Finish,
    Keep,
    Know,
    MakeRoom,
    OpenDecode,
    Opened,
    Prefill,
    Relay,
    Relayed,
    Release,
    Render,
    Reply,
    Settle,
    Take,
)
from pdctl.router.core import Policy, TurnRequest
from pdctl.router.eligible import CHAT, COMPLETIONS, shape
from pdctl.router.handle import Conversation, Scope
from pdctl.router.ids import Ids
from pdctl.router.store import Found
from tests.router.playbook import (
    BLOCK,
    NAMED,
    SCOPE,
    D,
    P,
    Playbook,
    a_fleet,
    a_handle,
    a_harvest,
    a_policy,
    a_request,
    d_params,
    ids,
    p_answer,
)

PROMPT = [1, 2, 3, 4, 5, 6]
ANSWER = [7, 8, 9, 10]
NEXT = [*PROMPT, *ANSWER, 11, 12]
GONE = Failure(0, "unreachable", url=D)


def test_a_first_turn_is_cold_and_its_handle_is_kept() -> None:
    book = Playbook()
    handle = book.first_turn(PROMPT, ANSWER)
    book.expect(Finish)
    assert handle.held.certain == len(PROMPT) + len(ANSWER) - 1
    assert handle.held.tokens == ids(*PROMPT, *ANSWER)
    assert handle.deadline == 100.0
    report = book.ended()
    assert (report.outcome, report.reason, report.retained) == ("MISS", "first_turn", "kept")


def test_a_handle_is_for_the_same_tenant_model_and_salt_only() -> None:
    """A LoRA adapter is a model's name, too."""
    request = replace(a_request({"model": "lora", "cache_salt": "s"}), tenant="acme")
    book = Playbook(request)
    assert book.expect(Know, False).scope == Scope("acme", "lora", "s")
    book.expect(Prefill, p_answer(PROMPT))
    book.expect(OpenDecode, Opened(200))
    book.expect(Relay, Relayed(a_harvest(ANSWER, d_params(8))))
    assert book.expect(Find, []).scope == Scope("acme", "lora", "s")
    assert book.expect(Keep, []).handle.scope == Scope("acme", "lora", "s")


def test_the_second_turn_attaches_exactly_what_is_equal_and_certain() -> None:
    book = Playbook()
    old = a_handle(PROMPT, ANSWER)
    assert book.expect(Know, True).conversation == NAMED
    assert book.expect(Render, Ids(NEXT)).url == P
    book.expect(Find, [Found.of(old, ids(*NEXT))])
    assert book.expect(Take, old).handle_id == old.id
    leg = book.expect(Prefill, p_answer(NEXT, reused=9, cached=9))
    kv = leg.body["kv_transfer_params"]
    assert kv["remote_num_tokens"] == 9
    assert kv["remote_block_ids"] == [[0, 1, 2]]
    assert kv["do_remote_decode"] is True
    assert kv["do_remote_prefill"] is False
    assert kv["something_new"] == "kept"
    assert leg.carries_handle
    assert book.expect(Settle).outcome == "consumed"
    decode = book.expect(OpenDecode, Opened(200))
    assert decode.body["kv_transfer_params"]["from"] == "prefill"
    assert decode.body["kv_transfer_params"]["prompt_token_ids"] == Ids(NEXT)
    relay = book.expect(Relay, Relayed(a_harvest([13, 14], d_params(13, "d2"))))
    assert relay.report.outcome == "HIT"
    assert relay.cached_tokens == 9
    book.expect(Find, [])
    keep = book.expect(Keep, [])
    assert (keep.handle.request_id, keep.fresh, keep.calls_tool) == ("d2", True, False)
    book.expect(Finish)
    assert book.ended().reused_tokens == 9


def test_an_edited_history_reuses_the_equal_part_only() -> None:
    """T3: the engine would pull the other tokens' KV without a word."""
    book = Playbook()
    old = a_handle(PROMPT, ANSWER)
    edited = [1, 2, 3, 99, 5, 6, 7]
    book.finds(edited, old)
    book.expect(Take, old)
    kv = book.expect(Prefill, p_answer(edited, reused=3)).body["kv_transfer_params"]
    assert kv["remote_num_tokens"] == 3
    assert kv["remote_block_ids"] == [[0]]
    book.expect(Settle)
    book.expect(OpenDecode, Opened(200))
    assert book.expect(Relay, Relayed(a_harvest([1], None))).report.outcome == "PARTIAL"


def test_another_prompt_under_the_same_conversation_attaches_nothing() -> None:
    book = Playbook()
    book.finds([50, 51, 52], a_handle(PROMPT, ANSWER))
    leg = book.expect(Prefill, p_answer([50, 51, 52]))
    assert leg.body["kv_transfer_params"]["remote_block_ids"] is None
    assert book.expect(OpenDecode, Opened(200)).url == D
    assert book.expect(Relay, Relayed(a_harvest([1], None))).report.reason == "diverged"


def test_a_repeated_prompt_leaves_one_token_to_compute() -> None:
    """A regenerate: everything is held, and a prefill of nothing is no prefill."""
    book = Playbook()
    book.finds(PROMPT, a_handle(PROMPT, ANSWER))
    book.expect(Take, a_handle(PROMPT, ANSWER))
    kv = book.expect(Prefill, p_answer(PROMPT, reused=5)).body["kv_transfer_params"]
    assert kv["remote_num_tokens"] == len(PROMPT) - 1


def test_a_handle_past_its_deadline_is_not_offered() -> None:
    """T1: prefill declines it, and the request fails or hangs."""
    book = Playbook(clock=lambda: 50.0)
    book.finds(NEXT, a_handle(PROMPT, ANSWER, deadline=50.0))
    leg = book.expect(Prefill, p_answer(NEXT))
    assert not leg.carries_handle
    book.expect(OpenDecode, Opened(200))
    assert book.expect(Relay, Relayed(a_harvest([1], None))).report.reason == "expired"


def test_a_handle_that_another_turn_took_is_not_used() -> None:
    """T5: a second read copies whatever is there."""
    book = Playbook()
    book.finds(NEXT, a_handle(PROMPT, ANSWER))
    book.expect(Take, None)
    assert not book.expect(Prefill, p_answer(NEXT)).carries_handle


def test_a_pair_that_is_not_proven_gets_no_handle() -> None:
    """T7: with the flag off on prefill, a request with a handle never answers."""
    fleet = a_fleet()
    fleet.pairs[(P, D)].verdict = "no_reuse"
    book = Playbook(fleet=fleet)
    book.finds(NEXT, a_handle(PROMPT, ANSWER))
    assert not book.expect(Prefill, p_answer(NEXT)).carries_handle


@pytest.mark.parametrize(
    "failure",
    [
        Failure(500, "status", b"declined", url=P),
        Failure(0, "timeout", url=P),
        Failure(0, "unreachable", url=P),
    ],
)
def test_a_failing_reuse_is_done_again_cold_and_pauses_the_pair(failure: Failure) -> None:
    """T1, T2, T7 behind the router's back: the client sees an answer."""
    book = Playbook()
    old = a_handle(PROMPT, ANSWER)
    book.finds(NEXT, old)
    book.expect(Take, old)
    book.expect(Prefill, failure)
    assert book.expect(Settle).outcome == "unknown"
    leg = book.expect(Prefill, p_answer(NEXT))
    assert not leg.carries_handle
    assert leg.body["kv_transfer_params"]["remote_block_ids"] is None
    book.expect(OpenDecode, Opened(200))
    report = book.expect(Relay, Relayed(a_harvest([1], None))).report
    assert report.outcome == "MISS"
    assert report.reused_tokens == 0
    assert report.retries == [f"reuse_{failure.kind}"]
    assert book.fleet.reuse_refused(P, D, "e1", 1.0) == "pair_paused"
    assert book.fleet.reuse_refused(P, D, "e1", 6.0) is None
    assert book.fleet.reuse_refused(P, D, "another start", 1.0) is None


def test_a_refused_request_does_not_cost_the_handle() -> None:
    book = Playbook()
    old = a_handle(PROMPT, ANSWER)
    book.finds(NEXT, old)
    book.expect(Take, old)
    book.expect(Prefill, Failure(400, "status", b"too long", url=P))
    assert book.expect(Keep).handle == old
    book.expect(Prefill, Failure(400, "status", b"too long", url=P))
    leg = book.expect(OpenDecode, Failure(400, "status", b"too long", url=D))
    assert "kv_transfer_params" not in leg.body
    assert book.expect(Reply).failure.body == b"too long"
    assert book.ended().status == 400


def test_a_prefill_that_was_not_reached_does_not_cost_the_handle() -> None:
    book = Playbook()
    old = a_handle(PROMPT, ANSWER)
    book.finds(NEXT, old)
    book.expect(Take, old)
    book.expect(Prefill, Failure(0, "unreachable", url=P, unsent=True))
    keep = book.expect(Keep)
    assert (keep.handle, keep.fresh) == (old, False)
    assert not book.expect(Prefill, p_answer(NEXT)).carries_handle
    book.expect(OpenDecode, Opened(200))
    report = book.expect(Relay, Relayed(a_harvest([1], None))).report
    assert report.retries == ["reuse_unreachable"]
    assert book.fleet.reuse_refused(P, D, "e1", 0.0) is None


def test_ids_that_prefill_did_not_use_are_an_alarm_and_the_turn_is_redone_cold() -> None:
    """`/tokenize` lost something that the template saw (FACTS 10)."""
    book = Playbook()
    old = a_handle(PROMPT, ANSWER)
    book.finds(NEXT, old)
    book.expect(Take, old)
    book.expect(Prefill, p_answer([0, *NEXT], reused=9))
    book.expect(Settle)
    assert book.expect(Alarm).kind == "prompt_mismatch"
    cold = book.expect(Prefill, p_answer([0, *NEXT]))
    assert len(cold.body["cache_salt"]) >= 16
    decode = book.expect(OpenDecode, Opened(200))
    assert "cache_salt" not in decode.body
    report = book.expect(Relay, Relayed(a_harvest([1], None))).report
    assert report.reused_tokens == 0
    again = Playbook(fleet=book.fleet, policy=book.policy)
    assert not again.expect(Prefill, p_answer(NEXT)).carries_handle


def test_what_was_pulled_for_other_ids_is_never_found_in_prefills_cache() -> None:
    """It stands there under the very prompt that the conversation goes on with."""
    book = Playbook()
    book.finds(NEXT, a_handle(PROMPT, ANSWER))
    book.expect(Take, a_handle(PROMPT, ANSWER))
    book.expect(Prefill, p_answer([0, *NEXT], reused=9))
    book.expect(Settle)
    book.expect(Alarm)

    def asked(more: dict[str, Any]) -> str:
        """By a turn of a shape that is trusted, and reuses."""
        scope = replace(SCOPE, salt=str(more.get("cache_salt", "")))
        old = a_handle(PROMPT, ANSWER, scope=scope)
        request = a_request(more | {"tools": []})
        again = Playbook(request, fleet=book.fleet, policy=book.policy)
        again.finds(NEXT, old)
        again.expect(Take, old)
        leg = again.expect(Prefill, p_answer(NEXT, reused=9))
        assert leg.carries_handle
        again.expect(Settle)
        decode = again.expect(OpenDecode, Opened(200))
        assert decode.body.get("cache_salt") == more.get("cache_salt")
        return str(leg.body.get("cache_salt", ""))

    assert len({asked({}), asked({}), asked({"cache_salt": "a"}), asked({"cache_salt": "b"})}) == 3
    assert "" not in {asked({}), asked({"cache_salt": "a"})}
    book.fleet.engine_up(P, start="2", block_size=BLOCK)
    for pair in book.fleet.pairs.values():
        pair.moves_kv, pair.verdict = True, "ok"
    assert (asked({}), asked({"cache_salt": "a"})) == ("", "a")


def test_what_the_engine_counts_is_what_is_reported() -> None:
    book = Playbook()
    old = a_handle(PROMPT, ANSWER)
    book.finds(NEXT, old)
    book.expect(Take, old)
    book.expect(Prefill, p_answer(NEXT, reused=8))
    book.expect(Settle)
    book.expect(OpenDecode, Opened(200))
    report = book.expect(Relay, Relayed(a_harvest([1], None))).report
    assert (report.outcome, report.reason) == ("MISS", "prefill_had_it")


def test_blocks_that_did_not_reach_decode_are_prefilled_again() -> None:
    book = Playbook()
    book.expect(Know, False)
    book.expect(Prefill, p_answer(PROMPT))
    book.expect(OpenDecode, Failure(500, "stream_error", b"{}", url=D))
    book.expect(Prefill, p_answer(PROMPT))
    book.expect(OpenDecode, Opened(200))
    assert book.expect(Relay, Relayed(a_harvest([1], None))).report.retries == ["decode_failed"]


def test_blocks_that_never_arrive_leave_it_to_decode_alone_until_a_probe_sees_some() -> None:
    fleet = a_fleet()
    book = Playbook(fleet=fleet)
    book.expect(Know, False)
    for _ in range(2):
        book.expect(Prefill, p_answer(PROMPT, cached=4))
        book.expect(OpenDecode, Failure(500, "stream_error", b"{}", url=D))
    alone = book.expect(OpenDecode, Opened(200))
    assert "kv_transfer_params" not in alone.body
    relay = book.expect(Relay, Relayed(a_harvest([1], None)))
    assert (relay.report.reason, relay.report.prefill) == ("blocks_lost", "")
    assert relay.cached_tokens is None
    assert relay.report.retries == ["decode_failed", "blocks_lost"]

    book = Playbook(fleet=fleet)
    book.expect(Know, False)
    book.expect(OpenDecode, Opened(200))
    assert book.expect(Relay, Relayed(a_harvest([1], None))).report.reason == "blocks_lost"

    pair = fleet.pairs[(P, D)]
    assert (pair.verdict, pair.again_at) == ("no_reuse", None)
    pair.moves_kv, pair.verdict = True, "ok"  # what the watcher does after a probe
    book = Playbook(fleet=fleet)
    book.expect(Know, False)
    book.expect(Prefill, p_answer(PROMPT))


def test_a_prefill_that_was_silent_is_asked_no_more_until_a_probe_went_through_it() -> None:
    fleet = a_fleet()
    book = Playbook(fleet=fleet)
    book.expect(Know, False)
    book.expect(Prefill, Failure(0, "timeout", url=P))
    book.expect(OpenDecode, Opened(200))

    book = Playbook(fleet=fleet)
    book.expect(Know, False)
    book.expect(OpenDecode, Opened(200))
    assert book.expect(Relay, Relayed(a_harvest([1], None))).report.reason == "blocks_lost"
    assert fleet.pairs[(P, D)].why == "prefill let a request wait beyond its limit"


def test_a_decode_that_was_silent_gets_nothing_while_there_is_another() -> None:
    other = "http://d:2"
    fleet = a_fleet(decode=(D, other))
    book = Playbook(fleet=fleet)
    book.expect(Know, False)
    book.expect(Prefill, p_answer(PROMPT))
    assert isinstance(book.due, OpenDecode)
    silent = book.due.url
    book.expect(OpenDecode, Failure(0, "timeout", url=silent))
    book.expect(Reply)
    assert not fleet.pairs[(P, silent)].moves_kv
    for _ in range(5):
        assert fleet.choose_decode(prefill=P, hint=silent, held=1000) != silent


def test_the_only_decode_stays_in_use_however_silent() -> None:
    fleet = a_fleet()
    book = Playbook(fleet=fleet)
    book.expect(Know, False)
    book.expect(Prefill, p_answer(PROMPT))
    book.expect(OpenDecode, Failure(0, "timeout", url=D))
    book.expect(Reply)
    assert fleet.pairs[(P, D)].verdict == "ok"


def test_what_no_probe_changes_goes_on_through_prefill() -> None:
    fleet = a_fleet()
    fleet.quarantine(P, D, "answers were wrong")
    fleet.blocks_lost(P, D)
    fleet.silent(P)
    assert fleet.blocks_arrive(P)
    assert fleet.pairs[(P, D)].why == "answers were wrong"


def test_a_dead_decode_hands_over_to_another() -> None:
    other = "http://d:2"
    book = Playbook(fleet=a_fleet(decode=(D, other)))
    book.expect(Know, False)
    book.expect(Prefill, p_answer(PROMPT))
    assert isinstance(book.due, OpenDecode)
    first = book.due.url
    book.expect(OpenDecode, Failure(0, "unreachable", url=first))
    book.expect(Prefill, p_answer(PROMPT))
    assert book.expect(OpenDecode, Opened(200)).url != first


def test_the_only_decode_being_dead_is_said_at_once() -> None:
    book = Playbook()
    book.expect(Know, False)
    book.expect(Prefill, p_answer(PROMPT))
    book.expect(OpenDecode, GONE)
    assert book.expect(Reply).failure == GONE
    assert book.ended().status == 502


def test_without_decode_prefill_computes_nothing() -> None:
    fleet = a_fleet()
    fleet.engine_down(D, "does not answer")
    book = Playbook(fleet=fleet)
    book.expect(Know, False)
    book.expect(Reply)
    assert book.ended().status == 503


def test_a_silent_decode_is_not_tried_twice() -> None:
    book = Playbook()
    book.expect(Know, False)
    book.expect(Prefill, p_answer(PROMPT))
    book.expect(OpenDecode, Failure(0, "timeout", url=D))
    book.expect(Reply)
    assert book.ended().status == 504


def test_without_prefill_decode_does_it_all() -> None:
    fleet = a_fleet()
    fleet.engine_down(P, "does not answer")
    book = Playbook(fleet=fleet)
    leg = book.expect(OpenDecode, Opened(200))
    assert "kv_transfer_params" not in leg.body
    harvest = a_harvest([1], None)
    harvest.usage = {"prompt_tokens": 7, "completion_tokens": 1}
    assert book.expect(Relay, Relayed(harvest)).report.reason == "prefill_down"
    book.expect(Finish)
    assert book.ended().prompt_tokens == 7


def test_a_failing_prefill_hands_over_to_another() -> None:
    book = Playbook(fleet=a_fleet(prefill=(P, "http://p:2")))
    book.expect(Know, False)
    first = book.expect(Prefill, Failure(500, "status", url=P)).url
    assert book.expect(Prefill, p_answer(PROMPT)).url != first


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"n": 2}, "excluded_n"),
        ({"echo": True}, "excluded_echo"),
        ({"prompt_logprobs": 1}, "excluded_prompt_logprobs"),
        ({"reasoning_effort": "high"}, "excluded_unknown_field"),
        ({"documents": [{"text": "x"}]}, "excluded_unknown_field"),
        ({"tool_choice": "required"}, "excluded_tool_choice"),
        ({"response_format": {"type": "json_object"}}, "excluded_response_format"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "excluded_non_text",
        ),
    ],
)
def test_requests_that_tokenize_does_not_see_whole_run_cold(
    change: dict[str, object], reason: str
) -> None:
    book = Playbook(a_request(change))
    leg = book.expect(Prefill, p_answer(PROMPT))
    assert not leg.carries_handle
    decode = book.expect(OpenDecode, Opened(200))
    assert "prompt_token_ids" not in decode.body["kv_transfer_params"]
    assert "return_token_ids" not in decode.body
    relay = book.expect(Relay, Relayed(a_harvest([], d_params(9))))
    assert relay.report.reason == reason
    book.expect(Release)


def test_a_continuation_frees_what_it_makes_useless_and_a_branch_keeps_its_own() -> None:
    book = Playbook()
    book.expect(Know, False)
    book.expect(Prefill, p_answer(NEXT))
    book.expect(OpenDecode, Opened(200))
    book.expect(Relay, Relayed(a_harvest([13, 14], d_params(13, "d3"))))
    ours, branch = a_handle(PROMPT, ANSWER), a_handle([1, 2, 90, 91], [92, 93], request="side")
    book.expect(Find, [Found.of(h, ids(*NEXT, 13, 14)) for h in (branch, ours)])
    assert book.expect(Take, ours).handle_id == ours.id
    assert book.expect(Release).reason == "superseded"
    book.expect(Keep, [])


def test_hidden_generated_ids_cap_reuse_at_the_prompt() -> None:
    """Parsers can hide ids; then nobody knows what stands after the prompt."""
    book = Playbook()
    book.expect(Know, False)
    book.expect(Prefill, p_answer(PROMPT))
    book.expect(OpenDecode, Opened(200))
    harvest = a_harvest([7, 8], d_params(9))
    harvest.usage = {"completion_tokens": 4}
    book.expect(Relay, Relayed(harvest))
    book.expect(Find, [])
    held = book.expect(Keep, []).handle.held
    assert (held.tokens, held.certain) == (ids(*PROMPT), len(PROMPT))


def test_a_handle_of_an_engine_that_has_gone_is_neither_kept_nor_given_back() -> None:
    """Its client read slowly. Kept, it would pass for one of a new start, and end the living."""
    book = Playbook()
    book.expect(Know, False)
    book.expect(Prefill, p_answer(PROMPT))
    book.expect(OpenDecode, Opened(200))
    book.fleet.engine_down(D, "was restarted")
    book.fleet.engine_up(D, start="2", block_size=BLOCK)
    book.expect(Relay, Relayed(a_harvest([7, 8], d_params(9))))
    book.expect(Finish)
    assert book.ended().retained == "engine_gone"


def test_a_decode_that_counts_another_prompt_holds_other_tokens_than_is_known() -> None:
    """Before vLLM 0.32 it renders for itself, and a template with a date may say another one."""
    book = Playbook()
    book.expect(Know, False)
    book.expect(Prefill, p_answer(PROMPT))
    book.expect(OpenDecode, Opened(200))
    harvest = a_harvest([7, 8], d_params(9))
    harvest.usage = {"prompt_tokens": len(PROMPT) + 1, "completion_tokens": 2}
    book.expect(Relay, Relayed(harvest))
    assert book.expect(Release).reason == "prompt_unknown"


@pytest.mark.parametrize(
    ("reason", "calls"), [("tool_calls", True), ("function_call", True), ("stop", False)]
)
def test_an_answer_that_calls_a_tool_is_known_as_such(reason: str, calls: bool) -> None:
    book = Playbook()
    book.expect(Know, False)
    book.expect(Prefill, p_answer(PROMPT))
    book.expect(OpenDecode, Opened(200))
    harvest = a_harvest(ANSWER, d_params(9))
    harvest.finish_reason = reason
    book.expect(Relay, Relayed(harvest))
    book.expect(Find, [])
    assert book.expect(Keep, []).calls_tool is calls


def test_a_slow_client_shortens_the_life_of_its_handle() -> None:
    """Decode's clock starts when decode ends, not when a stalled stream is read to its end."""
    book = Playbook(clock=lambda: 1000.0)
    book.expect(Know, False)
    book.expect(Prefill, p_answer(PROMPT))
    book.expect(OpenDecode, Opened(200))
    book.expect(Relay, Relayed(a_harvest(ANSWER, d_params(9)), blocked=30.0))
    book.expect(Find, [])
    assert book.expect(Keep, []).handle.deadline == 1000.0 - 30.0 + 100.0


def test_reuse_off_retains_nothing() -> None:
    book = Playbook(policy=a_policy(share=0.0))
    book.expect(Prefill, p_answer(PROMPT))
    book.expect(OpenDecode, Opened(200))
    assert book.expect(Relay, Relayed(a_harvest(ANSWER, d_params(9)))).report.outcome == "OFF"
    book.expect(Release)


def test_clients_cannot_send_handles() -> None:
    """vllm PR#47843: a client's own handle would read another's KV."""
    body = {"kv_transfer_params": {"remote_host": "10.0.0.9"}, "conversation_id": "c1"}
    book = Playbook(a_request(body))
    book.expect(Know, False)
    leg = book.expect(Prefill, p_answer(PROMPT))
    assert leg.body["kv_transfer_params"]["remote_host"] is None
    assert "conversation_id" not in leg.body
    decode = book.expect(OpenDecode, Opened(200))
    assert "remote_host" not in decode.body["kv_transfer_params"]
    assert "conversation_id" not in decode.body
    book.expect(Relay, Relayed(a_harvest([1], None)))
    book.expect(Finish)
    assert book.ended().dropped == ["kv_transfer_params"]


def test_the_prefill_leg_is_stripped_of_what_would_make_it_misbehave() -> None:
    """vllm PR#21841, vllm PR#16705, vllm PR#46008: each made prefill misbehave."""
    body = {
        "max_tokens": 500, "max_completion_tokens": 500, "min_tokens": 5, "stop": ["x"],
        "stop_token_ids": [3], "logprobs": True, "top_logprobs": 2, "stream": True,
        "stream_options": {"include_usage": True}, "temperature": 0.3,
    }  # fmt: skip
    book = Playbook(a_request(body))
    book.expect(Know, False)
    leg = book.expect(Prefill, p_answer(PROMPT)).body
    assert leg == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 1,
        "max_completion_tokens": 1,
        "stream": False,
        "temperature": 0.3,
        "return_token_ids": True,
        "kv_transfer_params": leg["kv_transfer_params"],
    }
    decode = book.expect(OpenDecode, Opened(200)).body
    assert decode["min_tokens"] == 5
    assert decode["stop"] == ["x"]


def test_reasoning_is_rendered_under_the_name_that_tokenize_knows() -> None:
    said = {"role": "assistant", "content": "x", "reasoning_content": "hm"}
    body = {"messages": [{"role": "user", "content": "hello"}, said]}
    book = Playbook(a_request(body))
    book.expect(Know, True)
    assert book.expect(Render, Ids(NEXT)).body["messages"][1] == {
        "role": "assistant",
        "content": "x",
        "reasoning": "hm",
    }


def test_completions_report_their_ids_on_the_choice() -> None:
    book = Playbook(a_request({"prompt": PROMPT}, endpoint=COMPLETIONS))
    book.expect(Know, False)
    answer = p_answer(PROMPT)
    answer.json["choices"] = [{"prompt_token_ids": answer.json.pop("prompt_token_ids")}]
    assert "max_completion_tokens" not in book.expect(Prefill, answer).body
    decode = book.expect(OpenDecode, Opened(200))
    assert decode.body["prompt"] == Ids(PROMPT)
    assert "prompt_token_ids" not in decode.body["kv_transfer_params"]


def test_a_prompt_of_ids_is_not_rendered() -> None:
    """`/tokenize` takes text only, and there is nothing to find out."""
    book = Playbook(a_request({"prompt": NEXT}, endpoint=COMPLETIONS))
    old = a_handle(PROMPT, ANSWER)
    book.finds(NEXT, old)
    book.expect(Take, old)
    leg = book.expect(Prefill, p_answer(NEXT, reused=9, cached=9))
    assert leg.body["kv_transfer_params"]["remote_num_tokens"] == 9


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"remote_block_ids": [[1, 2, 3], [4]]}, "several_kv_groups"),
        ({"dcp_size": 2}, "context_or_pipeline_parallel"),
        ({"pp_size": 2}, "context_or_pipeline_parallel"),
        ({"transfer_mode": "push"}, "transfer_mode"),
        ({"remote_block_ids": [[1]]}, "block_size_unclear"),
    ],
)
def test_layouts_that_are_not_proven_are_given_back(change: dict[str, object], reason: str) -> None:
    book = Playbook()
    book.expect(Know, False)
    book.expect(Prefill, p_answer(PROMPT))
    book.expect(OpenDecode, Opened(200))
    book.expect(Relay, Relayed(a_harvest(ANSWER, d_params(9) | change)))
    assert book.expect(Release).reason == reason


def test_full_blocks_are_attached_but_for_one_token_so_that_the_count_proves_a_pull() -> None:
    book = Playbook()
    old = a_handle(PROMPT, [7, 8, 9])
    assert old.held.certain == 8
    book.finds(NEXT, old)
    book.expect(Take, old)
    kv = book.expect(Prefill, p_answer(NEXT, reused=7)).body["kv_transfer_params"]
    assert kv["remote_num_tokens"] == 7
    book.expect(Settle)
    book.expect(OpenDecode, Opened(200))
    assert book.expect(Relay, Relayed(a_harvest([1], None))).report.outcome == "HIT"


def test_limits_grow_with_what_has_to_be_computed() -> None:
    policy = a_policy()
    assert policy.prefill_limit(0, reusing=True) == 10.0
    assert policy.prefill_limit(100_000, reusing=True) == 510.0
    assert policy.prefill_limit(2000, reusing=False) == 70.0


# Whose handle it is: tokens decide, names are hints.

LONG = list(range(100, 140))
ANOTHER = Conversation("c2", "begins so")
UNNAMED = Conversation("", "begins so")


def test_a_conversation_without_a_name_is_found_by_its_tokens() -> None:
    book = Playbook(a_request(conversation=UNNAMED))
    old = a_handle(PROMPT, ANSWER, conversation=UNNAMED)
    book.finds(NEXT, old)
    book.expect(Take, old)
    assert book.expect(Prefill, p_answer(NEXT, reused=9)).carries_handle


def test_a_wrong_name_costs_nothing() -> None:
    """The client's session ended and another goes on with its history."""
    book = Playbook(a_request(conversation=ANOTHER))
    old = a_handle(PROMPT, ANSWER)
    book.finds(NEXT, old)
    book.expect(Take, old)
    assert book.expect(Prefill, p_answer(NEXT, reused=9)).carries_handle


def test_a_name_says_more_than_how_a_conversation_begins() -> None:
    """Its system prompt was changed, or its history cut from the front."""
    for share, carries in ((8, False), (12, True)):
        prompt = [*LONG[:share], 1, 2, 3]
        book = Playbook(a_request(conversation=Conversation("c1", "begins otherwise")))
        old = a_handle(LONG, ANSWER)
        book.finds(prompt, old)
        if carries:
            book.expect(Take, old)
        assert book.expect(Prefill, p_answer(prompt)).carries_handle is carries


def test_a_shared_system_prompt_does_not_cost_another_conversation_its_handle() -> None:
    prompt = [*LONG[:30], 1, 2, 3]
    for conversation in (ANOTHER, UNNAMED):
        book = Playbook(a_request(conversation=conversation))
        book.finds(prompt, a_handle(LONG, ANSWER))
        assert not book.expect(Prefill, p_answer(prompt)).carries_handle
        book.expect(OpenDecode, Opened(200))
        report = book.expect(Relay, Relayed(a_harvest([1], None))).report
        assert report.reason == "left_to_another"


def test_a_side_call_with_the_same_name_leaves_the_conversation_its_handle() -> None:
    prompt = [*LONG[:8], 1, 2, 3]
    book = Playbook()
    book.finds(prompt, a_handle(LONG, ANSWER))
    assert not book.expect(Prefill, p_answer(prompt)).carries_handle
    book.expect(OpenDecode, Opened(200))
    book.expect(Relay, Relayed(a_harvest([5, 6], d_params(12, "side"))))
    book.expect(Find, [Found.of(a_handle(LONG, ANSWER), ids(*prompt, 5, 6))])
    assert book.expect(Keep, []).handle.request_id == "side"


def test_when_the_best_handle_is_gone_the_next_one_is_tried() -> None:
    book = Playbook()
    best, next_best = a_handle(PROMPT, ANSWER), a_handle(PROMPT, [7, 8], request="d0")
    book.finds(NEXT, next_best, best)
    assert book.expect(Take, None).handle_id == best.id
    assert book.expect(Take, next_best).handle_id == next_best.id
    leg = book.expect(Prefill, p_answer(NEXT, reused=7))
    assert leg.body["kv_transfer_params"]["remote_num_tokens"] == 7


def test_what_a_store_says_is_checked_against_the_tokens_themselves() -> None:
    """A store may find by hashes; only the tokens that were kept are certain."""
    book = Playbook()
    other = a_handle([*PROMPT[:5], 99], ANSWER)
    book.expect(Know, True)
    book.expect(Render, Ids(NEXT))
    book.expect(Find, [Found.of(other, ids(*NEXT))._replace(equal=9)])
    book.expect(Take, other)
    leg = book.expect(Prefill, p_answer(NEXT, reused=5))
    assert leg.body["kv_transfer_params"]["remote_num_tokens"] == 5


def test_a_handle_whose_tokens_are_others_after_all_is_put_back() -> None:
    book = Playbook()
    other = a_handle([99, *PROMPT[1:]], ANSWER)
    book.expect(Know, True)
    book.expect(Render, Ids(NEXT))
    book.expect(Find, [Found.of(other, ids(*NEXT))._replace(equal=9)])
    book.expect(Take, other)
    keep = book.expect(Keep)
    assert (keep.handle, keep.fresh) == (other, False)
    assert not book.expect(Prefill, p_answer(NEXT)).carries_handle


# Servers, and room on them.


def test_room_is_made_before_prefill_begins() -> None:
    book = Playbook(a_request({"max_tokens": 50}))
    book.finds(NEXT)
    assert book.expect(MakeRoom) == MakeRoom(D, len(NEXT) + 50)


def test_a_conversation_goes_back_to_its_decode_and_rank() -> None:
    other = "http://d:2"
    fleet = a_fleet(decode=(other, D))
    book = Playbook(fleet=fleet)
    old = a_handle(PROMPT, ANSWER, engine="e1_dp3")
    book.finds(NEXT, old)
    book.expect(Take, old)
    book.expect(Prefill, p_answer(NEXT, reused=9))
    book.expect(Settle)
    leg = book.expect(OpenDecode, Opened(200))
    assert (leg.url, leg.rank) == (D, 3)


def test_prefill_is_the_server_that_computed_the_conversation_before() -> None:
    other = "http://p:2"
    for known in (P, other):
        fleet = a_fleet(prefill=(P, other))
        request = a_request()
        fleet.prefixes.note(request.keys, known)
        book = Playbook(request, fleet=fleet)
        book.expect(Know, False)
        leg = book.expect(Prefill, p_answer(PROMPT))
        assert (leg.url, leg.uncached) == (known, 1)


def test_only_a_prefill_that_is_proven_with_its_decode_gets_a_handle() -> None:
    other = "http://p:2"
    fleet = a_fleet(prefill=(P, other))
    fleet.pairs[(P, D)].verdict = "no_reuse"
    fleet.prefill[other].outstanding = 5
    book = Playbook(fleet=fleet)
    old = a_handle(PROMPT, ANSWER)
    book.finds(NEXT, old)
    book.expect(Take, old)
    leg = book.expect(Prefill, p_answer(NEXT, reused=9))
    assert (leg.url, leg.carries_handle) == (other, True)


def test_a_prefill_that_renders_chats_is_shown_the_whole_request() -> None:
    fleet = a_fleet()
    fleet.prefill[P].renders = True
    book = Playbook(a_request({"reasoning_effort": "high", "stream": True}), fleet=fleet)
    book.expect(Know, True)
    asked = book.expect(Render, Ids(NEXT))
    assert asked.path == "/v1/chat/completions/render"
    assert asked.body["reasoning_effort"] == "high"
    assert not asked.body["stream"]


def test_the_turns_of_a_conversation_are_counted() -> None:
    book = Playbook()
    old = a_handle(PROMPT, ANSWER, turns=4)
    book.finds(NEXT, old)
    book.expect(Take, old)
    book.expect(Prefill, p_answer(NEXT, reused=9))
    book.expect(Settle)
    book.expect(OpenDecode, Opened(200))
    book.expect(Relay, Relayed(a_harvest([13, 14], d_params(13, "d2"))))
    book.expect(Find, [])
    handle = book.expect(Keep, []).handle
    assert (handle.turns, handle.prefill) == (5, P)


def _reusing_leg(policy: Policy, *, renders: bool, request: TurnRequest | None = None) -> Prefill:
    fleet = a_fleet()
    fleet.prefill[P].renders = renders
    book = Playbook(request, fleet=fleet, policy=policy)
    book.finds(NEXT, a_handle(PROMPT, ANSWER))
    book.expect(Take, a_handle(PROMPT, ANSWER))
    return book.expect(Prefill, p_answer(NEXT, reused=9))


def test_prefill_is_given_the_ids_that_it_rendered_but_not_always() -> None:
    """Rendering twice is half of a reused turn's work; never to see it twice would be blind."""
    policy = a_policy()
    made = [_reusing_leg(policy, renders=True) for _ in range(33)]
    own = [place for place, leg in enumerate(made, 1) if leg.path == CHAT]
    assert own == [1, 2, 3, 16, 32]
    given = made[3].body
    assert made[3].path == COMPLETIONS
    assert given["prompt"] == Ids(NEXT)
    assert given["kv_transfer_params"]["remote_num_tokens"] == 9
    assert given["max_tokens"] == 1
    assert "messages" not in given


def test_each_shape_of_request_is_seen_rendered_by_prefill() -> None:
    policy = a_policy()
    tools = a_request({"tools": [{"type": "function", "function": {"name": "f"}}]})
    assert [_reusing_leg(policy, renders=True).path for _ in range(4)][-1] == COMPLETIONS
    assert _reusing_leg(policy, renders=True, request=tools).path == CHAT


def test_fields_that_clients_make_up_fill_no_memory() -> None:
    policy = a_policy()
    assert [_reusing_leg(policy, renders=True).path for _ in range(4)][-1] == COMPLETIONS
    for made_up in range(3000):
        request = a_request({f"x{made_up}": 1})
        assert _reusing_leg(policy, renders=True, request=request).path == CHAT
    assert len(policy.seen) <= 1000
    # Who was forgotten is looked at again.
    assert _reusing_leg(policy, renders=True).path == CHAT
    long_names: dict[str, Any] = {"x" * 10_000: 1, "y" * 10_000: 1}
    assert len(shape(CHAT, long_names)) < 300
    assert shape(CHAT, long_names) != shape(CHAT, {"x" * 10_000: 1})


@pytest.mark.parametrize(
    ("body", "given"),
    [
        ({}, True),
        ({"tools": []}, False),
        ({"messages": [{"role": "user", "content": "hi", "name": "x"}]}, False),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}, False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
    ],
)
def test_ids_of_tokenize_are_given_only_for_plain_chats(body: dict[str, Any], given: bool) -> None:
    """It takes only a part of the request: what it leaves out may change the prompt."""
    policy = a_policy()
    legs = [_reusing_leg(policy, renders=False, request=a_request(body)) for _ in range(20)]
    assert any(leg.path == COMPLETIONS for leg in legs) is given


def test_a_prompt_of_ids_that_prefill_counts_otherwise_is_not_trusted() -> None:
    policy = a_policy()
    fleet = a_fleet()
    fleet.prefill[P].renders = True
    policy.seen.update({shape(CHAT, a_request().body): 3})
    book = Playbook(fleet=fleet, policy=policy)
    book.finds(NEXT, a_handle(PROMPT, ANSWER))
    book.expect(Take, a_handle(PROMPT, ANSWER))
    book.expect(Prefill, p_answer(NEXT[:-1], reused=9))
    book.expect(Settle)
    assert book.expect(Alarm).kind == "prompt_mismatch"
    again = book.expect(Prefill, p_answer(NEXT))
    assert (again.path, again.carries_handle) == (CHAT, False)


def test_an_audited_turn_is_rendered_by_prefill_itself() -> None:
    policy = a_policy()
    audited = replace(a_request(), audited=True)
    legs = [_reusing_leg(policy, renders=True, request=audited) for _ in range(20)]
    assert {leg.path for leg in legs} == {CHAT}
