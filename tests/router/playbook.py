"""Hold a conversation with the router's core: say what comes of each action, assert the next."""

from collections.abc import Callable
from typing import Any, TypeVar

from pdctl.router.actions import (
    Action,
    Answer,
    Find,
    Keep,
    Know,
    MakeRoom,
    OpenDecode,
    Opened,
    Prefill,
    Relay,
    Relayed,
    Render,
    Report,
)
from pdctl.router.core import Policy, TurnRequest, run_turn
from pdctl.router.eligible import CHAT, Endpoint
from pdctl.router.fleet import Fleet
from pdctl.router.handle import Conversation, Handle, Scope
from pdctl.router.ids import Ids
from pdctl.router.legs import Harvest
from pdctl.router.match import packed, retained
from pdctl.router.store import Found

P, D = "http://p:1", "http://d:1"
BLOCK = 4
A = TypeVar("A", bound=Action)


def a_fleet(*, prefill: tuple[str, ...] = (P,), decode: tuple[str, ...] = (D,)) -> Fleet:
    """Healthy engines whose pairs are proven."""
    fleet = Fleet(prefill, decode)
    for engine in fleet.engines():
        fleet.engine_up(engine.url, start="1", block_size=BLOCK)
    for pair in fleet.pairs.values():
        pair.moves_kv, pair.verdict = True, "ok"
    return fleet


def a_policy(**changes: Any) -> Policy:
    values: dict[str, Any] = {
        "threshold": 2,
        "ttl": 100.0,
        "prefill_base": 60.0,
        "prefill_per_1k_tokens": 5.0,
        "reuse_base": 10.0,
    }
    return Policy(**(values | changes))


SCOPE = Scope("", "m", "")
NAMED = Conversation("c1", "begins so")


def a_request(
    body: dict[str, Any] | None = None,
    conversation: Conversation = NAMED,
    endpoint: Endpoint = CHAT,
) -> TurnRequest:
    default: dict[str, Any] = {"model": "m"}
    if endpoint == CHAT:
        default["messages"] = [{"role": "user", "content": "hello"}]
    return TurnRequest(endpoint, default | (body or {}), "", conversation, "r1")


def d_params(tokens: int, request: str = "d1", engine: str = "e1") -> dict[str, Any]:
    """What decode returns for `tokens` tokens."""
    return {
        "do_remote_prefill": False,
        "do_remote_decode": True,
        "remote_block_ids": [list(range(-(-tokens // BLOCK)))],
        "remote_engine_id": engine,
        "remote_request_id": request,
        "remote_host": "10.0.0.2",
        "remote_port": 5601,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": tokens,
        "transfer_mode": "pull",
        "something_new": "kept",
    }


def ids(*tokens: int) -> bytes:
    """Packed as handles keep them."""
    held = packed(list(tokens))
    assert held is not None
    return held


def a_handle(
    prompt: list[int],
    generated: list[int],
    *,
    deadline: float = 1e9,
    request: str = "d1",
    decode: str = D,
    engine: str = "e1",
    conversation: Conversation = NAMED,
    scope: Scope = SCOPE,
    **more: Any,
) -> Handle:
    tokens = len(prompt) + len(generated) - 1
    return Handle.of(
        d_params(tokens, request, engine),
        scope=scope,
        conversation=conversation,
        decode=decode,
        held=retained(
            ids(*prompt),
            ids(*generated),
            completion_tokens=len(generated),
            remote_num_tokens=tokens,
        ),
        block_size=BLOCK,
        deadline=deadline,
        **more,
    )


def p_answer(prompt: list[int], reused: int | None = None, cached: int | None = None) -> Answer:
    """What prefill answers for a prompt of these ids."""
    kv: dict[str, Any] = {"do_remote_prefill": True, "remote_block_ids": [[1]], "from": "prefill"}
    if reused is not None:
        kv["remote_prefill_cached_tokens"] = reused
    usage: dict[str, Any] = {"prompt_tokens": len(prompt), "completion_tokens": 1}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return Answer({"prompt_token_ids": prompt, "usage": usage, "kv_transfer_params": kv}, 0.01)


def a_harvest(generated: list[int], kv: dict[str, Any] | None) -> Harvest:
    return Harvest(
        kv=kv,
        generated=generated,
        usage={"completion_tokens": len(generated)},
        finish_reason="stop",
        content_seen=True,
    )


class Playbook:
    """One turn. `expect` takes the action that is due and gives what came of it."""

    def __init__(
        self,
        request: TurnRequest | None = None,
        *,
        fleet: Fleet | None = None,
        policy: Policy | None = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.fleet = fleet or a_fleet()
        self.policy = policy or a_policy()
        self._turn = run_turn(request or a_request(), self.fleet, self.policy, clock)
        self._action: Action | None = next(self._turn)
        self.report: Report | None = None

    @property
    def due(self) -> Action | None:
        return self._action

    def expect(self, kind: type[A], result: Any = None) -> A:
        if isinstance(self._action, MakeRoom) and kind is not MakeRoom:
            self._send(None)  # most tests are not about room
        action = self._action
        assert isinstance(action, kind), f"expected {kind.__name__}, due is {action}"
        self._send(result)
        return action

    def _send(self, result: Any) -> None:
        try:
            self._action = self._turn.send(result)
        except StopIteration as end:
            self._action, self.report = None, end.value

    def finds(self, prompt: list[int], *handles: Handle) -> None:
        """These handles may fit; the prompt is rendered unless the client sent ids."""
        self.expect(Know, True)
        if isinstance(self._action, Render):
            self.expect(Render, Ids(prompt))
        asked = self.expect(Find, [Found.of(handle, ids(*prompt)) for handle in handles])
        assert asked.prompt == ids(*prompt)

    def ended(self) -> Report:
        assert self._action is None, f"still due: {self._action}"
        assert self.report is not None
        return self.report

    def first_turn(self, prompt: list[int], generated: list[int]) -> Handle:
        """A cold turn of a conversation without handles; returns the handle kept."""
        self.expect(Know, False)
        self.expect(Prefill, p_answer(prompt))
        self.expect(OpenDecode, Opened(200))
        tokens = len(prompt) + len(generated) - 1
        self.expect(Relay, Relayed(a_harvest(generated, d_params(tokens))))
        self.expect(Find, [])
        return self.expect(Keep).handle
