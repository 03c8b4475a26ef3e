"""Bytes to YAML nodes. Everything that is no YAML becomes one problem with its place and line.

PyYAML's pure Python classes are used, not libyaml: they take limits and cannot overflow the stack.
"""

import re
from typing import NamedTuple

from yaml.composer import Composer
from yaml.error import Mark, MarkedYAMLError
from yaml.nodes import Node, ScalarNode, SequenceNode
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from pdctl.base.problems import Problem
from pdctl.config.scalars import shown

MAX_BYTES = 128 * 1024
MAX_DEPTH = 64
MAX_VALUES = 10_000
"""Keys and values, counted wherever an alias shows them: a short file can say a very long one."""
PLAIN = "plain"
"""Tag of a scalar without quotes and without a tag: its meaning is read from its text."""
STR = "tag:yaml.org,2002:str"
SEQ = "tag:yaml.org,2002:seq"
MAP = "tag:yaml.org,2002:map"

BREAKS = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
"""What ends a line for YAML 1.1, and so in PyYAML's marks."""
_WIDTH = 100


class NotYamlError(Exception):
    """The file is not YAML that pdctl reads; `problem` says why and where."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class _Place(NamedTuple):
    line: int
    column: int


class _LimitError(MarkedYAMLError):
    pass


class _Loader(Reader, Scanner, Parser, Composer, BaseResolver):
    """Composes nodes; tells plain scalars from others and limits depth."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        BaseResolver.__init__(self)
        self._depth = 0
        self._nodes = 0

    def resolve(self, kind: type[Node], value: object, implicit: object) -> str:
        if kind is ScalarNode:
            return PLAIN if isinstance(implicit, tuple) and implicit[0] else STR
        return SEQ if kind is SequenceNode else MAP

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        self._depth += 1
        self._nodes += 1
        if self._depth > MAX_DEPTH:
            raise _LimitError(problem="too deep", problem_mark=self._start())
        if self._nodes > MAX_VALUES:
            raise _LimitError(problem="too many", problem_mark=self._start())
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def _start(self) -> Mark:
        mark: Mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        return mark


def compose(data: bytes) -> Node | None:
    """The root node of the one document in the file; None when there is nothing in it.

    Raises:
        NotYamlError: for bytes that are not one YAML document in UTF-8.
    """
    text = _decode(data)
    loader: _Loader | None = None
    try:
        loader = _Loader(text)
        return loader.get_single_node()
    except ReaderError as error:
        raise NotYamlError(_control_character(text, error)) from None
    except MarkedYAMLError as error:
        raise NotYamlError(_reworded(text, error)) from None
    except (ValueError, OverflowError):
        # PyYAML lets these through unmarked: `"\U00110000"`, a directive with 5000 digits.
        problem = Problem((), "a number in an escape or a directive is too large")
        mark = loader.get_mark() if loader else None
        raise NotYamlError(_placed(problem, BREAKS.split(text), mark)) from None


def _decode(data: bytes) -> str:
    if len(data) > MAX_BYTES:
        limit = MAX_BYTES // 1024
        raise NotYamlError(Problem((), f"larger than {limit} KiB, so it is no configuration"))
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise NotYamlError(Problem((), "found UTF-16, expected UTF-8", "save it as UTF-8"))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        good = data[: error.start].decode("utf-8-sig", "replace")
        place = _place_of_offset(good, len(good))
        message = f"the byte 0x{data[error.start]:02x} is not UTF-8"
        raise NotYamlError(Problem((), message, "save it as UTF-8").at(*place)) from None


def _place_of_offset(text: str, offset: int) -> _Place:
    before = BREAKS.split(text[:offset])
    return _Place(len(before), len(before[-1]) + 1)


def _control_character(text: str, error: ReaderError) -> Problem:
    code = error.character if isinstance(error.character, int) else ord(str(error.character)[0])
    place = _place_of_offset(text, error.position)
    return Problem((), f"the character U+{code:04X} is not allowed", "remove it").at(*place)


class _Reading(NamedTuple):
    """Our words for one of PyYAML's messages; `at_start` points at where the trouble began."""

    pattern: str
    message: str
    hint: str | None = None
    at_start: bool = False


