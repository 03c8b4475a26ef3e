"""Nodes to values: duplicates, keys, tags, anchors, merges, and the place of everything."""

import pytest

from pdctl.base.problems import Loc, Problem
from pdctl.config.syntax import compose
from pdctl.config.tree import Tree, grow


def tree(text: str) -> Tree:
    root = compose(text.encode())
    assert root is not None
    return grow(root)


def found(text: str) -> list[str]:
    return [
        f"{p.line}:{p.column} {p.key}: {p.message}" + (f" ({p.hint})" if p.hint else "")
        for p in tree(text).problems
    ]


FINDS = {
    "a: 1\nb: 2\na: 3": ["3:1 a: `a` is set twice, first on line 1"],
    "a: {b: 1, b: 2}": ["1:11 a.b: `b` is set twice, first on line 1"],
    "a: 1\na: 2\na: 3": [
        "2:1 a: `a` is set twice, first on line 1",
        "3:1 a: `a` is set twice, first on line 1",
    ],
    "8100: x": ['1:1 8100: the key `8100` is not text (write "8100")'],
    "true: x": ['1:1 true: the key `true` is not text (write "true")'],
    "~: x": ['1:1 ~: the key `~` is not text (write "~")'],
    "[a]: x": ["1:1 : a key is text, not a list or a mapping"],
    "? {a: 1}\n: x": ["1:3 : a key is text, not a list or a mapping"],
    "1:30: x": [
        "1:1 1:30: `1:30` is a number in base 60 in YAML 1.1 and text in YAML 1.2 "
        '(write 1m30s or 1h30m for a duration, "1:30" for text)'
    ],
    "a: !!int 3": ["1:4 a: the tag `!!int` is not used here (remove it)"],
    "a: !env X": ["1:4 a: the tag `!env` is not used here (remove it)"],
    "!!python/object:os.system {a: 1}": [
        "1:1 : the tag `!!python/object:os.system` is not used here (remove it)"
    ],
    "a: !!set {x}": ["1:4 a: the tag `!!set` is not used here (remove it)"],
    "a: &a [*a]": ["1:4 a[0]: an alias cannot stand inside its own anchor"],
    "a: &a {<<: *a}": ["1:4 a: an alias cannot stand inside its own anchor"],
    "a: &a {b: {<<: [*a]}}": ["1:4 a.b: an alias cannot stand inside its own anchor"],
    "a: {<<: 3}": ["1:9 a: `<<` takes a mapping or a list of mappings"],
    "a: &a {}\nb: &b {}\nc:\n  <<: *a\n  <<: *b\n": [
        "5:3 c.<<: `<<` is set twice, first on line 4 (write `<<: [*a, *b]`)"
    ],
    'a: "\\0"': ["1:4 a: text cannot hold NUL or half a surrogate pair"],
    'a: "\\ud800"': ["1:4 a: text cannot hold NUL or half a surrogate pair"],
    '"\\0": a': ["1:1 �: text cannot hold NUL or half a surrogate pair"],
    "a: &a 010\nb: *a": [
        "1:4 a: `010` is octal in YAML 1.1 and decimal in YAML 1.2 "
        '(write "010" for text, or a plain number)',
        "1:4 b: `010` is octal in YAML 1.1 and decimal in YAML 1.2 "
        '(write "010" for text, or a plain number)',
    ],
}


@pytest.mark.parametrize(("text", "problems"), FINDS.items())
def test_problems(text: str, problems: list[str]) -> None:
    assert found(text) == problems


VALUES: dict[str, object] = {
    "on: off\nyes: no": {"on": "off", "yes": "no"},
    "a: 'on'\nb: \"1.10\"\nc: !!str 1.10\nd: '1:30'": {
        "a": "on",
        "b": "1.10",
        "c": "1.10",
        "d": "1:30",
    },
    "base: &b {x: 1, y: 2}\na: {<<: *b, x: 3}": {"base": {"x": 1, "y": 2}, "a": {"x": 3, "y": 2}},
    "a: &a {x: 1}\nb: &b {x: 2, z: 3}\nc: {<<: [*a, *b]}": {
        "a": {"x": 1},
        "b": {"x": 2, "z": 3},
        "c": {"x": 1, "z": 3},
    },
    "a: &a [1, 2]\nb: *a": {"a": [1, 2], "b": [1, 2]},
    "a: |\n  x\n  y\n": {"a": "x\ny\n"},
    "a: <<\n'<<': b": {"a": "<<", "<<": "b"},
    '{"json": [1, true, null, "x"]}': {"json": [1, True, None, "x"]},
}


@pytest.mark.parametrize(("text", "value"), VALUES.items())
def test_values(text: str, value: object) -> None:
    assert tree(text).problems == ()
    assert tree(text).value == value


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(
            f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 10)}]\n"
            for i in range(9)
        ),
        "a: &a {x: 1}\n"
        + "".join(
            f"{chr(98 + i)}: &{chr(98 + i)} {{<<: [{', '.join(['*' + chr(97 + i)] * 10)}]}}\n"
            for i in range(9)
        ),
        "k0: &k0 []\n" + "".join(f"k{i}: &k{i} [*k{i - 1}]\n" for i in range(1, 300)),
    ],
    ids=["lists", "merges", "depth"],
)
def test_alias_bombs_are_given_up(text: str) -> None:
    (problem,) = tree(text).problems
    assert problem.message == "its aliases say more than 10000 keys and values, or nest too deep"
    assert problem.line > 0


PLACED = (
    "name: x\ntarget:\n  kind: ssh\n  hosts:\n    prefill:\n      - address: a\n        port: 1\n"
)


@pytest.mark.parametrize(
    ("loc", "on_key", "place"),
    [
        (("name",), False, (1, 7)),
        (("name",), True, (1, 1)),
        (("target",), False, (3, 3)),
        (("target",), True, (2, 1)),
        (("target", "hosts", "prefill", 0, "port"), False, (7, 15)),
        (("target", "hosts", "prefill", 0), True, (6, 9)),
        # Absent keys point at the nearest parent's key.
        (("target", "hosts", "prefill", 0, "user"), False, (6, 9)),
        (("target", "hosts", "prefill", 7, "user"), False, (5, 5)),
        (("target", "hosts", "decode"), False, (4, 3)),
        (("router", "port"), False, (1, 1)),
        ((), False, (1, 1)),
    ],
)
def test_place(loc: Loc, on_key: bool, place: tuple[int, int]) -> None:
    problem = tree(PLACED).place(Problem(loc, "m", on_key=on_key))
    assert (problem.line, problem.column) == place


def test_a_placed_problem_stays_where_it_is() -> None:
    problem = Problem(("name",), "m").at(9, 9)
    assert tree(PLACED).place(problem) == problem
