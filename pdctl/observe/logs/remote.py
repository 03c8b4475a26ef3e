"""Logs that are on other machines: brought here into files of their own, once or for as long as
they are followed. What reads logs reads those files and knows nothing of hosts.
"""

import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from pdctl.base.command import command
from pdctl.base.errors import PdctlError, UnreachableError
from pdctl.observe.logs.read import Source
from pdctl.state.model import ProcessRecord
from pdctl.targets.base import Host
from pdctl.targets.hostlog import JOURNAL
from pdctl.targets.privilege import root_words

MOST_BYTES = 64 << 20
"""Of one log, the last so many bytes are brought here."""
_PIECE = 4 << 20
_PERIOD_S = 1.0
_LIMIT_S = 120.0
_AT_ONCE = 32
_CURSOR = re.compile(r'"__CURSOR"\s*:\s*"([^"]+)"')

# Says the size first, so that it is known how much of what follows is whose.
_READ = (
    's=$(stat -c %s -- "$1" 2>/dev/null) || s=-; echo "$s"; '
    '[ "$s" != - ] && [ "$s" -gt "$2" ] && tail -c +"$(($2 + 1))" -- "$1" | head -c "$3"; true'
)

Say = Callable[[str], None]


@dataclass
class _Reader:
    """One log on its host, and the file here that gets what is read of it.

    Attributes:
        place: bytes of a file that are here already; None before the first look.
        cursor: the journal's, of the last line that is here.
        since: wall clock; of a journal only lines from then on.
    """

    host: Host
    record: ProcessRecord
    path: str
    since: float | None = None
    place: int | None = None
    cursor: str | None = None
    root: tuple[str, ...] | None = None
    lost: bool = False
    problems: list[str] = field(default_factory=list)

    @property
    def source(self) -> Source:
        return Source(self.record.name, (self.path,), self.record.role, self.problems)

    def read(self, most: int) -> bool:
        """Bring the next piece here; True when there may be more.

        Raises:
            PdctlError: the host does not answer.
        """
        if self.record.log.startswith(JOURNAL):
            return self._read_journal(most)
        return self._read_file(most)

    def _read_file(self, most: int) -> bool:
        log = self.record.log
        if self.place is None:
            self.place = max(0, (self._ask_file(2**62, 0)[0] or 0) - most)
            if self.place:
                kept = f"the last {most >> 20} MiB" if most >= 1 << 20 else f"the last {most} bytes"
                self.problems.append(f"{self.host.name}: only {kept} of {log} were read")
        size, text = self._ask_file(self.place, min(most, _PIECE))
        if size is None:
            return False
        if size < self.place:  # it was emptied or put aside
            self.place = 0
            return True
        self._append(text)
        self.place += min(size - self.place, _PIECE, most)
        return size > self.place

    def _ask_file(self, place: int, most: int) -> tuple[int | None, str]:
        words = ("sh", "-c", _READ, "sh", self.record.log, str(place), str(most))
        size, _, rest = self.host.run(command(*words), timeout=_LIMIT_S).stdout.partition("\n")
        return (int(size), rest) if size.isdigit() else (None, "")

    def _read_journal(self, most: int) -> bool:
        if self.root is None:
            self.root = root_words(self.host)
        since = ("--since", f"@{int(self.since)}") if self.since and not self.cursor else ()
        after = ("--after-cursor", self.cursor) if self.cursor else ()
        unit = self.record.log.removeprefix(JOURNAL)
        reader = (*self.root, "journalctl", "--quiet", "--no-pager", "--output", "json")
        words = (*reader, "--unit", unit, *since, *after)
        # Without a place to begin, the end of it; with one, all that came since.
        cut = "head" if after else "tail"
        script = f'n=$1; shift; "$@" | {cut} -c "$n"'
        result = self.host.run(
            command("sh", "-c", script, "sh", str(most), *words), timeout=_LIMIT_S
        )
        text, full = result.stdout, len(result.stdout) >= most
        if full and not after:
            text = text.partition("\n")[2]
        # A line that was cut off comes whole with the next look, as its cursor is not taken.
        whole = text.rpartition("\n")[0]
        if not whole and (said := result.stderr.splitlines()):
            raise UnreachableError(
                f"the journal cannot be read: {said[-1]}", where=self.host.name, detail=said
            )
        found = _CURSOR.findall(whole)
        if found:
            self.cursor = found[-1]
            self._append(whole + "\n")
        return bool(found) and full

    def _append(self, text: str) -> None:
        with open(self.path, "ab") as file:
            file.write(text.encode(errors="replace"))


