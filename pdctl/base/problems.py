"""A problem in a configuration file, with its place; a file can have many, all are shown."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pdctl.base.errors import PdctlError
from pdctl.base.exits import ExitCode

Loc = tuple[str | int, ...]
"""A path into the file, such as `("target", "prefill", "port")`."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong at one key.

    Attributes:
        loc: path of the key; empty for the whole file.
        message: what was found and what is allowed.
        hint: what to write instead, when there is a good guess.
        line, column: 1-based; 0 until the loader has placed the problem in the file.
        on_key: point at the key itself rather than at its value.
        excerpt: lines of the file with a caret, where words alone would not show the place.
    """

    loc: Loc
    message: str
    hint: str | None = None
    line: int = 0
    column: int = 0
    on_key: bool = False
    excerpt: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The key's path as people write it, `target.hosts[0].port`."""
        text = ""
        for part in self.loc:
            if isinstance(part, int):
                text += f"[{part}]"
            else:
                name = "".join(char if char.isprintable() else "�" for char in part)
                text += f".{name}" if text else name
        return text

    def at(self, line: int, column: int) -> "Problem":
        """The same problem, placed."""
        return replace(self, line=line, column=column)


class ConfigError(PdctlError):
    """The configuration is invalid. Carries every problem found, in file order."""

    exit_code = ExitCode.CONFIG

    def __init__(self, file: str, problems: Sequence[Problem], hints: Sequence[str] = ()) -> None:
        self.file = file
        self.problems = tuple(sorted(problems, key=lambda p: (p.line, p.column, p.key)))
        count = len(self.problems)
        super().__init__(
            f"{file} has {count} problem{'' if count == 1 else 's'}",
            hints=hints,
            detail=[line for problem in self.problems for line in self._lines(problem)],
        )

    def _lines(self, problem: Problem) -> list[str]:
        return [self._line(problem), *(f"  {line}" for line in problem.excerpt)]

    def _line(self, problem: Problem) -> str:
        place = f"{self.file}:{problem.line}:{problem.column}" if problem.line else self.file
        key = f" {problem.key}" if problem.key else ""
        hint = f" ({problem.hint})" if problem.hint else ""
        return f"{place}{key}: {problem.message}{hint}"

    def as_dict(self) -> dict[str, object]:
        """All problems, each with its place, for `--json`."""
        return {
            "error": self.message,
            "file": self.file,
            "problems": [
                {
                    "line": problem.line,
                    "column": problem.column,
                    "key": problem.key,
                    "message": problem.message,
                    "hint": problem.hint,
                }
                for problem in self.problems
            ],
            "exit_code": int(self.exit_code),
        }
