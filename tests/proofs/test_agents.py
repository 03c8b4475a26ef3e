"""The agents, answered by nobody in particular."""

import random
from collections import Counter
from itertools import pairwise
from typing import Any
from unittest import mock

from pdctl.observe.turns import Turn
from tests.proofs.agents import LONGEST, MIX, Agent, Chat, Ids, Step, team


def answer(rng: random.Random) -> Turn:
    said = {"role": "assistant", "content": f" {rng.random()}\ufffd "}
    ids = tuple(rng.choices(range(8, 512), k=30))
    return mock.Mock(spec=Turn, token_ids=ids, message=said)


def played(agent: Agent, steps: int) -> list[Step]:
    rng = random.Random(1)
    result = []
    for _ in range(steps):
        result.append(agent.next())
        agent.answered(result[-1], answer(rng))
    return result


def test_the_same_seed_gives_the_same_session() -> None:
    once, again = ([played(agent, 30) for agent in team(3, 8)] for _ in range(2))
    assert once == again
    assert once != [played(agent, 30) for agent in team(4, 8)]


def test_everything_happens_as_often_as_said() -> None:
    steps = [step for agent in team(1, 40) for step in played(agent, 60)]
    kinds = Counter(step.kind for step in steps)
    assert set(kinds) == {*MIX, "first", "late"}
    assert 0.5 < (kinds["append"] + kinds["late"]) / len(steps) < 0.75
    assert all(kinds[kind] >= len(steps) * often / 200 for kind, often in MIX.items())


def test_a_team_has_all_habits() -> None:
    agents = team(1, 8)
    assert {agent.tenant for agent in agents} == {"a", "b"}
    assert {type(agent.form) for agent in agents} == {Ids, Chat}
    assert {agent.name is None for agent in team(1, 20)} == {True, False}
    assert any(agent.hurried for agent in agents)
    assert any(isinstance(agent.form, Chat) and agent.form.strips for agent in agents)


def test_neighbours_of_two_tenants_begin_alike() -> None:
    one, other = team(1, 2)
    assert one.tenant != other.tenant
    assert prompt(one.next()) == prompt(other.next())


def test_an_append_continues_the_answer() -> None:
    agent = team(1, 4)[2]
    steps = played(agent, 40)
    for before, step in pairwise(steps):
        if step.kind == "append" and before.kind in ("first", "append"):
            assert prompt(step)[: len(prompt(before))] == prompt(before)
            assert len(prompt(step)) >= len(prompt(before)) + 30


def test_histories_stay_within_the_models_length() -> None:
    for agent in team(2, 8):
        for _ in range(80):
            played(agent, 1)
            assert agent.form.length(agent._pieces) < 2 * LONGEST


def prompt(step: Step) -> Any:
    request = step.requests[0]
    return request["prompt"] if "prompt" in request else request["messages"]
