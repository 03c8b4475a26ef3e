"""Reused turns against cold ones: what a breach is, and what it does."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from pdctl.router.audit import TOP, cold_body, compare, first_logprobs
from pdctl.router.eligible import CHAT, COMPLETIONS
from tests.router.fake import FakeEngine, error
from tests.router.test_server import LONG, World, user, world

COLD = {"a": -0.5, "b": -1.5, "c": -3.0}


def moved(by: float, **tokens: float) -> dict[str, float]:
    return {token: value + by for token, value in (tokens or COLD).items()}


@pytest.mark.parametrize(
    ("reused", "again", "result"),
    [
        (COLD, COLD, "ok"),
        (moved(0.4), COLD, "ok"),  # below the floor
        (moved(0.6), COLD, "breach"),
        (moved(0.6), moved(0.3), "ok"),  # three times the noise allow it
        (moved(1.3), moved(0.3), "breach"),
        ({"x": -0.5, "y": -1.5}, COLD, "breach"),  # nothing in common
        ({"a": -0.5, "x": -1.0, "b": -1.5}, COLD, "breach"),  # x is -3 at most, cold
        ({"a": -0.5, "b": -1.5, "d": -3.1}, COLD, "ok"),  # another one comes in at the end
        (COLD, {"x": -0.5}, "unstable"),
        (None, COLD, "unreadable"),
        (COLD, None, "unreadable"),
        ({}, COLD, "unreadable"),
    ],
)
def test_verdicts(reused: Any, again: Any, result: str) -> None:
    assert compare(reused, COLD, again, floor=0.5).result == result


def test_the_distance_is_to_the_nearer_cold_run() -> None:
    found = compare(moved(1.0), COLD, moved(0.9), floor=0.5)
    assert (found.result, round(found.distance, 6), round(found.noise, 6)) == ("ok", 0.1, 0.9)


def test_a_floor_of_ones_own() -> None:
    assert compare(moved(0.1), COLD, COLD, floor=0.05).result == "breach"


CHAT_ANSWER = {
    "choices": [
        {
            "logprobs": {
                "content": [
                    {
                        "token": "token_id:9",
                        "logprob": -9.0,
                        "top_logprobs": [
                            {"token": f"token_id:{n}", "logprob": -float(n)} for n in range(1, 8)
                        ],
                    }
                ]
            }
        }
    ]
}
COMPLETION_ANSWER = {
    "choices": [
        {
            "logprobs": {
                "tokens": ["token_id:9"],
                "top_logprobs": [{"token_id:9": -9.0} | {f"token_id:{n}": -n for n in range(1, 6)}],
            }
        }
    ]
}


@pytest.mark.parametrize("answer", [CHAT_ANSWER, COMPLETION_ANSWER])
def test_the_likeliest_are_read_and_the_drawn_one_is_not_taken_for_one(answer: Any) -> None:
    assert first_logprobs(answer) == {f"token_id:{n}": -n for n in range(1, TOP + 1)}


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"choices": [{}]},
        {"choices": [{"logprobs": None}]},
        {"choices": [{"logprobs": {"content": []}}]},
        {"choices": [{"logprobs": {"content": [{"top_logprobs": None}]}}]},
        {"choices": [{"logprobs": {"top_logprobs": [None]}}]},
        {"choices": [{"logprobs": {"top_logprobs": [{"a": float("nan")}]}}]},
        {"choices": [{"logprobs": {"top_logprobs": [{"a": "x"}]}}]},
    ],
)
def test_what_has_no_logprobs(answer: Any) -> None:
    assert first_logprobs(answer) is None


def test_a_cold_run_is_the_clients_prompt_and_pins_nothing() -> None:
    body = {"model": "m", "prompt": "p", "cache_salt": "theirs", "logprobs": 1, "stream": True}
    assert cold_body(COMPLETIONS, body, "ours") == {
        "model": "m",
        "prompt": "p",
        "cache_salt": "ours",
        "max_tokens": 1,
        "stream": False,
        "return_token_ids": True,
        "logprobs": 5,
        "return_tokens_as_token_ids": True,
    }
    chat = cold_body(CHAT, {"messages": []}, "ours")
    assert (chat["logprobs"], chat["top_logprobs"]) == (True, 5)
    assert "kv_transfer_params" not in chat


# With engines.


@dataclass
class Telling(FakeEngine):
    """A prefill server that tells logprobs; `cold` for runs without a handle."""

    warm: dict[str, float] = field(default_factory=lambda: dict(COLD))
    cold: dict[str, float] = field(default_factory=lambda: dict(COLD))
    colds: list[dict[str, Any]] = field(default_factory=list)
    pause: float = 0.0

    async def _prefill(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        if "kv_transfer_params" not in body and "logprobs" in body:
            self.colds.append(body)
            await asyncio.sleep(self.pause)
            return web.json_response({"choices": [{"logprobs": told(self.cold)}]})
        answer = await super()._prefill(request, body)
        if answer.status == 200 and body.get("logprobs"):
            assert isinstance(answer.body, bytes)
            value = json.loads(answer.body)
            value["choices"][0]["logprobs"] = told(self.warm)
            return web.json_response(value)
        return answer


def told(logprobs: dict[str, float]) -> dict[str, Any]:
    top = [{"token": token, "logprob": value} for token, value in logprobs.items()]
    return {"content": [{"token": "a", "logprob": -0.5, "top_logprobs": top}]}


async def two_turns(w: World) -> dict[str, Any]:
    """What the client is told of the second, and that it sees nothing of the audit."""
    _, first, _ = await w.ask([user(LONG)])
    said = first["choices"][0]["message"]
    _, second, explained = await w.ask([user(LONG), said, user("and more of it")])
    assert not second["choices"][0].get("logprobs")
    return explained


def counted(w: World, result: str) -> float:
    name, labels = "pdctl_router_audits_total", {"result": result}
    return w.router.shared.metrics.registry.get_sample_value(name, labels) or 0.0


async def test_a_turn_that_agrees_with_cold_runs_is_ok() -> None:
    p = Telling("prefill")
    async with world(p=p, audit_share=1.0) as w:
        assert (await two_turns(w))["outcome"] == "HIT"
        await w.until(lambda: counted(w, "ok") == 1)
        assert len({body["cache_salt"] for body in p.colds}) == 2
        assert w.router.shared.fleet.pairs[p.url, w.d.url].verdict == "ok"
        # The handle that decode has now is the last turn's: the cold runs left none.
        assert len(w.d.held) == 1


async def test_a_breach_alarms_and_takes_the_pair_out_of_use(
    caplog: pytest.LogCaptureFixture,
) -> None:
    p = Telling("prefill", warm={"x": -0.1, "y": -3.0})
    async with world(p=p, audit_share=1.0) as w:
        await two_turns(w)
        await w.until(lambda: counted(w, "breach") == 1)
        assert "ALARM audit_breach" in caplog.text
        name, labels = "pdctl_router_alarms_total", {"kind": "audit_breach"}
        assert w.router.shared.metrics.registry.get_sample_value(name, labels) == 1
        pair = w.router.shared.fleet.pairs[p.url, w.d.url]
        assert pair.verdict == "no_reuse"
        assert "an audit found a reused turn" in pair.why
        # Nothing that may have come of it is used again, from wherever.
        await w.until(lambda: not w.d.held)
        await w.ask([user(LONG)], cache_salt="own")
        salts = [engine.seen[-1]["cache_salt"] for engine in (w.p, w.d)]
        assert all(salt.startswith("own") and len(salt) > 8 for salt in salts)
        # Looking again does not make it good.
        await w.router.watcher.look()
        assert (await two_turns(w))["reason"] == "pair_not_proven"


async def test_without_a_share_nothing_is_asked() -> None:
    p = Telling("prefill")
    async with world(p=p) as w:
        assert (await two_turns(w))["outcome"] == "HIT"
        assert [body for body in p.seen if "logprobs" in body] == []
        assert p.colds == []


async def test_cold_turns_are_not_audited() -> None:
    p = Telling("prefill")
    async with world(p=p, audit_share=1.0) as w:
        await w.ask([user(LONG)])
        assert [body for body in p.seen if "logprobs" in body] == []


async def test_it_waits_until_nobody_wants_the_server_and_stops_when_somebody_does() -> None:
    p = Telling("prefill", pause=30.0)
    async with world(p=p, audit_share=1.0) as w:
        engine = w.router.shared.fleet.prefill[p.url]
        engine.outstanding += 10
        await two_turns(w)
        await asyncio.sleep(0.25)
        assert p.colds == []
        engine.outstanding -= 10
        await w.until(lambda: len(p.colds) == 1)
        engine.outstanding += 10
        await w.until(lambda: p.left == 1)
        p.pause = 0.0
        engine.outstanding -= 10
        await w.until(lambda: counted(w, "ok") == 1)


async def test_it_is_given_up_in_time_and_one_runs_at_a_time() -> None:
    p = Telling("prefill", pause=30.0)
    async with world(p=p, audit_share=1.0) as w:
        w.router.shared.auditor._limit = 0.6
        await two_turns(w)
        await w.until(lambda: len(p.colds) == 1)
        await two_turns(w)
        assert counted(w, "left_out") > 0
        await w.until(lambda: counted(w, "given_up") == 1)
        assert w.router.shared.fleet.pairs[p.url, w.d.url].verdict == "ok"


async def test_a_router_that_stops_does_not_wait_for_it() -> None:
    p = Telling("prefill", pause=30.0)
    async with asyncio.timeout(3), world(p=p, audit_share=1.0, limits={"drain": 20.0}) as w:
        await two_turns(w)
        await w.until(lambda: len(p.colds) == 1)
    # Nor does it go on with what is closed.
    running = w.router.shared.auditor._running
    assert running is not None
    assert running.cancelled()


async def test_a_server_that_may_not_tell_logprobs_reuses_all_the_same() -> None:
    def refuses(request: web.Request, body: dict[str, Any]) -> Any:
        return error(400, "logprobs are not allowed") if body.get("logprobs") else None

    p = Telling("prefill")
    p.fault = refuses
    async with world(p=p, audit_share=1.0) as w:
        told = await two_turns(w)
        assert (told["outcome"], told["retries"]) == ("HIT", [])
        assert counted(w, "unreadable") == 1
        assert p.colds == []  # no work for nothing
