"""Random sessions: whatever an agent does to its history, every answer equals the cold one."""

import random

import aiohttp
import pytest

from tests.e2e.harness import Pair, Routed, random_ids


class Session:
    """One conversation that is grown, edited, cut and repeated, as agents do."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name, self.rng = name, rng
        self.history = random_ids(rng.randrange(10**9), rng.randrange(200, 500))
        self.asked: list[int] = []

    def next_prompt(self) -> tuple[str, list[int]]:
        """What happens next, and the prompt of the turn."""
        kind = self.rng.choices(
            ("append", "edit", "cut", "again", "compact"), weights=(6, 2, 1, 1, 1)
        )[0]
        prompt = list(self.history)
        if kind == "again" and self.asked:
            prompt = list(self.asked)
        elif kind == "edit":
            at = self.rng.randrange(len(prompt))
            prompt[at] = 8 + (prompt[at] + 1) % 400
        elif kind == "cut":
            prompt = prompt[: self.rng.randrange(100, len(prompt))]
        elif kind == "compact":
            prompt = random_ids(self.rng.randrange(10**9), 150)
        if kind != "again":
            prompt += random_ids(self.rng.randrange(10**9), self.rng.randrange(1, 40))
        self.asked = prompt
        return kind, prompt

    def answered(self, answer: tuple[int, ...]) -> None:
        self.history = [*self.asked, *answer]
        if len(self.history) > 4000:
            self.history = self.history[:300]


@pytest.mark.parametrize(
    "turns", [30, pytest.param(600, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
)
async def test_every_answer_equals_the_cold_one(
    pair: Pair, router: Routed, session: aiohttp.ClientSession, turns: int
) -> None:
    rng = random.Random(turns)
    sessions = [Session(f"s{place}-{turns}", rng) for place in range(4)]
    reused = 0
    wrong: list[str] = []
    for number in range(turns):
        one = rng.choice(sessions)
        kind, prompt = one.next_prompt()
        turn = await router.send(
            session, prompt=prompt, max_tokens=rng.randrange(60, 120), conversation_id=one.name
        )
        assert turn.ok, f"turn {number} ({kind}): {turn.error_text}"
        assert turn.token_ids is not None
        cold = await pair.cold(session, prompt=prompt, max_tokens=len(turn.token_ids))
        if turn.token_ids != cold.token_ids:
            wrong.append(f"turn {number} ({kind}): {turn.explanation}")
        assert turn.explanation is not None
        reused += turn.explanation.reused_tokens > 0
        one.answered(turn.token_ids)
    assert wrong == []
    assert reused >= turns // 4, f"only {reused} of {turns} turns reused anything"
