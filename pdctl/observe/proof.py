"""What two turns prove, judged from evidence alone. Pure: no I/O, no clock.

The proof is of reuse from decode whatever prefill's own prefix cache holds: turn 1 generates at
least the recompute threshold and two blocks, and what was generated is nowhere but on decode.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pdctl.base.errors import BadAnswerError
from pdctl.base.facts import RouterFacts, Side, TwoTurnFacts
from pdctl.engine.example import LIMITS
from pdctl.observe.endpoints import Endpoints
from pdctl.observe.turns import Turn

_MARGIN = 8
"""Tokens to spare, so that no rounding in engine or router decides the proof."""
_LEAST_PROMPT = 32
NOT_COUNTED = "not_counted_by_engine"
"""The router's word for engines too old to count what they pull: its number is no proof."""


@dataclass(frozen=True)
class Sizes:
    """How long the parts of the conversation are, in tokens.

    Attributes:
        prompt, answer: of turn 1.
        question: what the user adds in turn 2.
        final: the answer of turn 2, which is compared.
    """

    prompt: int
    answer: int
    question: int
    final: int

    @property
    def second_prompt(self) -> int:
        """Length of turn 2's prompt."""
        return self.prompt + self.answer + self.question


def plan_sizes(
    *,
    threshold: int,
    block_size: int,
    max_model_len: int | None,
    history: int,
    final: int = 32,
) -> Sizes:
    """Sizes that prove reuse with prefill's prefix cache on or off.

    With its cache on, prefill already has turn 1's prompt, and only the answer is left to pull:
    so the answer alone must exceed the threshold.

    Args:
        history: wished length of turn 1's prompt; shortened to what the model takes.

    Raises:
        BadAnswerError: the model is too short for a history that exceeds the threshold.
    """
    answer = max(threshold, 2 * block_size) + _MARGIN
    question = 2 * _LEAST_PROMPT
    room = (max_model_len or 1 << 30) - answer - question - final - _MARGIN
    if room < _LEAST_PROMPT:
        raise BadAnswerError(
            f"reuse cannot be proven: the recompute threshold is {threshold} tokens, a block "
            f"{block_size}, but prompt and answer together may only have {max_model_len}",
            expected=f"`model.max_model_len` of at least {max_model_len - room + _LEAST_PROMPT}"
            if max_model_len
            else None,
            hints=["lower `kv.recompute_threshold` or raise `model.max_model_len`"],
        )
    return Sizes(prompt=min(history, room), answer=answer, question=question, final=final)


@dataclass(frozen=True)
class SideProbe:
    """What the engines themselves did when asked without the router; None: could not tell.

    Attributes:
        decode_gives_handle: a finished request came with a handle.
        prefill_takes_handle: prefill acted on it, so that decode freed the blocks.
        decode_streams_handle: a streamed request came with one too.
    """

    decode_gives_handle: bool | None = None
    prefill_takes_handle: bool | None = None
    decode_streams_handle: bool | None = None


@dataclass(frozen=True)
class ChatTurn:
    """The second turn of an ordinary chat; `problem` says why there is none."""

    turn: Turn | None = None
    problem: str = ""


@dataclass
class Evidence:
    """What was seen, filled in as it comes.

    Attributes:
        first, second: the two turns through the router; these and the next are None until they
            came whole and without an error, which `problem` then tells.
        cold: turn 2 again through the router, on content that no cache knows.
        oracle: turn 2 on decode alone; only where the dtype makes it one.
        problem: why the run ended early.
        pulled: bytes from decode to prefill while turn 2 ran; None when prefill did not say.
        external_tokens: the same in tokens, by prefill's own count.
        pulled_by: name of the prefill engine.
        unproven: with several engines of a role, those of which the router has proven no pair.
    """

    endpoints: Endpoints
    router: RouterFacts
    sizes: Sizes | None = None
    block_size: int = 0
    prefix_caching: bool | None = None
    first: Turn | None = None
    second: Turn | None = None
    cold: Turn | None = None
    oracle: Turn | None = None
    problem: str = ""
    pulled: int | None = None
    external_tokens: int | None = None
    pulled_by: str = "prefill"
    unproven: tuple[str, ...] | None = None
    chat: ChatTurn = field(default_factory=ChatTurn)
    probe: SideProbe = field(default_factory=SideProbe)

    @property
    def proven_by_router(self) -> bool:
        """The router's own probe saw blocks move both ways between the engines of turn 2."""
        said = self.second.explanation if self.second else None
        return said is not None and any(
            pair.ok and (pair.prefill, pair.decode) == (said.prefill, said.decode)
            for pair in self.router.pairs
        )

    @property
    def counted_none(self) -> bool:
        """Prefill itself said that turn 2 reused nothing, so no metric will move for it."""
        said = self.second.explanation if self.second else None
        return said is not None and said.reason != NOT_COUNTED and said.reused_tokens == 0

    @property
    def reused(self) -> int | None:
        """Tokens of turn 2 that prefill did not compute because it pulled, by its own count.

        Where it pulled at all, what its own prefix cache held is in that number.
        """
        if self.second is None:
            return None
        said = self.second.explanation
        if said is None or said.reason == NOT_COUNTED:
            return self.external_tokens
        return said.reused_tokens


