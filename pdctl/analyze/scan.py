"""One pass over all logs, on all cores, and a second over what was out of order."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing import get_context
from typing import TypeVar

from pdctl.analyze.importers import kind_of, reader_of
from pdctl.analyze.lines import BLOCK, Log, Part, blocks, parts_of
from pdctl.analyze.read import LineReader, Reading, is_rich
from pdctl.analyze.record import Row
from pdctl.analyze.sums import Sums
from pdctl.analyze.turns import Id, Sample, Tally, digest
from pdctl.base.errors import TemporaryError

R = TypeVar("R")

_SMALL = 32 << 20
"""Bytes below which a second process costs more than it saves."""
_LARGE = 512 << 20
"""Bytes after which what a process has found is put together with the rest."""
_PACKED = 8
"""How many times larger a log is than its compressed file, roughly."""
_AT_ONCE = 8_000_000
"""Rows out of order that are sorted in memory at once."""


@dataclass(frozen=True)
class Wanted:
    """How to scan.

    Attributes:
        ttl: seconds, as in `Sums`.
        sample: rows to keep for a replay.
        part: bytes that are read as one; None: what suits the size of the logs.
        cores: processes at once.
    """

    ttl: float
    sample: int = 400_000
    part: int | None = None
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))


@dataclass
class Scanned:
    """What was found.

    Attributes:
        tally: sums over all logs.
        readings: what became of the lines, by name of the log.
        rich: whether a log says more than it must.
    """

    tally: Tally
    readings: dict[str, Reading]
    rich: bool


@dataclass(frozen=True)
class _Job:
    part: Part
    kind: str
    year: int
    rich: bool
    wanted: Wanted
    mask: int

    def reader(self) -> LineReader:
        return reader_of(self.kind, rich=self.rich, year=self.year)


def scan(logs: Sequence[Log], wanted: Wanted) -> Scanned:
    """Read logs to their ends, the oldest first."""
    peeked = sorted((_peek(log) for log in logs), key=lambda each: each.since)
    rich = any(each.rich or each.kind != "requests" for each in peeked)
    total = sum(log.size for log in logs)
    size = wanted.part or max(_SMALL, min(_LARGE, -(-total // wanted.cores)))
    named = [(each, part) for each in peeked for part in _parts(each, size)]
    mask = _mask(sum(each.lines for each in peeked), wanted.sample)
    jobs = [_Job(part, log.kind, log.year, rich, wanted, mask) for log, part in named]
    tally = Tally(Sums(wanted.ttl), Sample(wanted.sample, mask))
    readings: dict[str, Reading] = {log.name: Reading() for log in logs}
    for (log, _), (found, reading) in zip(named, _each(_pass, jobs, wanted.cores), strict=True):
        if tally.rows:
            tally.merge(found)
        else:
            tally = found
        readings[log.log.name].merge(reading)
    if tally.disordered:
        _put_in_order(tally, jobs, wanted.cores)
    return Scanned(tally, readings, rich)


def _parts(log: "_Peeked", size: int) -> list[Part]:
    alone = reader_of(log.kind, rich=False, year=log.year).alone
    return parts_of(log.log, log.log.size if alone else size)


def _mask(lines: float, most: int) -> int:
    """What a sample will come to, so that it need not be kept first and dropped then."""
    mask = 0
    while lines / (mask + 1) > most:
        mask = mask * 2 + 1
    return mask


@dataclass(frozen=True)
class _Peeked:
    """What the first lines of a log tell: when it begins, how many lines it may have."""

    log: Log
    kind: str
    year: int
    since: float
    lines: float
    rich: bool


def _peek(log: Log) -> _Peeked:
    block = next(blocks(Part(log.path, 0, min(log.size, BLOCK), log.packed)), b"")
    kind, rich = kind_of(block), is_rich(block)
    year = datetime.fromtimestamp(os.stat(log.path).st_mtime, UTC).year
    rows = reader_of(kind, rich=rich, year=year).rows(block)
    since = min((row.ts for row in rows if row.ts is not None), default=0.0)
    lines = log.size / max(1, len(block)) * block.count(b"\n")
    return _Peeked(log, kind, year, since, lines * (_PACKED if log.packed else 1), rich)


def _each(work: Callable[[_Job], R], jobs: Sequence[_Job], cores: int) -> Iterator[R]:
    if len(jobs) == 1 or cores == 1:
        yield from map(work, jobs)
        return
    try:
        with ProcessPoolExecutor(
            min(cores, len(jobs)),
            get_context("fork"),
            initializer=signal.signal,
            initargs=(signal.SIGINT, signal.SIG_DFL),  # Ctrl-C ends them without a word
        ) as pool:
            yield from pool.map(work, jobs)
    except BrokenProcessPool as error:
        raise TemporaryError(
            "a process that read the log was killed",
            hints=["if memory ran out, give the logs one after the other"],
        ) from error


def _pass(job: _Job) -> tuple[Tally, Reading]:
    reader = job.reader()
    tally = Tally(Sums(job.wanted.ttl), Sample(job.wanted.sample, job.mask))
    for block in blocks(job.part):
        tally.add(reader.rows(block))
    return tally, reader.reading


def _put_in_order(tally: Tally, jobs: Sequence[_Job], cores: int) -> None:
    """Read again what belongs to conversations that are out of order, and count them anew."""
    share = len(tally.disordered) / len(tally.last)
    turns = int(tally.rows * share / _AT_ONCE) + 1
    for turn in range(turns):
        ids = {id for id in tally.disordered if digest(id) % turns == turn}
        rows: dict[Id, list[Row]] = {}
        for found in _each(_Only(ids), jobs, cores):
            for row in found:
                rows.setdefault(row.conversation_id, []).append(row)  # type: ignore[arg-type]
        tally.reorder(rows)


@dataclass(frozen=True)
class _Only:
    """Reads the rows of some conversations."""

    ids: set[Id]

    def __call__(self, job: _Job) -> list[Row]:
        reader = job.reader()
        found: list[Row] = []
        for block in blocks(job.part):
            found += [row for row in reader.rows(block) if row.conversation_id in self.ids]
        return found
