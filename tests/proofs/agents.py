"""Clients that do to their histories what agents do, from a seed. No I/O.

Each agent has one conversation: a system prompt, then what was said and answered. Half of them give
it a name. They keep token ids (completions) or messages (chats); chats keep the text that a client
sees, so that what the random model says in invalid UTF-8 comes back as other tokens, and some strip
it too.

`MIX` is how often what happens. Most turns append, as in the traces that people publish of coding
and support agents; the rest is there to be wrong about.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pdctl.observe.turns import Turn

Kind = Literal[
    "first", "append", "late", "regenerate", "retry", "twins", "side", "edit", "cut", "truncate",
    "compact", "system",
]  # fmt: skip
Piece = Any  # a message of a chat, or the token ids of a part of a prompt

MIX: Mapping[Kind, int] = {
    "append": 64,
    "regenerate": 6,  # the same prompt again, after its answer
    "retry": 4,  # the client goes away in the middle of the answer and sends the turn again
    "twins": 4,  # two turns that continue the same history, at once
    "side": 6,  # under the conversation's name, but not part of it, such as a title
    "edit": 5,  # something said earlier is changed; what came after it is kept, or not
    "cut": 5,  # back to an earlier point, and on from there
    "truncate": 2,  # the oldest turns are left out
    "compact": 2,  # all is replaced by a summary
    "system": 2,  # another system prompt, or other tools
}

LONGEST = 5000
"""Tokens, about, after which an agent compacts its history: as late as the model lets it."""

SYSTEM_PROMPTS = 3
FIRST_WORDS = 4
_WORDS = (
    "the", "quick", "brown", "fox", "jumps", "over", "lazy", "dogs", "naïve", "café", "Straße",
    "señor", "日本", "語", "привет", "мир", "🙂", "🚀", "x=1;", '{"a":[1,2]}', "1000", "tools?",
    "e\u0301", "\u200d",
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """What an agent does next.

    Attributes:
        requests: fields of `TurnRequest`, one set a request; those of twins are sent at once.
        hang_up: leave after so many events of the answer, then send the same again; 0 for no.
        pause: seconds to wait before, in TTLs of the agent's router.
    """

    kind: Kind
    requests: tuple[dict[str, Any], ...]
    hang_up: int = 0
    pause: float = 0.0


class Form(ABC):
    """How a client keeps its history."""

    @abstractmethod
    def said(self, rng: random.Random, tokens: int) -> Piece:
        """Something new that a user or a tool says, about so long."""

    @abstractmethod
    def system(self, seed: int, number: int) -> Piece:
        """One of the system prompts that a team shares."""

    @abstractmethod
    def answer(self, turn: Turn) -> Piece:
        """An answer as the client keeps it."""

    @abstractmethod
    def length(self, pieces: Sequence[Piece]) -> int:
        """About how many tokens."""

    @abstractmethod
    def request(self, pieces: Sequence[Piece], system: int) -> dict[str, Any]:
        """The fields of `TurnRequest` that hold the history."""


class Ids(Form):
    """Token ids, exact."""

    def said(self, rng: random.Random, tokens: int) -> list[int]:
        """Random ids of plain text."""
        return rng.choices(range(8, 512), k=tokens)

    def system(self, seed: int, number: int) -> list[int]:
        """120 tokens and more."""
        return self.said(random.Random(seed + number), 120 + 40 * number)

    def answer(self, turn: Turn) -> list[int]:
        """The ids that the engine generated."""
        assert turn.token_ids is not None
        return list(turn.token_ids)

    def length(self, pieces: Sequence[Piece]) -> int:
        """Exact here."""
        return sum(map(len, pieces))

    def request(self, pieces: Sequence[Piece], system: int) -> dict[str, Any]:
        """A completion of ids."""
        return {"prompt": [token for piece in pieces for token in piece]}


@dataclass
class Chat(Form):
    """Messages.

    Attributes:
        strips: the client cuts white space and what is no character off each answer.
    """

    strips: bool = False

    def said(self, rng: random.Random, tokens: int) -> dict[str, Any]:
        """Words of many scripts."""
        words = ""
        while _length(words) < tokens:
            words += rng.choice(_WORDS) + " "
        return {"role": "user", "content": words.strip()}

    def system(self, seed: int, number: int) -> dict[str, Any]:
        """A system message; `request` adds tools to some."""
        rng = random.Random(seed + number)
        return {**self.said(rng, 120 + 40 * number), "role": "system"}

    def answer(self, turn: Turn) -> dict[str, Any]:
        """The message of the answer."""
        message = dict(turn.message)
        if self.strips and message.get("content"):
            message["content"] = message["content"].replace("\ufffd", "").strip()
        return message

    def length(self, pieces: Sequence[Piece]) -> int:
        """About."""
        return sum(_length(str(piece.get("content") or "")) for piece in pieces)

    def request(self, pieces: Sequence[Piece], system: int) -> dict[str, Any]:
        """A chat; with every third system prompt come tools."""
        request: dict[str, Any] = {"messages": list(pieces)}
        if system % SYSTEM_PROMPTS == SYSTEM_PROMPTS - 1:
            request["extra"] = {"tools": [_tool(system)]}
        return request


@dataclass
class Agent:
    """One conversation.

    Attributes:
        name: what the client calls it; None when it does not.
        team: seed of the words that all of its team share, and no other team.
        hurried: its router has a short TTL, which some of its turns miss.
        longest: tokens, about, after which it compacts its history.
        steps: how many steps were made.
    """

    name: str | None
    tenant: str
    team: int
    form: Form
    rng: random.Random
    hurried: bool = False
    longest: int = LONGEST
    steps: int = 0
    _pieces: list[Piece] = field(default_factory=list)
    _asked: list[Piece] = field(default_factory=list)
    _system: int = 0

    def next(self) -> Step:
        """What it does now; `answered` has to follow before the next."""
        self.steps += 1
        if not self._pieces:
            return self._first()
        kind = self._kind()
        if kind == "side":
            return Step(
                kind,
                (self._request([self.form.system(self.team, SYSTEM_PROMPTS), self._pieces[1]]),),
            )
        if kind == "twins":
            ways = [[*self._pieces, self._said()] for _ in range(2)]
            self._asked = ways[0]
            return Step(kind, tuple(self._request(way) for way in ways))
        self._asked = self._history(kind)
        pause = 1.5 if kind == "late" else 0.0
        if kind == "retry":
            # Long enough that decode is not through before the client is gone.
            long = {"stream": True, "max_tokens": 120, "ignore_eos": True}
            request = {**self._request(self._asked), **long}
            return Step(kind, (request,), hang_up=self.rng.randrange(1, 6))
        return Step(kind, (self._request(self._asked),), pause=pause)

    def answered(self, step: Step, turn: Turn) -> None:
        """The answer to the (first) request of the step has come."""
        if step.kind != "side":
            self._pieces = [*self._asked, self.form.answer(turn)]

    def _kind(self) -> Kind:
        if self.form.length(self._pieces) > self.longest:
            return "compact"
        kind: Kind = self.rng.choices(tuple(MIX), weights=tuple(MIX.values()))[0]
        if kind == "append" and self.hurried and self.rng.random() < 0.4:
            return "late"
        if kind in ("cut", "truncate") and len(self._pieces) < 5:
            return "append"
        return kind

    def _first(self) -> Step:
        self._system = self.rng.randrange(SYSTEM_PROMPTS)
        said = self._said()
        if self.rng.random() < 0.3:
            # Many conversations begin alike, such as an agent's with its task.
            said = self.form.said(
                random.Random(self.team + 500 + self.rng.randrange(FIRST_WORDS)), 40
            )
        self._asked = [self.form.system(self.team, self._system), said]
        return Step("first", (self._request(self._asked),))

    def _history(self, kind: Kind) -> list[Piece]:
        """The history as it is sent for a kind of turn."""
        match kind:
            case "regenerate":
                return self._asked
            case "edit":
                return self._edit()
            case "cut":
                return [*self._pieces[: self.rng.randrange(3, len(self._pieces), 2)], self._said()]
            case "truncate":
                oldest = 1 + (len(self._pieces) - 1) // 4 * 2
                return [self._pieces[0], *self._pieces[oldest:], self._said()]
            case "compact":
                return [self._pieces[0], self.form.said(self.rng, 150)]
            case "system":
                self._system = (self._system + 1) % SYSTEM_PROMPTS
                return [self.form.system(self.team, self._system), *self._pieces[1:], self._said()]
            case _:
                return [*self._pieces, self._said()]

    def _edit(self) -> list[Piece]:
        at = self.rng.randrange(1, len(self._pieces), 2)
        edited = [*self._pieces[:at], self._said()]
        if self.rng.random() < 0.5:
            return edited
        return [*edited, *self._pieces[at + 1 :], self._said()]

    def _said(self) -> Piece:
        """Mostly a sentence, sometimes a page that a tool gave."""
        least, most = self.rng.choices(((10, 50), (80, 200), (250, 450)), weights=(14, 4, 2))[0]
        return self.form.said(self.rng, self.rng.randrange(least, most))

    def _request(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        return {
            **self.form.request(pieces, self._system),
            "max_tokens": self.rng.randrange(24, 72),
            "ignore_eos": self.rng.random() < 0.7,
            "stream": self.rng.random() < 0.7,
            "conversation_id": self.name,
        }


def team(seed: int, size: int, longest: int = LONGEST) -> list[Agent]:
    """Agents of two tenants, all forms and habits; the same for the same seed.

    Two neighbours, one of each tenant, begin with the same words: what one has left must not
    serve the other.
    """
    rng = random.Random(seed)
    agents = []
    for place in range(size):
        if place % 2 == 0:
            habits, beginning = place // 2, rng.randrange(10**9)
        form: Form = Ids() if habits % 2 else Chat(strips=habits % 4 == 2)
        agents.append(
            Agent(
                name=f"agent-{rng.randrange(10**6)}" if rng.random() < 0.5 else None,
                tenant="ab"[place % 2],
                team=seed * 1000,
                form=form,
                rng=random.Random(beginning),
                hurried=habits % 3 == 1,
                longest=longest,
            )
        )
    return agents


def _length(text: str) -> int:
    """Tokens, by bytes: the built-in model's tokenizer knows few words."""
    return len(text.encode()) * 3 // 4


def _tool(number: int) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    function = {"name": f"weather_{number}", "description": "Rain?", "parameters": parameters}
    return {"type": "function", "function": function}
