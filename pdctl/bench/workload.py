"""What is asked, in which order: conversations as values. Pure: no I/O, no clock.

Content is random and comes from a seed, so that two legs ask prompts of the same lengths, and no
two cells ask the same prompt, which a prefix cache would know.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pdctl.base.errors import BadAnswerError

POST_LENGTHS = (2000, 4000, 8000, 12000, 16000, 20000, 24000)
"""Of the published measurements (FACTS 6)."""
SPARE = 16
"""Tokens left free below the model's context, for what a chat template adds."""


@dataclass(frozen=True)
class Shape:
    """The workload; its defaults are those of the published measurements (FACTS 6).

    Attributes:
        lengths: tokens that a conversation begins with, one cell each.
        question: tokens that each turn adds, the first one too.
        answer: tokens that each turn generates.
        clients: requests at the same time, in a closed loop.
        gap_s: from an answer's end to the conversation's next turn.
        rate: conversations that begin in a second, at random times; None: a closed loop.
        chat: messages of words instead of token ids.
    """

    conversations: int = 10
    turns: int = 10
    lengths: tuple[int, ...] = POST_LENGTHS
    question: int = 150
    answer: int = 300
    clients: int = 2
    gap_s: float = 0.0
    rate: float | None = None
    chat: bool = False

    @property
    def growth(self) -> int:
        """Tokens that a conversation grows by from its beginning to its end."""
        return self.turns * (self.question + self.answer)


@dataclass(frozen=True)
class Step:
    """One turn of a conversation.

    Attributes:
        new: tokens that it adds to the history; unused where `prompt` is given.
        answer: tokens to generate.
        prompt: length of the whole prompt; a shorter one than the history cuts it.
        due_s: seconds after the cell's beginning; None: as soon as it can be sent.
    """

    new: int
    answer: int
    prompt: int | None = None
    due_s: float | None = None


@dataclass(frozen=True)
class Script:
    """One conversation; its key is also the seed of its content."""

    key: str
    steps: tuple[Step, ...]


def capped(shape: Shape, context: int | None) -> tuple[tuple[int, ...], list[str]]:
    """The lengths that fit the model's context, and what has to be said about it.

    Raises:
        BadAnswerError: not even the turns themselves fit.
    """
    if context is None:
        return shape.lengths, []
    room = context - shape.growth - SPARE
    if room < 1:
        raise BadAnswerError(
            f"{shape.turns} turns of {shape.question} and {shape.answer} tokens do not fit a "
            f"context of {context:,} tokens",
            expected="fewer turns or shorter ones: `--turns`, `--question`, `--answer`",
        )
    lengths = tuple(dict.fromkeys(min(length, room) for length in shape.lengths))
    longer = [length for length in shape.lengths if length > room]
    if not longer:
        return lengths, []
    return lengths, [
        f"the model's context has {context:,} tokens, and a conversation grows by "
        f"{shape.growth:,}: lengths above {room:,} become {room:,}"
    ]


def scripts(shape: Shape, length: int, seed: str) -> list[Script]:
    """The conversations of one cell.

    Args:
        length: tokens that each begins with, besides its first question.
        seed: of content and arrivals; of this cell alone.
    """
    starts = _arrivals(shape, seed)
    return [
        Script(f"{seed}/{number}", tuple(_steps(shape, length, starts[number])))
        for number in range(shape.conversations)
    ]


def _arrivals(shape: Shape, seed: str) -> list[float | None]:
    if shape.rate is None:
        return [None] * shape.conversations
    rng, at = random.Random(f"{seed}/arrivals"), 0.0
    starts: list[float | None] = []
    for _ in range(shape.conversations):
        starts.append(at)
        at += rng.expovariate(shape.rate)
    return starts


def _steps(shape: Shape, length: int, start: float | None) -> Iterable[Step]:
    for turn in range(shape.turns):
        new = shape.question + (length if turn == 0 else 0)
        yield Step(new, shape.answer, due_s=start if turn == 0 else None)


def traced(
    records: Iterable[Mapping[str, Any]],
    *,
    seed: str,
    context: int | None,
    speed: float = 1.0,
    answer: int = 300,
    limit: int | None = None,
) -> tuple[list[Script], list[str]]:
    """Conversations as a request log has them, with their gaps, and what has to be said.

    Args:
        records: with `conversation_id`, `ts` and `prompt_tokens`; `output_tokens` may be there.
        speed: 2 plays it in half the time.
        answer: tokens to generate where the log does not say.
        limit: requests to take, from the first on.

    Raises:
        BadAnswerError: a record lacks one of the three, or there is none.
    """
    rows = sorted((_traced(number, record) for number, record in enumerate(records, 1)))[:limit]
    if not rows:
        raise BadAnswerError("the trace has no request")
    began, left_out = rows[0][0], 0
    steps: dict[str, list[Step]] = {}
    for at, conversation, prompt, output in rows:
        said = answer if output is None else max(1, output)
        if context is not None and prompt + said + SPARE > context:
            left_out += 1
            continue
        step = Step(0, said, prompt=max(1, prompt), due_s=(at - began) / speed)
        steps.setdefault(conversation, []).append(step)
    words = [f"{left_out:,} requests of the trace exceed the context and are left out"]
    return (
        [Script(f"{seed}/{key}", tuple(each)) for key, each in steps.items()],
        words if left_out else [],
    )


def _traced(number: int, record: Mapping[str, Any]) -> tuple[float, str, int, int | None]:
    try:
        output = record.get("output_tokens")
        return (
            float(record["ts"]),
            str(record["conversation_id"]),
            int(record["prompt_tokens"]),
            None if output is None else int(output),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadAnswerError(
            f"request {number} of the trace cannot be used: {type(error).__name__} {error}",
            expected="`conversation_id`, `ts` and `prompt_tokens` in each line",
        ) from error


def next_prompt(history: Sequence[int], step: Step, fresh: Sequence[int]) -> list[int]:
    """The ids that a turn sends.

    Args:
        history: the last prompt and its answer.
        fresh: ids that nobody has asked before, at least `fresh_tokens(step, …)` of them.
    """
    kept = list(history[: _kept(len(history), step)])
    return [*kept, *fresh[: fresh_tokens(len(history), step)]]


def fresh_tokens(history: int, step: Step) -> int:
    """How many new tokens a turn brings after a history of so many."""
    if step.prompt is None:
        return step.new
    return step.prompt - _kept(history, step)


def _kept(history: int, step: Step) -> int:
    return history if step.prompt is None else min(history, step.prompt - 1)


def content(pool: Sequence[int], key: str, turn: int, count: int) -> list[int]:
    """Token ids for one turn, the same for the same key.

    Args:
        pool: ids of ordinary text.
    """
    return random.Random(f"{key}/{turn}").choices(pool, k=count)


def parse_lengths(text: str) -> tuple[int, ...]:
    """`2k,4000` as numbers of tokens; `k` is a thousand.

    Raises:
        ValueError: it is something else.
    """
    lengths = []
    for word in text.split(","):
        number = word.strip().lower()
        value = float(number.removesuffix("k")) * (1000 if number.endswith("k") else 1)
        if value < 1 or value != int(value):
            raise ValueError(f"`{word}` is no length")
        lengths.append(int(value))
    return tuple(dict.fromkeys(lengths))
