"""From bytes of one source to events, whole lines at a time. Pure.

Only lines that hold a literal are taken apart, unless every line is wanted. A traceback is one
event, however many lines it has and whoever writes between them.
"""

import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from pdctl.base.fix import SEVERITIES
from pdctl.observe.logs.event import Event, shown
from pdctl.observe.logs.line import LONGEST, Clock, Line, parse
from pdctl.observe.logs.scan import Candidates, Scanner
from pdctl.observe.signatures import BY_ID
from pdctl.observe.signatures.model import Signature

Keep = Callable[[bytes], bool]
"""Whether a line without a signature is wanted too."""

_LONGEST_CARRY = 1 << 20
_BEGINS = b"Traceback (most recent call last)"
_TRACE_LINES = 400
_TRACE_BYTES = 128 << 10
_CAUSES = 100
_LOOK_BACK = 16
_UNDATED = (b"INFO:  ", b"  ", b"\t")
# What may stand between the parts of one traceback.
_JOINS = ("During handling of the above", "The above exception was", "Traceback (most recent")
_EXCEPTION = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(?:: (?P<said>.*))?$")
_HARMLESS = ("INFO", "DEBUG")
"""Levels at which nobody tells of a fault, but requests are logged with what users wrote."""
_MAY_HAVE_ONE = ("ERROR", "CRITICAL", "")
"""Levels of lines behind which a traceback may come; others need not wait for the next line."""
_NOT_INDENTED = re.compile(rb"\n(?=[^ \t])")
_INDENTED = (b" ", b"\t")
_RANKED = re.compile(r"^\[rank\d+\]: ?")


@dataclass(frozen=True)
class _Trace:
    """A traceback: what its lines say, and where in the block they are.

    Attributes:
        solid: up to where there is nothing else behind its first line.
        starts: where lines begin that are its own, and may have others between them.
    """

    messages: tuple[str, ...]
    starts: frozenset[int]
    solid: int = 0

    @property
    def exception(self) -> str:
        """The last line that names one."""
        for message in reversed(self.messages):
            if message[:1].strip() and _EXCEPTION.match(message):
                return message
        return self.messages[-1]


class _TraceLines:
    """Collects the lines of one traceback, which another process may write between."""

    def __init__(self, first: Line, prefix: bytes, clock: Clock) -> None:
        self.messages: list[str] = []
        self.starts: list[int] = []
        self._first = first
        self._prefix = prefix
        self._clock = clock
        self._begun = first.message.startswith("Traceback (most")
        self._ended = False  # an exception was named: it is over unless the next line joins
        if self._begun:
            self.messages.append(first.message)

    def take(self, place: int, raw: bytes) -> bool:
        """Look at the next line of the log; False when it shows that the traceback is over."""
        message = self._said(raw)
        if message is None:
            return True
        if not self._begun:
            self._begun = message.startswith("Traceback (most")
            if not self._begun:
                return False
        elif message == _OTHER or (self._ended and not _goes_on(message, self._first.head)):
            return False
        if message.strip():
            self._ended = not message.startswith((" ", "\t", *_JOINS))
            self.messages.append(message)
        self.starts.append(place)
        return True

    def take_indented(self, block: bytes, place: int) -> int:
        """Take all frames of a bare traceback at once; returns where they end."""
        if not self._begun or self._prefix or self._first.tag or block[place : place + 1] != b" ":
            return place
        found = _NOT_INDENTED.search(block, place)
        if found is None or found.start() - place > _TRACE_BYTES:
            return place  # line by line, which knows its limits
        end = found.start() + 1
        self.messages += block[place : end - 1].decode("utf-8", "replace").split("\n")
        return end

    def _said(self, raw: bytes) -> str | None:
        """The line without what stands before it; None when it is of another process."""
        first = self._first
        # Lines of one record begin alike; only what begins otherwise has to be taken apart.
        if self._prefix and raw.startswith(self._prefix):
            message = raw[len(self._prefix) :].decode("utf-8", "replace").rstrip("\r")
        elif not self._prefix and self._begun and raw[:1] in _INDENTED:
            message = raw.decode("utf-8", "replace")
        else:
            line = parse(raw, self._clock)
            if (line.process, line.tag) != (first.process, first.tag) and line.head + line.tag:
                return None
            if line.head != first.head:
                return _OTHER
            message = line.message
        return _RANKED.sub("", message) if message.startswith("[") else message


_OTHER = "\0"
"""Said by a line of the same process that is of another record."""
_NO_TRACE = _Trace((), frozenset())
_TRACEBACK = BY_ID["process.traceback"]


