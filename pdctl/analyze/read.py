"""Lines to rows: which kind of log it is, and what of it cannot be used."""

from collections import Counter
from dataclasses import dataclass, field
from typing import cast

import msgspec

from pdctl.analyze.record import RICH_KEYS, UNNAMED, Plain, Rich, Row

BAD_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding a line may end in; the last, when it nests too deep."""

SHOWN = 5
"""Bad lines that are kept to be shown."""


@dataclass(frozen=True)
class BadLine:
    """A line that is none of a request log.

    Attributes:
        number: of the line in its part, from 1.
        reason: what is wrong with it.
        text: its beginning.
    """

    number: int
    reason: str
    text: str


@dataclass
class Reading:
    """What became of the lines.

    Attributes:
        lines: that were looked at; empty ones too.
        bad: lines that could not be read.
        first_bad: some of them.
        left_out: requests that are no turn, by reason.
    """

    lines: int = 0
    bad: int = 0
    first_bad: list[BadLine] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def merge(self, later: "Reading") -> None:
        """Put what was read behind."""
        moved = [
            BadLine(self.lines + each.number, each.reason, each.text) for each in later.first_bad
        ]
        self.first_bad = [*self.first_bad, *moved][:SHOWN]
        self.lines += later.lines
        self.bad += later.bad
        self.left_out.update(later.left_out)


NO_TOKENS = "the engine did not count its tokens"
UNNAMED_REASON = "no conversation is named"


class LineReader:
    """Reads one line after the other; what one is, `one` says.

    Attributes:
        reading: what became of the lines.
        alone: whether a log must be read by one process, from its begin.
    """

    alone = False

    def __init__(self) -> None:
        self.reading = Reading()

    def rows(self, block: bytes) -> list[Row]:
        """The rows of some whole lines."""
        rows: list[Row] = []
        for number, line in enumerate(_lines_of(block), self.reading.lines + 1):
            if not line.strip():
                continue
            found = self.one(line)
            if found is None:
                self._bad(number, "it is no line of such a log", line)
            elif not isinstance(found, str):
                rows.append(found)
            elif found:
                self.reading.left_out[found] += 1
        self._count(block)
        return rows

    def one(self, line: bytes) -> Row | str | None:
        """A row, why the request is no turn ("": it is no request), or None: it is a bad line."""
        raise NotImplementedError

    def _count(self, block: bytes) -> None:
        self.reading.lines += block.count(b"\n") + (not block.endswith(b"\n"))

    def _bad(self, number: int, reason: str, line: bytes) -> None:
        self.reading.bad += 1
        if len(self.reading.first_bad) < SHOWN:
            text = line[:160].decode("utf-8", "replace")
            self.reading.first_bad.append(BadLine(number, reason, text))


def _lines_of(block: bytes) -> list[bytes]:
    """As they are counted: a carriage return within a line ends none."""
    return [line.removesuffix(b"\r") for line in block.split(b"\n")]


class JsonReader(LineReader):
    """Reads a request log: one JSON object a line.

    Args:
        rich: whether the log says more than conversation, time and length.
    """

    def __init__(self, *, rich: bool) -> None:
        super().__init__()
        self._rich = rich
        self._type: type[Row] = Rich if rich else Plain
        self._decoder: msgspec.json.Decoder[Row] = msgspec.json.Decoder(self._type)

    def rows(self, block: bytes) -> list[Row]:
        """The rows of some whole lines."""
        rows: list[Row]
        try:
            rows = self._decoder.decode_lines(block)
        except BAD_JSON:
            rows = self._one_by_one(block)
        self._count(block)
        return self._usable(rows) if self._rich else rows

    def _one_by_one(self, block: bytes) -> list[Row]:
        rows: list[Row] = []
        for number, line in enumerate(_lines_of(block), self.reading.lines + 1):
            if not line.strip():
                continue
            try:
                rows.append(self._decoder.decode(line))
            except BAD_JSON as error:
                self._unread(number, line, error, rows)
        return rows

    def _unread(self, number: int, line: bytes, error: Exception, rows: list[Row]) -> None:
        """A line that is not as it should be: a row after all, no turn, or bad."""
        mended = _mended(line)
        if isinstance(mended, dict):
            try:
                rows.append(msgspec.convert(mended, self._type))
                return
            except msgspec.ValidationError as better:
                error = better
        reason = mended if isinstance(mended, str) else str(error)
        if reason == NO_TOKENS:
            self.reading.left_out[reason] += 1
        else:
            self._bad(number, reason, line)

    def _usable(self, rows: list[Row]) -> list[Row]:
        usable: list[Row] = []
        for row in cast(list[Rich], rows):
            if row.output_tokens is None:
                named = row.response_tokens
                row.output_tokens = row.completion_tokens if named is None else named
            id = row.conversation_id
            if row.prompt_tokens is None:
                self.reading.left_out[NO_TOKENS] += 1
            elif id is None or id == UNNAMED:
                self.reading.left_out[UNNAMED_REASON] += 1
            elif row.ts is None:
                self.reading.left_out["no time is given"] += 1
            else:
                if row.tenant:
                    row.conversation_id = f"{row.tenant}\0{id}"
                usable.append(row)
        return usable


def _mended(line: bytes) -> dict[str, object] | str:
    """A line with whole numbers that were written as 12.0; or what is wrong with it."""
    try:
        found = msgspec.json.decode(line)
    except BAD_JSON:
        return "it is no JSON"
    if not isinstance(found, dict):
        return "it is no JSON object"
    for key in Plain.__struct_fields__:
        if key not in found:
            return f"`{key}` is missing"
    if found["prompt_tokens"] is None:
        return NO_TOKENS
    for key, value in found.items():
        if isinstance(value, float) and value.is_integer() and key != "ts":
            found[key] = int(value)
    return found


def is_rich(block: bytes) -> bool:
    """Whether any of the first lines of a log says more than it must."""
    for line in block.splitlines()[:100]:
        try:
            found = msgspec.json.decode(line)
        except BAD_JSON:
            continue
        if isinstance(found, dict) and RICH_KEYS & found.keys():
            return True
    return False
