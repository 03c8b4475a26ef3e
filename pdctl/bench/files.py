"""A run's folder: raw rows as they come, so that whatever ends a run early leaves what there is."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pdctl.base.errors import NotFoundError, UsageError
from pdctl.bench.rows import CellRow, TurnRow

SCHEMA = 1
RUN, TURNS, CELLS, SUMMARY = "run.json", "turns.ndjson", "cells.ndjson", "summary.json"
_Read = TypeVar("_Read", TurnRow, CellRow)


@dataclass(frozen=True)
class Run:
    """What is known of a run.

    Attributes:
        about: when, what was asked, and of whom (`run.json`).
        turns: measured turns of the last attempt of each cell, in order.
        cells: the last attempt of each cell.
        name: of the folder.
    """

    name: str
    about: Mapping[str, Any]
    turns: tuple[TurnRow, ...]
    cells: tuple[CellRow, ...]


@dataclass
class Folder:
    """A run's folder, open for writing.

    Attributes:
        cells: those that are there.
    """

    path: Path
    about: dict[str, Any]
    cells: list[CellRow] = field(default_factory=list)

    def write_about(self) -> None:
        """Write `run.json`."""
        _write_json(self.path / RUN, self.about)

    def add_turn(self, row: TurnRow) -> None:
        """One more turn."""
        _append(self.path / TURNS, row.as_dict())

    def add_cell(self, row: CellRow) -> None:
        """One more cell, or another attempt of one."""
        self.cells.append(row)
        _append(self.path / CELLS, row.as_dict())

    def done(self) -> set[str]:
        """Keys of the cells whose last attempt is complete."""
        last = {cell.key: cell for cell in self.cells}
        return {key for key, cell in last.items() if cell.complete}

    def attempt(self, key: str) -> int:
        """The number of the next attempt of a cell."""
        return 1 + max((cell.attempt for cell in self.cells if cell.key == key), default=0)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write `summary.json`."""
        _write_json(self.path / SUMMARY, summary)


def create(path: Path, about: Mapping[str, Any]) -> Folder:
    """A new folder.

    Raises:
        UsageError: it has a run already.
        NotFoundError: it cannot be made.
    """
    if (path / RUN).exists():
        raise UsageError(
            "this folder has a run already",
            where=str(path),
            hints=[f"`pdctl bench --resume {path}` goes on with it", "name another folder"],
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotFoundError(f"cannot make the folder: {error.strerror}", where=str(path)) from error
    folder = Folder(path, {"schema_version": SCHEMA, **about})
    folder.write_about()
    return folder


def reopen(path: Path) -> Folder:
    """The folder of a run that is to go on.

    Raises:
        NotFoundError: there is no run.
        BadAnswerError: its files cannot be used.
    """
    about = _about(path)
    return Folder(path, dict(about), list(_rows(path / CELLS, CellRow)))


def read(path: Path) -> Run:
    """A run, whole or not.

    Raises:
        NotFoundError: there is none.
        BadAnswerError: its files cannot be used.
    """
    about = _about(path)
    last = {cell.key: cell for cell in _rows(path / CELLS, CellRow)}
    counts = {(cell.key, cell.attempt) for cell in last.values()}
    turns = [t for t in _rows(path / TURNS, TurnRow) if (t.cell, t.attempt) in counts]
    return Run(path.resolve().name, about, tuple(turns), tuple(last.values()))


def _about(path: Path) -> Mapping[str, Any]:
    file = path / RUN
    try:
        value = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise NotFoundError(
            f"there is no run: {error}", where=str(file), expected="a folder of `pdctl bench`"
        ) from error
    if not isinstance(value, dict) or value.get("schema_version") != SCHEMA:
        raise NotFoundError(
            "this is no run of this version of pdctl", where=str(file), expected=f"schema {SCHEMA}"
        )
    return value


def _rows(file: Path, kind: type[_Read]) -> Iterable[_Read]:
    if not file.exists():
        return
    with file.open() as lines:
        for line in lines:
            # A run that was killed may leave half a line at the end.
            if line.endswith("\n"):
                yield kind.from_dict(json.loads(line))


def _append(file: Path, value: Mapping[str, Any]) -> None:
    with file.open("a") as rows:
        rows.write(json.dumps(value, ensure_ascii=False) + "\n")


def _write_json(file: Path, value: Mapping[str, Any]) -> None:
    scratch = file.with_name(f".{file.name}.new")
    scratch.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
    scratch.replace(file)
