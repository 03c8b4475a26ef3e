"""Checks of what the pair does."""

from pdctl.base.facts import PairFacts
from pdctl.doctor.table import Check, Fix, Verdict, failed, passed, skipped


def _two_turn(facts: PairFacts, _: str) -> Verdict:
    proof = facts.two_turn
    if proof is None:
        return skipped("the two-turn proof was not run; `pdctl verify` runs it")
    if proof.ok:
        return passed(
            f"turn 2 reused {proof.reused_tokens} of {proof.prompt_tokens} prompt tokens",
            f"prefill pulled {proof.bytes_pulled} bytes from decode",
        )
    hint = Fix("; ".join(proof.hints)) if proof.hints else None
    return failed(proof.reason, fix=hint)


CHECKS: tuple[Check, ...] = (
    Check(
        id="runtime.two_turn",
        title="turn 2 reuses turn 1",
        scope="pair",
        severity="degrade",
        judge=_two_turn,
        meaning="The pair may serve, but it does not do what it was set up for.",
        fix=Fix("see what the proof found", ("pdctl verify",)),
        needs=("engine.health", "router.reach"),
    ),
)