class Stream:
    """One source. Feed it what was read; it gives events as soon as they are whole.

    Args:
        name: of the source, as events give it.
        role: when it is known; else told by each line's tag, or by who writes such a line.
    """

    def __init__(
        self,
        name: str,
        scanner: Scanner,
        clock: Clock,
        *,
        role: str | None = None,
        keep: Keep | None = None,
    ) -> None:
        self.name = name
        self.role = role
        self.last_ts: float | None = None
        self._scanner = scanner
        self._clock = clock
        self._keep = keep
        self._carry = b""
        self._skipping = False
        self._causes: dict[
            tuple[str, tuple[str, ...]], tuple[Signature, dict[str, str]] | None
        ] = {}

    def feed(self, data: bytes, *, last: bool = False) -> Iterator[Event]:
        """Events of the lines that are whole now; with `last`, of the rest too."""
        block = self._carry + data if self._carry else data
        if self._skipping:  # the rest of a line that was too long to wait for
            end = block.find(b"\n")
            if end < 0 and not last:
                return
            block = block[end + 1 :] if end >= 0 else b""
            self._skipping = False
        if last:
            self._carry = b""
            yield from self._events(block, last=True)
            return
        end = block.rfind(b"\n") + 1
        if len(block) - end > _LONGEST_CARRY:
            self._carry = b""
            self._skipping = True
            begun = block[end : end + LONGEST]
            yield from self._events(block[:end] + begun, last=True)
            return
        self._carry = block[end:]
        taken = yield from self._events(block[:end], last=False)
        if taken < end:
            self._carry = block[taken:]

    def flush(self) -> Iterator[Event]:
        """Events that wait for a line behind them, when none is coming; half a line still waits."""
        end = self._carry.rfind(b"\n") + 1
        whole, self._carry = self._carry[:end], self._carry[end:]
        yield from self._events(whole, last=True)

    def restart(self) -> None:
        """The file was truncated or replaced: what was begun is not continued."""
        self._carry = b""
        self._skipping = False

    def _events(self, block: bytes, *, last: bool) -> Generator[Event, None, int]:
        """Events of whole lines; returns how far it got, less than all inside a traceback."""
        end = 0  # of what is done
        eaten: set[int] = set()  # lines of tracebacks, by where they begin
        looked, line = -1, Line("", "")
        for place, candidates in self._scanner.hits(block):
            if place < end:
                continue
            start = block.rfind(b"\n", end, place) + 1 or end
            if start in eaten:
                continue
            stop = block.find(b"\n", place)
            stop = len(block) if stop < 0 else stop
            if start != looked:
                looked, line = start, parse(block[start : min(stop, start + LONGEST)], self._clock)
            found = self._match(line, candidates or self._scanner.candidates(line.text))
            if found is None:
                continue
            signature, fields = found
            trace = _NO_TRACE
            if not signature.good:
                behind = self._behind(block, start, stop, line, last=last)
                if behind is None:
                    yield from self._gap(block, end, start, eaten)
                    return start
                trace = behind
                eaten |= trace.starts
            if self._keep is not None:
                yield from self._gap(block, end, start, eaten)
            yield self._event(block, start, line, signature, fields, trace)
            end = max(stop + 1, trace.solid)
        yield from self._gap(block, end, len(block), eaten)
        return len(block)

    def _match(self, line: Line, candidates: Candidates) -> tuple[Signature, dict[str, str]] | None:
        for signature in candidates:
            if signature.loose and line.level in _HARMLESS:
                continue
            if found := signature.regex.search(line.message):
                fields = found.groupdict()
                if None in fields.values():
                    fields = {key: said for key, said in fields.items() if said is not None}
                return signature, fields
        return (_TRACEBACK, {}) if line.trace else None

    def _event(
        self,
        block: bytes,
        start: int,
        line: Line,
        signature: Signature,
        fields: dict[str, str],
        trace: _Trace,
    ) -> Event:
        more: tuple[str, ...] = ()
        if trace.messages:
            more = trace.messages
            fields["exception"] = shown(trace.exception)
            if signature.generic and (said := self._known_cause(trace, signature)) is not None:
                signature, found = said
                fields |= found
        if line.process and (worker := line.worker) is not None:
            fields["worker"] = worker
        ts = line.ts if line.ts is not None else self._time_before(block, start)
        if ts is not None:
            self.last_ts = ts
        role = self._role(line, signature)
        text, severity = shown(line.text), signature.severity
        return Event(ts, role, self.name, text, signature, severity, fields, more, line.message)

    def _role(self, line: Line, signature: Signature | None) -> str | None:
        if line.tag and (role := role_of(line.tag)):
            return role
        if signature is None or self.role in signature.roles:
            return self.role
        return signature.roles[0] if len(signature.roles) == 1 else None

    def _time_before(self, block: bytes, start: int) -> float | None:
        """When the line above was written, for one that does not say."""
        end = start - 1
        for _ in range(_LOOK_BACK):
            if end <= 0:
                break
            begin = block.rfind(b"\n", 0, end) + 1
            if block.startswith(_UNDATED, begin):  # as most lines above one without a time
                end = begin - 1
                continue
            if (ts := parse(block[begin : min(end, begin + 512)], self._clock).ts) is not None:
                return ts
            end = begin - 1
        return self.last_ts

    # Tracebacks.

    def _known_cause(
        self, trace: _Trace, told: Signature
    ) -> tuple[Signature, dict[str, str]] | None:
        """As `_cause`; what fails once mostly fails again in the same way."""
        key = (told.id, trace.messages)
        if key not in self._causes:
            if len(self._causes) >= _CAUSES:
                self._causes.clear()
            self._causes[key] = self._cause(trace, told)
        return self._causes[key]

    def _cause(self, trace: _Trace, told: Signature) -> tuple[Signature, dict[str, str]] | None:
        """What a line of it says more exactly than what is told already; the worst first."""
        text = "\n".join(trace.messages)
        raw = text.encode()
        found = []
        for place, candidates in self._scanner.hits(raw):
            start = raw.rfind(b"\n", 0, place) + 1
            stop = raw.find(b"\n", place)
            message = raw[start : stop if stop >= 0 else len(raw)].decode().strip()
            said = self._match(Line(message, message), candidates)
            if said is not None and said[0] is not _TRACEBACK:
                found.append(said)
        if told is not _TRACEBACK:
            found = [said for said in found if not said[0].generic]
        return min(
            found,
            key=lambda said: (said[0].generic, SEVERITIES.index(said[0].severity)),
            default=None,
        )

    def _behind(
        self, block: bytes, start: int, stop: int, line: Line, *, last: bool
    ) -> _Trace | None:
        """The traceback that comes with a line, which may have none; None: more must be read."""
        if line.trace:
            return _Trace(tuple(line.trace.splitlines()), frozenset())
        begun = line.message.startswith("Traceback (most")
        if not begun and line.level not in _MAY_HAVE_ONE:
            return _NO_TRACE
        after = block.find(b"\n", stop + 1)
        if after < 0 and not last:
            return None
        if block.find(_BEGINS, start, after if after >= 0 else len(block)) < 0:
            return _NO_TRACE
        return self._trace(block, start, stop, line, last=last)

    def _trace(
        self, block: bytes, start: int, stop: int, first: Line, *, last: bool
    ) -> _Trace | None:
        """The traceback that begins in this line or the next; None when it is not all there yet."""
        lines = _TraceLines(first, _prefix(block[start:stop], first), self._clock)
        place = solid = lines.take_indented(block, stop + 1)
        for _ in range(_TRACE_LINES):
            if place - start > _TRACE_BYTES:
                break
            end = block.find(b"\n", place)
            if end < 0:
                if not last:
                    return None
                end = len(block)
                if place >= end:
                    break
            if not lines.take(place, block[place : min(end, place + 4096)]):
                break
            place = end + 1
        return _Trace(tuple(lines.messages), frozenset(lines.starts), solid)

    # Lines without a signature.

    def _gap(self, block: bytes, start: int, end: int, eaten: set[int]) -> Iterator[Event]:
        if self._keep is None:
            return
        while start < end:
            stop = block.find(b"\n", start, end)
            stop = end if stop < 0 else stop
            raw = block[start:stop]
            if raw and start not in eaten and self._keep(raw):
                line = parse(raw, self._clock)
                self.last_ts = line.ts if line.ts is not None else self.last_ts
                yield Event(self.last_ts, self._role(line, None), self.name, shown(line.text))
            start = stop + 1