@contextmanager
def brought_here(
    hosts: Mapping[str, Host], records: Sequence[ProcessRecord], *, since: float | None = None
) -> Iterator[list[Source]]:
    """The logs as they are now, of all hosts at the same time; gone when the context ends.

    A host that does not answer is a problem of its sources, not an error.

    Raises:
        UnreachableError: no host answers.
    """
    with tempfile.TemporaryDirectory(prefix="pdctl-logs-") as folder:
        readers = [_reader(hosts, record, folder, since) for record in records]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            errors = list(pool.map(lambda each: _all_of(each, MOST_BYTES), readers))
        failed = [error for error in errors if error is not None]
        if failed and len(failed) == len(readers):
            raise failed[0]
        yield [reader.source for reader in readers]


def _reader(
    hosts: Mapping[str, Host], record: ProcessRecord, folder: str, since: float | None
) -> _Reader:
    if record.host not in hosts:
        raise UnreachableError(
            f"the configuration has no host `{record.host}` any more", where=record.name
        )
    path = os.path.join(folder, f"{record.name}.log")
    with open(path, "wb"):
        pass
    return _Reader(hosts[record.host], record, path, since)


def _all_of(reader: _Reader, most: int) -> PdctlError | None:
    try:
        while reader.read(most):
            pass
    except PdctlError as error:
        reader.problems.append(f"{reader.record.name} on {reader.host.name}: {error.message}")
        return error
    return None


@contextmanager
def followed(
    hosts: Mapping[str, Host],
    records: Sequence[ProcessRecord],
    say: Say,
    *,
    before: int,
    period: float = _PERIOD_S,
) -> Iterator[list[Source]]:
    """The same, and what is written from then on, as long as the context lasts.

    A host that is lost is told of, asked again, and goes on where it was.

    Args:
        before: bytes before the end that come first.
        period: seconds between two looks.

    Raises:
        UnreachableError: no host answers.
    """
    end = threading.Event()
    with tempfile.TemporaryDirectory(prefix="pdctl-logs-") as folder:
        readers = [_reader(hosts, record, folder, None) for record in records]
        pool = ThreadPoolExecutor(_AT_ONCE)
        try:
            errors = list(pool.map(lambda each: _first(each, before, say), readers))
            failed = [error for error in errors if error is not None]
            if failed and len(failed) == len(readers):
                raise failed[0]
            pump = threading.Thread(
                target=_pump, args=(readers, pool, say, end, period), daemon=True
            )
            pump.start()
            try:
                yield [reader.source for reader in readers]
            finally:
                end.set()
                pump.join(_LIMIT_S)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _first(reader: _Reader, before: int, say: Say) -> PdctlError | None:
    """Where it begins is where it is now: nobody is told what was left out."""
    error = _once(reader, before, say)
    reader.problems.clear()
    return error


def _pump(
    readers: Sequence[_Reader],
    pool: ThreadPoolExecutor,
    say: Say,
    end: threading.Event,
    period: float,
) -> None:
    while not end.wait(period):
        list(pool.map(lambda each: _once(each, _PIECE, say), readers))


def _once(reader: _Reader, most: int, say: Say) -> PdctlError | None:
    name = f"{reader.record.name} on {reader.host.name}"
    try:
        while reader.read(most):
            pass
    except PdctlError as error:
        if not reader.lost:
            say(f"{name} is lost: {error.message}; its log is asked for again and again")
        reader.lost = True
        return error
    if reader.lost:
        say(f"{name} is back, and its log is read on")
    reader.lost = False
    return None
