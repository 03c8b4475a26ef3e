"""What a signature is: a kind of line that means something to whoever runs a pair."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pdctl.base.fix import Fix, Severity
from pdctl.base.process import RoleName

Role = RoleName | Literal["host"]
"""Who writes the line; `host` is the kernel or the log's own keeper."""

ENGINES: tuple[Role, ...] = ("prefill", "decode")
ANYONE: tuple[Role, ...] = ("prefill", "decode", "router")
ROUTER_LITERAL = "pdctl.router: "
"""The name of the router's logger, in every line of it."""


@dataclass(frozen=True)
class Signature:
    """One row.

    Attributes:
        id: stable and dotted, never used for anything else later.
        title: what the line says happened, in a few words.
        literals: one of them is in every line that matches: plain ASCII that no JSON escapes.
        pattern: searched in the message, without prefixes of engine, container and time. Its named
            groups are the fields of an event.
        severity: of one such line.
        meaning: what it means for the user.
        fix: what to do about it.
        source: where the text and its meaning were found: read or run, in what.
        roles: who writes it.
        versions: of what writes it.
        good: a sign that something works; it is counted, and nothing is to be done.
        generic: says that something failed, not what; a line of its traceback that says more
            gives the event its id.
        follows: ids of causes; where one of them was found too, this one is its consequence.
        derived: no line says it by itself; it is concluded from several (`observe.logs.judge`).
    """

    id: str
    title: str
    literals: tuple[str, ...]
    pattern: str
    severity: Severity
    meaning: str
    fix: Fix
    source: str
    roles: tuple[Role, ...] = ENGINES
    versions: str = "all that were read"
    good: bool = False
    generic: bool = False
    follows: tuple[str, ...] = ()
    derived: bool = False

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The pattern, compiled once."""
        return re.compile(self.pattern)

    @cached_property
    def loose(self) -> bool:
        """Whether it may stand anywhere in a message, so also in a prompt that was logged."""
        return not self.good and not self.pattern.startswith("^")

    @property
    def fields(self) -> tuple[str, ...]:
        """What is taken out of a line."""
        return tuple(self.regex.groupindex)

    @property
    def docs(self) -> str:
        """Where the signature is explained."""
        return f"docs/signatures.md#{self.id.replace('.', '')}"


NOTHING = Fix("nothing is to be done")
NUMBER = r"\d{1,15}(?:\.\d{1,15})?"
"""A number that is one, whatever a line says: such groups are computed with."""
COUNT = r"\d{1,15}"