def _prefix(raw: bytes, line: Line) -> bytes:
    """What stands before the message of a line of vLLM's; empty when it has no such thing."""
    said = line.message.encode()
    if not line.head or not said or not raw.endswith(said):
        return b""
    return raw[: len(raw) - len(said)]


def _goes_on(message: str, head: str) -> bool:
    """Whether a line after the exception's belongs to it: always in a record of vLLM's."""
    return bool(head) or not message.strip() or message.startswith(_JOINS)


_ROLES = (
    ("router", re.compile(r"router|proxy", re.I)),
    ("prefill", re.compile(r"prefill", re.I)),
    ("decode", re.compile(r"decode", re.I)),
)


def role_of(name: str) -> str | None:
    """The role that a name of a file, unit or container tells."""
    for role, pattern in _ROLES:
        if pattern.search(name):
            return role
    return None


def role_in(begin: bytes) -> str | None:
    """The role that the beginning of a log tells, where its name does not; None if it is mixed."""
    found = [role for role, marks in _MARKS if any(mark in begin for mark in marks)]
    return found[0] if len(found) == 1 else None


_MARKS = (
    ("router", (b"disagg_proxy: ", b"pdctl.router: ")),
    ("prefill", (b"kv_producer",)),
    ("decode", (b"kv_consumer",)),
)
"""What each of them writes when it starts, and nobody else."""