@dataclass(frozen=True)
class TurnReport:
    """One line of the report; None where nobody said."""

    turn: int
    ttft_ms: float | None
    prompt_tokens: int | None
    reused_tokens: int | None
    outcome: str | None = None
    reason: str = ""

    def as_dict(self) -> dict[str, object]:
        """For `verify --json`."""
        return {
            "turn": self.turn,
            "ttft_ms": self.ttft_ms,
            "prompt_tokens": self.prompt_tokens,
            "reused_tokens": self.reused_tokens,
            "outcome": self.outcome,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class VerifyReport:
    """The verdict with all that it stands on.

    Attributes:
        pulled_tokens: whose KV came from decode, by prefill's counter; None when it has none.
        proved: sentences, in the order of importance; what was shown, never what is hoped.
        output_note: why the outputs were not compared; empty when they were.
        cold_ttft_ms: of turn 2 when nothing was reused, the same way through the router.
        chat: the second turn of an ordinary chat, told but not judged.
        reason, side, hints: see `TwoTurnFacts`.
        router_limits: what a router that is not pdctl's is known not to do.
    """

    ok: bool
    turns: tuple[TurnReport, ...]
    output_equal: bool | None
    bytes_pulled: int | None
    pulled_tokens: int | None
    proved: tuple[str, ...]
    output_note: str
    cold_ttft_ms: float | None
    chat: TurnReport | None
    chat_note: str
    prefill: str
    decode: str
    reason: str = ""
    side: Side | None = None
    hints: tuple[str, ...] = ()
    router_limits: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """`verify --json`: `ok`, `turns`, `output_equal` and `bytes_pulled` are the contract."""
        return {
            "ok": self.ok,
            "turns": [turn.as_dict() for turn in self.turns],
            "output_equal": self.output_equal,
            "bytes_pulled": self.bytes_pulled,
            "pulled_tokens": self.pulled_tokens,
            "cold_ttft_ms": self.cold_ttft_ms,
            "output_note": self.output_note,
            "proved": list(self.proved),
            "chat": self.chat.as_dict() if self.chat else None,
            "chat_note": self.chat_note,
            "prefill": self.prefill,
            "decode": self.decode,
            "reason": self.reason,
            "side": self.side,
            "hints": list(self.hints),
            "router_limits": list(self.router_limits),
        }

    def facts(self) -> TwoTurnFacts:
        """The part that checks judge."""
        second = self.turns[1] if len(self.turns) > 1 else None
        return TwoTurnFacts(
            ok=self.ok,
            reused_tokens=second.reused_tokens if second else None,
            prompt_tokens=second.prompt_tokens if second else None,
            bytes_pulled=self.bytes_pulled,
            output_equal=self.output_equal,
            reason=self.reason,
            side=self.side,
            hints=self.hints,
        )


def judge(evidence: Evidence) -> VerifyReport:
    """The verdict. Reuse, bytes and (where there is an oracle) equality must all be shown."""
    equal, note = _equality(evidence)
    fault = _fault(evidence, equal)
    said = evidence.second.explanation if evidence.second else None
    turns = [
        _turn_report(number, turn, evidence.reused if number == 2 else None)
        for number, turn in ((1, evidence.first), (2, evidence.second))
        if turn is not None
    ]
    return VerifyReport(
        ok=fault is None,
        turns=tuple(turns),
        output_equal=equal,
        bytes_pulled=evidence.pulled,
        pulled_tokens=evidence.external_tokens,
        proved=tuple(_proved(evidence, equal)),
        output_note=note,
        cold_ttft_ms=_ms(evidence.cold),
        chat=_turn_report(2, evidence.chat.turn, None) if evidence.chat.turn else None,
        chat_note=evidence.chat.problem,
        prefill=said.prefill if said else "",
        decode=said.decode if said else "",
        reason=fault.reason if fault else "",
        side=fault.side if fault else None,
        hints=fault.hints if fault else (),
        router_limits=LIMITS if evidence.router.example else (),
    )


def _turn_report(number: int, turn: Turn, reused: int | None) -> TurnReport:
    said = turn.explanation
    return TurnReport(
        turn=number,
        ttft_ms=_ms(turn),
        prompt_tokens=turn.prompt_tokens or (said.prompt_tokens if said else None),
        reused_tokens=said.reused_tokens if said and said.reason != NOT_COUNTED else reused,
        outcome=said.outcome if said else None,
        reason=said.reason if said else "",
    )


def _ms(turn: Turn | None) -> float | None:
    if turn is None or turn.ttft_s is None:
        return None
    return round(turn.ttft_s * 1000, 1)


def _equality(evidence: Evidence) -> tuple[bool | None, str]:
    second, oracle = evidence.second, evidence.oracle
    if evidence.endpoints.dtype != "float32":
        return None, (
            f"dtype is {evidence.endpoints.dtype}: rounding differs with the way a prompt is cut "
            "into steps, so a difference would prove nothing; float32 compares exactly"
        )
    if second is None or oracle is None:
        return None, "there was nothing to compare"
    return _same(second, oracle), ""


def _same(left: Turn, right: Turn) -> bool:
    if left.token_ids is not None and right.token_ids is not None:
        return left.token_ids == right.token_ids
    return left.text == right.text


# --- what went wrong -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fault:
    reason: str
    side: Side | None = None
    hints: tuple[str, ...] = ()


def _fault(evidence: Evidence, equal: bool | None) -> _Fault | None:
    if evidence.problem:
        return _early(evidence)
    if not evidence.reused:
        return _not_reused(evidence)
    if equal is False:
        return _different(evidence)
    if not evidence.pulled:
        return _no_bytes(evidence)
    if evidence.unproven:
        why = "the pair of these turns is proven, but not every engine takes part"
        hints = ("pdctl doctor", "pdctl status")
        return _Fault(f"{why}: {'; '.join(evidence.unproven)}", "router", hints)
    return None


def _early(evidence: Evidence) -> _Fault:
    pairs = [pair for pair in evidence.router.pairs if not pair.ok]
    if not evidence.router.ready and pairs:
        pair = pairs[0]
        return _Fault(
            f"{evidence.problem}: {pair.prefill} → {pair.decode}: {pair.reason}",
            "router",
            ("pdctl status",),
        )
    return _Fault(evidence.problem, hints=("pdctl status",))


def _not_reused(evidence: Evidence) -> _Fault:
    if not evidence.endpoints.bidirectional:
        return _Fault(
            "turn 2 reused nothing: the configuration says `kv.bidirectional: false`",
            "config",
            ("set `kv.bidirectional: true`, then `pdctl down` and `pdctl up`",),
        )
    said = _router_words(evidence)
    fault = _side_fault(evidence.probe)
    if fault is None:
        return _Fault(f"turn 2 reused nothing{said}", None, ("pdctl status",))
    return _Fault(f"turn 2 reused nothing: {fault.reason}{said}", fault.side, fault.hints)


def _router_words(evidence: Evidence) -> str:
    """What the router says about it: the turn's reason, and the canary's where a pair is out."""
    words = []
    said = evidence.second.explanation if evidence.second else None
    if said is not None and said.reason:
        words.append(f"the router says `{said.reason}`")
    for pair in evidence.router.pairs:
        concerned = said is None or (pair.prefill, pair.decode) == (said.prefill, said.decode)
        if concerned and not pair.ok and pair.reason:
            words.append(f"its probe of {pair.prefill} → {pair.decode} found: {pair.reason}")
            break
    return f"; {'; '.join(words)}" if words else ""


def _side_fault(probe: SideProbe) -> _Fault | None:
    if probe.decode_gives_handle is False:
        return _Fault(
            "decode returns no handle, so it runs with `bidirectional_kv_xfer` off",
            "decode",
            (_turn_on("decode"),),
        )
    if probe.decode_gives_handle and probe.prefill_takes_handle is False:
        return _Fault(
            "decode returns handles but prefill does nothing with them, so prefill runs with "
            "`bidirectional_kv_xfer` off",
            "prefill",
            (_turn_on("prefill"),),
        )
    if probe.decode_gives_handle and probe.prefill_takes_handle is None:
        return _Fault(
            "decode returns handles but prefill pulled nothing: the cause is on prefill's side "
            "(`bidirectional_kv_xfer` off, or a higher `kv_recompute_threshold` than configured)",
            "prefill",
            (_turn_on("prefill"),),
        )
    if probe.decode_streams_handle is False:
        return _Fault(
            "decode puts no handle into streamed answers, as vLLM does from 0.33 on, or with "
            "pdctl's plugin; turns that do not stream are reused",
            "decode",
            (
                "leave `engine.plugin` at `auto`, then `pdctl up`; for engines that something else "
                "starts, put pdctl's plugin into decode, or take a newer vLLM",
            ),
        )
    return None


def _turn_on(role: Literal["prefill", "decode"]) -> str:
    return (
        f'start {role} with `"bidirectional_kv_xfer": true` in `kv_connector_extra_config` '
        "(`kv.bidirectional: true`; what runs now: `pdctl status`)"
    )


def _different(evidence: Evidence) -> _Fault:
    second, oracle, cold = evidence.second, evidence.oracle, evidence.cold
    assert second is not None
    assert oracle is not None
    if cold is not None and cold.ok and not _same(cold, oracle):
        return _Fault(
            "answers differ from decode's own even without reuse: the way from prefill to decode "
            "is wrong, not the way back",
            "prefill",
            ("check that both engines have the same weights, revision and attention backend",),
        )
    at = _first_difference(second.token_ids or (), oracle.token_ids or ())
    return _Fault(
        f"the answer with reuse differs from the cold one, from token {at + 1} on",
        None,
        ("turn reuse off (`kv.bidirectional: false`) until the cause is known",),
    )


def _first_difference(left: Sequence[int], right: Sequence[int]) -> int:
    for at, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return at
    return min(len(left), len(right))


def _no_bytes(evidence: Evidence) -> _Fault:
    if evidence.pulled is None:
        return _Fault(
            f"`{evidence.pulled_by}` does not say how many bytes it pulled: its /metrics has no "
            "`vllm:nixl_bytes_transferred`, or it restarted meanwhile",
            "prefill",
            ("run `pdctl verify` again",),
        )
    return _Fault(
        f"`{evidence.pulled_by}` counted {evidence.reused} reused tokens, but its "
        "`vllm:nixl_bytes_transferred` did not move",
        "prefill",
        ("run `pdctl verify` again; a metric of an idle engine can lag",),
    )


# --- what was shown --------------------------------------------------------------------------


def _proved(evidence: Evidence, equal: bool | None) -> list[str]:
    second, sizes = evidence.second, evidence.sizes
    if second is None or not evidence.reused or sizes is None:
        return []
    counted = second.explanation is not None and second.explanation.reason != NOT_COUNTED
    source = "`remote_prefill_cached_tokens`" if counted else "`vllm:prompt_tokens_by_source`"
    lines = [
        f"turn 2 reused {evidence.reused:,} of {second.prompt_tokens or sizes.second_prompt:,} "
        f"prompt tokens, as prefill itself counted ({source})"
    ]
    if evidence.pulled:
        lines.append(_pulled(evidence, evidence.reused, evidence.pulled))
    if equal:
        lines.append(
            f"the {len(second.token_ids or ()) or sizes.final} tokens of the answer are those "
            "of a cold run on decode alone"
        )
    lines.append(_whatever_the_cache(evidence, sizes))
    if evidence.unproven == ():
        count = len(evidence.endpoints.engines)
        lines.append(f"each of the {count} engines has a pair that the router has proven")
    return lines


def _pulled(evidence: Evidence, reused: int, count: int) -> str:
    """What came from decode: prefill's count of reused tokens has its own prefix cache in it."""
    tokens, rest = evidence.external_tokens, ""
    what = format_bytes(count)
    if tokens:
        what = f"the KV of {tokens:,} tokens ({what})"
    if tokens and tokens < reused:
        rest = f"; the other {reused - tokens:,} were in its own prefix cache"
    return (
        f"`{evidence.pulled_by}` pulled {what} from decode while that turn ran "
        f"(`vllm:nixl_bytes_transferred`){rest}"
    )


def _whatever_the_cache(evidence: Evidence, sizes: Sizes) -> str:
    state = {True: "on", False: "off", None: "in an unknown state"}[evidence.prefix_caching]
    return (
        f"turn 1 generated {sizes.answer} tokens, which only decode had (threshold "
        f"{evidence.endpoints.threshold}, block {evidence.block_size}): that holds with prefill's "
        f"own prefix cache on or off; here it is {state}"
    )


def format_bytes(count: int) -> str:
    """`1500000` → `1.5 MB`."""
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
