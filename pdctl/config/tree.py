"""YAML nodes to plain values, with the place of every key, and the problems of the file as YAML.

Duplicate keys, keys that are not text, words that YAML versions read differently, tags, aliases
that grow without end: found here, before anybody asks what the keys mean.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from yaml.error import Mark
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from pdctl.base.problems import Loc, Problem
from pdctl.config import scalars
from pdctl.config.scalars import Trap, shown
from pdctl.config.syntax import MAP, MAX_DEPTH, MAX_VALUES, PLAIN, SEQ, STR

_SELF = "an alias cannot stand inside its own anchor"


class Place(NamedTuple):
    """1-based."""

    line: int
    column: int


@dataclass(frozen=True)
class Spot:
    """Where one value stands, and how it was written.

    Attributes:
        key: place of its key; of the value itself in lists.
        value: place of the value; at its anchor when it came by an alias.
        text: a scalar as written, None for lists and mappings.
        quoted: the scalar stood in quotes.
    """

    key: Place
    value: Place
    text: str | None = None
    quoted: bool = False


@dataclass(frozen=True)
class Tree:
    """A file as plain values.

    Attributes:
        value: what the file says; never anything but dict, list and scalars.
        spots: by the path of each value.
        problems: what is wrong whatever the keys mean; each is placed.
    """

    value: object
    spots: Mapping[Loc, Spot]
    problems: tuple[Problem, ...]

    def place(self, problem: Problem) -> Problem:
        """Give the problem line and column: its key's or value's, else its nearest parent's key."""
        if problem.line:
            return problem
        spot = self.spots.get(problem.loc)
        if spot is not None:
            return problem.at(*(spot.key if problem.on_key else spot.value))
        loc = problem.loc
        while loc and loc not in self.spots:
            loc = loc[:-1]
        return problem.at(*self.spots[loc].key) if loc in self.spots else problem


class _TooLargeError(Exception):
    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place


@dataclass
class _Builder:
    spots: dict[Loc, Spot] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    open_nodes: list[Node] = field(default_factory=list)
    values: int = 0

    def value(self, node: Node, loc: Loc, key: Place | None = None) -> object:
        self._count(node)
        place = _place(node.start_mark)
        self.spots[loc] = Spot(key or place, place)
        if isinstance(node, ScalarNode):
            return self._scalar(node, loc)
        if node in self.open_nodes:
            self._problem(loc, place, _SELF)
            return None
        self.open_nodes.append(node)
        try:
            return self._collection(node, loc)
        finally:
            self.open_nodes.pop()

    def _count(self, node: Node) -> None:
        self.values += 1
        if self.values > MAX_VALUES or len(self.open_nodes) > MAX_DEPTH:
            raise _TooLargeError(_place(node.start_mark))

    def _collection(self, node: Node, loc: Loc) -> object:
        if node.tag not in {SEQ, MAP}:
            self._tag(node, loc)
        if isinstance(node, SequenceNode):
            return [self.value(item, (*loc, index)) for index, item in enumerate(node.value)]
        if isinstance(node, MappingNode):
            return self._mapping(node, loc)
        return None

    def _mapping(self, node: MappingNode, loc: Loc) -> dict[str, object]:
        return {
            name: self.value(value, (*loc, name), _place(key.start_mark))
            for name, key, value in self._entries(node, loc)
        }

    def _entries(self, node: MappingNode, loc: Loc) -> list[tuple[str, Node, Node]]:
        """Keys of the mapping itself, then what `<<` adds and the mapping does not say."""
        entries: dict[str, tuple[str, Node, Node]] = {}
        bases: list[Node] = []
        merge: Node | None = None
        for key, value in node.value:
            self._count(key)
            if _is_merge(key):
                if merge is not None:
                    self._twice("<<", key, merge, loc)
                merge = key
                bases.append(value)
                continue
            name = self._name(key, loc)
            if name is None:
                continue
            if name in entries:
                self._twice(name, key, entries[name][1], loc)
            else:
                entries[name] = (name, key, value)
        for name, key, value in self._merged(bases, loc):
            entries.setdefault(name, (name, key, value))
        return list(entries.values())

    def _merged(self, bases: list[Node], loc: Loc) -> Iterator[tuple[str, Node, Node]]:
        for base in bases:
            self._count(base)
            place = _place(base.start_mark)
            if base in self.open_nodes:
                self._problem(loc, place, _SELF)
                continue
            self.open_nodes.append(base)
            if isinstance(base, SequenceNode):
                yield from self._merged(base.value, loc)
            elif isinstance(base, MappingNode):
                yield from self._entries(base, loc)
            else:
                self._problem(loc, place, "`<<` takes a mapping or a list of mappings")
            self.open_nodes.pop()

    def _name(self, key: Node, loc: Loc) -> str | None:
        place = _place(key.start_mark)
        if not isinstance(key, ScalarNode):
            self._problem(loc, place, "a key is text, not a list or a mapping")
            return None
        value = scalars.read(key.value) if key.tag == PLAIN else key.value
        if isinstance(value, str):
            self._characters(value, (*loc, value), place)
            return value
        if isinstance(value, Trap):
            self._problem((*loc, key.value), place, value.message, value.hint)
            return None
        word = shown(key.value)
        self._problem((*loc, word), place, f"the key `{word}` is not text", f'write "{word}"')
        return None

    def _twice(self, name: str, key: Node, first: Node, loc: Loc) -> None:
        line = _place(first.start_mark).line
        hint = "write `<<: [*a, *b]`" if name == "<<" else None
        here = _place(key.start_mark)
        message = f"`{shown(name)}` is set twice, first on line {line}"
        self._problem((*loc, name), here, message, hint)

    def _scalar(self, node: ScalarNode, loc: Loc) -> object:
        spot = self.spots[loc]
        self.spots[loc] = Spot(spot.key, spot.value, node.value, quoted=node.style is not None)
        if node.tag not in {PLAIN, STR}:
            self._tag(node, loc)
        if node.tag != PLAIN:
            self._characters(node.value, loc, spot.value)
            return node.value
        value = scalars.read(node.value)
        if isinstance(value, Trap):
            self._problem(loc, spot.value, value.message, value.hint)
            return node.value
        return value

    def _characters(self, text: str, loc: Loc, place: Place) -> None:
        # Escapes can say what neither a file name, nor an argument, nor UTF-8 can hold.
        if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
            self._problem(loc, place, "text cannot hold NUL or half a surrogate pair")

    def _tag(self, node: Node, loc: Loc) -> None:
        tag = shown(str(node.tag)).replace("tag:yaml.org,2002:", "!!")
        self._problem(
            loc, _place(node.start_mark), f"the tag `{tag}` is not used here", "remove it"
        )

    def _problem(self, loc: Loc, place: Place, message: str, hint: str | None = None) -> None:
        problem = Problem(loc, message, hint).at(*place)
        if problem not in self.problems:  # an alias shows the same node at several keys
            self.problems.append(problem)


def grow(root: Node) -> Tree:
    """Values, places and problems of a document."""
    builder = _Builder()
    try:
        value = builder.value(root, ())
    except _TooLargeError as error:
        message = f"its aliases say more than {MAX_VALUES} keys and values, or nest too deep"
        return Tree(None, builder.spots, (Problem((), message).at(*error.place),))
    return Tree(value, builder.spots, tuple(builder.problems))


def _is_merge(key: Node) -> bool:
    return isinstance(key, ScalarNode) and key.tag == PLAIN and key.value == "<<"


def _place(mark: Mark) -> Place:
    return Place(mark.line + 1, mark.column + 1)
