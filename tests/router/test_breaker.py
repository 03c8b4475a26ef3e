"""A pair that fails costs one turn, not every turn; and one turn finds out that it works again."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from tests.router.fake import error
from tests.router.test_server import LONG, World, answered, user, world


def carries_handle(body: dict[str, Any]) -> bool:
    kv = body.get("kv_transfer_params") or {}
    pulls = kv.get("remote_block_ids") and kv["remote_num_tokens"]
    return bool(pulls) and not body.get("use_beam_search")  # which is a release


async def begun(w: World, *names: str) -> dict[str, list[dict[str, Any]]]:
    """Conversations with a turn each; their next ones."""
    turns = {}
    for name in names:
        first = user(f"{name} {LONG}")
        _, answer, _ = await w.ask([first], conversation_id=name)
        turns[name] = [first, answered(answer), user("more")]
    return turns


async def test_one_turn_tries_and_the_others_run_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdctl.router.fleet._FIRST_PAUSE_S", 0.2)
    async with world() as w:
        turns = await begun(w, "a", "b", "c", "d")
        w.p.fault = lambda request, body: error(500, "x") if carries_handle(body) else None
        status, _, told = await w.ask(turns["a"], conversation_id="a")
        assert (status, told["reason"]) == (200, "prefill_failed_with_handle")
        _, _, told = await w.ask(turns["b"], conversation_id="b")
        assert told["reason"] == "pair_paused"
        await asyncio.sleep(0.2)
        tried, before = 0, len(w.d.seen)

        async def works_slowly(request: web.Request, body: dict[str, Any]) -> None:
            """Until the other turn is at decode."""
            nonlocal tried
            if carries_handle(body):
                tried += 1
                await w.until(lambda: len(w.d.seen) > before)

        w.p.fault = works_slowly
        both = await asyncio.gather(
            *(w.ask(turns[name], conversation_id=name) for name in ("c", "d"))
        )
        assert {told["reason"] for _, _, told in both} == {"continued", "pair_paused"}
        assert tried == 1
        turns = await begun(w, "e", "f")
        both = await asyncio.gather(
            *(w.ask(turns[name], conversation_id=name) for name in ("e", "f"))
        )
        assert [told["outcome"] for _, _, told in both] == ["HIT", "HIT"]


async def test_a_trial_that_fails_costs_one_turn_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdctl.router.fleet._FIRST_PAUSE_S", 0.1)
    async with world() as w:
        turns = await begun(w, *"abcd")
        w.p.fault = lambda request, body: error(500, "x") if carries_handle(body) else None
        told = []
        for name in "abcd":
            _, _, turn = await w.ask(turns[name], conversation_id=name)
            told.append(turn["reason"])
            if name == "b":
                await asyncio.sleep(0.1)
        assert told == ["prefill_failed_with_handle", "pair_paused"] * 2
