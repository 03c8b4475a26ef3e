"""`pd.yaml` from disk to a checked `Config`, or to one error that lists everything wrong in it."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pdctl.base.errors import NotFoundError
from pdctl.base.problems import ConfigError, Loc, Problem
from pdctl.config import checks as own_checks
from pdctl.config import paths, words
from pdctl.config.model import Config
from pdctl.config.syntax import MAX_BYTES, NotYamlError, compose
from pdctl.config.tree import Tree, grow

STDIN = "-"
STDIN_NAME = "<stdin>"

Check = Callable[[Config], Iterable[Problem]]
"""Judges a configuration that is valid key by key; its problems need no place."""

_INIT = "`pdctl init` writes a configuration to start from"


@dataclass(frozen=True)
class Loaded:
    """A configuration without problems, and what is needed to point into its file.

    Attributes:
        config: what the file says; paths of this machine are absolute.
        file: how messages name the file.
    """

    config: Config
    file: str
    _tree: Tree

    def place(self, problem: Problem) -> Problem:
        """The problem with line and column: of its key, or of the nearest parent in the file."""
        return self._tree.place(problem)

    def error(self, problems: Sequence[Problem], hints: Sequence[str] = ()) -> ConfigError:
        """One error that carries all the problems, each with its place."""
        return ConfigError(self.file, [self.place(problem) for problem in problems], hints)


def load(path: str | Path, *, checks: Sequence[Check] = ()) -> Loaded:
    """Read and check a configuration file; `-` is stdin.

    Args:
        path: the file.
        checks: more judges, such as the engine's; what they find is listed with all the rest.

    Raises:
        ConfigError: with every problem of the file, each with line and column.
        NotFoundError: when there is no such file or it cannot be read.
    """
    if str(path) == STDIN:
        return loads(_stdin(), file=STDIN_NAME, base=_folder(Path("stdin")), checks=checks)
    data = _read(Path(path))
    return loads(data, file=display(path), base=_folder(Path(path)), checks=checks)


def loads(data: bytes, *, file: str, base: Path, checks: Sequence[Check] = ()) -> Loaded:
    """Check the bytes of a configuration file; the same as `load` without reading.

    Args:
        data: what is in the file.
        file: how messages name it.
        base: directory that relative paths in it start from.
        checks: as in `load`.

    Raises:
        ConfigError: as in `load`.
    """
    tree = _tree(data, file)
    config, found, bad = _validated(tree)
    if config is not None:
        config = paths.absolute(config, base)
        found += _cross(config, bad, checks)
    if config is None or found:
        raise ConfigError(file, [tree.place(problem) for problem in found])
    return Loaded(config, file, tree)


def display(path: str | Path) -> str:
    """A path as people would type it here: relative when it is below the working directory."""
    try:
        absolute, relative = os.path.abspath(path), os.path.relpath(path)
    except (OSError, ValueError):  # the working directory is gone
        return str(path)
    return absolute if relative.startswith("..") else relative


def _tree(data: bytes, file: str) -> Tree:
    try:
        root = compose(data)
    except NotYamlError as error:
        raise ConfigError(file, [error.problem]) from None
    tree = Tree(None, {}, ()) if root is None else grow(root)
    if isinstance(tree.value, dict):
        return tree
    if tree.value is None and not tree.problems:
        raise ConfigError(file, [Problem((), "is empty")], [_INIT])
    problem = Problem((), "expected keys such as `name:` and `model:` at the top level")
    raise ConfigError(file, tree.problems or [tree.place(problem)])


# --- validation ----------------------------------------------------------------------------------


def _validated(tree: Tree) -> tuple[Config | None, list[Problem], list[Loc]]:
    """The configuration, the problems of single keys, and the keys it is without.

    With problems, the configuration is what is left when their keys are taken out, if that is
    enough for one: so that contradictions between the other keys show in the same run.
    """
    found = list(tree.problems)
    bad = [problem.loc for problem in found if _on_value(problem, tree)]
    try:
        config = Config.model_validate(tree.value)
    except ValidationError as error:
        more = [each for each in words.problems(error, tree) if each.loc not in bad]
        found += more
        bad += [each.loc for each in more]
    else:
        return config, found, bad
    try:
        return Config.model_validate(_without(tree.value, bad)), found, bad
    except ValidationError:
        return None, found, bad


def _on_value(problem: Problem, tree: Tree) -> bool:
    spot = tree.spots.get(problem.loc)
    return spot is not None and spot.value == (problem.line, problem.column)


_STAND_IN: dict[Loc, object] = {
    ("name",): "unnamed",
    ("model",): {"id": "unnamed"},
    ("model", "id"): "unnamed",
}
"""Required keys that nothing else depends on."""


def _without(value: object, locs: Sequence[Loc]) -> object:
    value = deepcopy(value)
    for loc in locs:
        *above, last = _removable(loc) or (None,)
        parent: Any = value
        for part in above:
            parent = _get(parent, part)
        if isinstance(parent, dict):
            parent.pop(last, None)
            if loc in _STAND_IN:
                parent[last] = _STAND_IN[loc]
    return value


def _removable(loc: Loc) -> Loc:
    # Taking an item out of a list would shift the paths of those behind it.
    while loc and isinstance(loc[-1], int):
        loc = loc[:-1]
    return loc


def _get(parent: object, part: str | int | None) -> object:
    if isinstance(parent, dict):
        return parent.get(part)
    if isinstance(parent, list) and isinstance(part, int) and part < len(parent):
        return parent[part]
    return None


def _cross(config: Config, bad: Sequence[Loc], checks: Sequence[Check]) -> list[Problem]:
    found: list[Problem] = []
    for check in (own_checks.problems, *checks):
        told = {problem.loc for problem in found}
        found += [problem for problem in check(config) if problem.loc not in told]
    # A bad key was taken out and has its default here: nothing said about that is in the file.
    gone = [_removable(loc) for loc in bad]
    return [problem for problem in found if not any(_concerns(problem, loc) for loc in gone)]


def _concerns(problem: Problem, gone: Loc) -> bool:
    if problem.loc[: len(gone)] == gone:
        return True
    said = f"{problem.message} {problem.hint or ''}"
    return any(f"`{key}`" in said for key in (Problem(gone, "").key, str(gone[-1])))


# --- reading -------------------------------------------------------------------------------------


def _folder(path: Path) -> Path:
    try:
        return path.absolute().parent
    except OSError:  # the working directory is gone
        return path.parent


def _stdin() -> bytes:
    stream = getattr(sys.stdin, "buffer", None)
    if stream is None:  # a text stream put in its place
        return sys.stdin.read(MAX_BYTES + 1).encode("utf-8", "replace")
    data: bytes = stream.read(MAX_BYTES + 1)
    return data


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise _missing(path) from None
    except IsADirectoryError:
        raise _unreadable(path, "is a directory, not a file") from None
    except PermissionError:
        raise _unreadable(path, "may not be read by this user") from None
    except (OSError, ValueError) as error:
        # ValueError: a NUL in the name.
        reason = getattr(error, "strerror", None) or str(error)
        raise _unreadable(path, f"cannot be read: {reason}") from None


def _missing(path: Path) -> NotFoundError:
    hints = [_INIT, "`--file FILE` or PDCTL_FILE names another file"]
    other = path.with_suffix({".yaml": ".yml", ".yml": ".yaml"}.get(path.suffix, ".yaml"))
    if path.name and other != path and other.is_file():
        hints.insert(0, f"there is `{display(other)}`: add `--file {display(other)}`")
    return NotFoundError(
        f"there is no file `{display(path)}`",
        where=str(_folder(path)),
        hints=hints,
    )


def _unreadable(path: Path, why: str) -> NotFoundError:
    return NotFoundError(f"`{display(path)}` {why}", where=str(_folder(path)))