_COLUMNS = "keys of one section start in the same column"
_READINGS = (
    _Reading(r"too deep", f"nested deeper than {MAX_DEPTH} levels"),
    _Reading(r"too many", f"more than {MAX_VALUES} keys and values"),
    _Reading(r"found character '\\t'.*", "found a tab where only spaces count", "use spaces"),
    _Reading(r"found character '(.)'.*", "a value cannot begin with '{0}'", "put it in quotes"),
    _Reading(
        r"mapping values are not allowed here",
        "`:` is not allowed here",
        f"quote a value that contains `: `; {_COLUMNS}",
    ),
    _Reading(
        r"could not find expected ':'",
        "found text that is neither `key: value` nor a list item",
        f"write `key: value`; {_COLUMNS}",
        at_start=True,
    ),
    _Reading(
        r"expected <block end>, but found .*",
        "this does not fit the section that begins on line {start}",
        f"{_COLUMNS}, its list items begin with `- `",
    ),
    _Reading(
        r"sequence entries are not allowed here",
        "a list item is not allowed here",
        "begin the list on the line below its key",
    ),
    _Reading(
        r"expected ',' or '(.)', but got '<stream end>'", "`{0}` is missing", None, at_start=True
    ),
    _Reading(r"expected ',' or '(.)', but got .*", "expected `,` or `{0}` before this"),
    _Reading(r"found unexpected end of stream", "a quoted text has no end", None, at_start=True),
    _Reading(
        r"expected the node content, but found '<(stream|document) end>'",
        "the file ends where a value or a closing bracket should be",
    ),
    _Reading(r"expected the node content, but found '(.*)'", "a value should begin here"),
    _Reading(r"expected '<document start>', but found .*", "this stands outside the document"),
    _Reading(
        r"found undefined alias '(.*)'",
        "`*{0}` names an anchor that is not above it",
        "put a value that begins with `*` in quotes",
    ),
    _Reading(r"second occurrence", "this anchor is already set on line {start}"),
    _Reading(
        r"found unknown escape character '(.*)'",
        "`\\{0}` means nothing in double quotes",
        "use single quotes",
    ),
    _Reading(
        r"but found another document",
        "a second document begins here",
        "a configuration is one document; remove the `---`",
    ),
)


def _reworded(text: str, error: MarkedYAMLError) -> Problem:
    words = str(error.problem or error.context or "unreadable")
    lines = BREAKS.split(text)
    for reading in _READINGS:
        found = re.fullmatch(reading.pattern, words, re.DOTALL)
        if found:
            return _as_read(error, lines, reading, [shown(group) for group in found.groups()])
    return _placed(Problem((), f"not valid YAML: {shown(words)}"), lines, _mark(error, False))


def _as_read(
    error: MarkedYAMLError, lines: list[str], reading: _Reading, groups: list[str]
) -> Problem:
    start = error.context_mark.line + 1 if error.context_mark else 0
    problem = Problem((), reading.message.format(*groups, start=start), reading.hint)
    mark = _mark(error, reading.at_start)
    if mark is not None and mark.line < len(lines) and _indented_by_tab(lines[mark.line]):
        problem = Problem((), "the indentation of this line has a tab", "use spaces")
    return _placed(problem, lines, mark)


def _indented_by_tab(line: str) -> bool:
    return "\t" in line[: len(line) - len(line.lstrip(" \t"))]


def _mark(error: MarkedYAMLError, at_start: bool) -> Mark | None:
    marks = (error.problem_mark, error.context_mark)
    first, second = reversed(marks) if at_start else marks
    return first or second


def _placed(problem: Problem, lines: list[str], mark: Mark | None) -> Problem:
    if mark is None:
        return problem
    place = _within(lines, mark.line, mark.column)
    return _with_excerpt(problem.at(*place), lines)


def _within(lines: list[str], line: int, column: int) -> _Place:
    """The place, moved back from the end of the file to its last written line."""
    line = min(line, len(lines) - 1)
    while line > 0 and not lines[line].strip():
        line, column = line - 1, len(lines[line - 1])
    return _Place(line + 1, min(column, len(lines[line])) + 1)


def _with_excerpt(problem: Problem, lines: list[str]) -> Problem:
    line, column = lines[problem.line - 1], problem.column - 1
    start = max(0, column - _WIDTH // 2)
    part = line[start : start + _WIDTH]
    text = "".join(char if char.isprintable() else " " for char in part)
    number = str(problem.line)
    return Problem(
        problem.loc,
        problem.message,
        problem.hint,
        problem.line,
        problem.column,
        problem.on_key,
        (f"{number} | {text}", f"{' ' * len(number)} | {' ' * (column - start)}^"),
    )
