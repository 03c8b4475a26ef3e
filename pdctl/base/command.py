"""Commands are values. Running them is a target's job.

One value serves `render`, `--dry-run`, audit lines and the run itself, so what is shown is what
runs. Secrets are parts of their own type: printing uses `masked()`, only targets use `argv()`.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Union

MASK = "***"
_RESERVED = frozenset(
    (
        *("case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function"),
        *("if", "in", "select", "then", "time", "until", "while"),
    )
)


@dataclass(frozen=True)
class Secret:
    """A value that reaches the process but never a screen, a log or a rendered file."""

    value: str

    def __repr__(self) -> str:
        return "Secret(***)"


Part = Union[str, Secret]  # noqa: UP007 - also runs on hosts whose Python is 3.9


def reveal(part: Part) -> str:
    """The real text; for targets only."""
    return part.value if isinstance(part, Secret) else part


def mask(part: Part) -> str:
    """The text for people."""
    return MASK if isinstance(part, Secret) else part


@dataclass(frozen=True)
class Command:
    """A program, its arguments and the environment it needs on top of the target's own.

    Attributes:
        parts: program and arguments, one item an argument.
        env: variables to set. Anything not named here comes from the target's allow-list.
        cwd: working directory, or None for the target's default.
    """

    parts: tuple[Part, ...]
    env: Mapping[str, Part] = field(default_factory=dict)
    cwd: str | None = None

    def argv(self) -> list[str]:
        """Real arguments; for targets only."""
        return [reveal(part) for part in self.parts]

    def environ(self) -> dict[str, str]:
        """Real environment additions; for targets only."""
        return {name: reveal(value) for name, value in self.env.items()}

    def masked_argv(self) -> list[str]:
        """Arguments with secrets masked."""
        return [mask(part) for part in self.parts]

    def masked_environ(self) -> dict[str, str]:
        """Environment with secrets masked."""
        return {name: mask(value) for name, value in self.env.items()}

    def shell(self) -> str:
        """One line for POSIX `sh`, secrets revealed; for targets only."""
        return _line(self.environ(), self.argv(), self.cwd)

    def masked(self) -> str:
        """One line for POSIX `sh`, fit to print."""
        return _line(self.masked_environ(), self.masked_argv(), self.cwd)


def _line(env: Mapping[str, str], argv: list[str], cwd: str | None) -> str:
    words = [f"{name}={shlex.quote(value)}" for name, value in env.items()]
    words += [_program(argv[0]), *(shlex.quote(word) for word in argv[1:])] if argv else []
    line = " ".join(words)
    return f"cd {shlex.quote(_folder(cwd))} && {line}" if cwd else line


def _program(word: str) -> str:
    """The first word: bare, `a=b` would be an assignment and `if` the begin of a sentence."""
    quoted = shlex.quote(word)
    return f"'{quoted}'" if quoted == word and ("=" in word or word in _RESERVED) else quoted


def _folder(path: str) -> str:
    """`-` would be the folder before, and `-P` an option."""
    return f"./{path}" if path.startswith("-") else path


def command(*parts: Part, env: Mapping[str, Part] | None = None, cwd: str | None = None) -> Command:
    """Write a command the short way: `command("git", "status")`."""
    return Command(parts=parts, env=env or {}, cwd=cwd)
