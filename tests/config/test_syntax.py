"""Files that are not YAML: the place, the line, the cause and the remedy."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pdctl.config.syntax import BREAKS, MAX_BYTES, NotYamlError, compose
from tests.config.helpers import said

COLUMNS = "keys of one section start in the same column"

SYNTAX: dict[str | bytes, list[str]] = {
    "a: b: c": [
        f"pd.yaml:1:5: `:` is not allowed here (quote a value that contains `: `; {COLUMNS})",
        "  1 | a: b: c",
        "    |     ^",
    ],
    "name: x\n model: y\n": [
        f"pd.yaml:2:7: `:` is not allowed here (quote a value that contains `: `; {COLUMNS})",
        "  2 |  model: y",
        "    |       ^",
    ],
    "kv:\n\tdecoder_ttl: 480\n": [
        "pd.yaml:2:1: the indentation of this line has a tab (use spaces)",
        "  2 |  decoder_ttl: 480",
        "    | ^",
    ],
    "kv:\n  a: 1\n\tb: 2\n": [
        "pd.yaml:3:1: the indentation of this line has a tab (use spaces)",
        "  3 |  b: 2",
        "    | ^",
    ],
    "name:\tx": [
        "pd.yaml:1:6: found a tab where only spaces count (use spaces)",
        "  1 | name: x",
        "    |      ^",
    ],
    "backends: [UCX, LIBFABRIC\nport: 1\n": [
        "pd.yaml:2:5: expected `,` or `]` before this",
        "  2 | port: 1",
        "    |     ^",
    ],
    "model: {id: x\n": [
        "pd.yaml:1:8: `}` is missing",
        "  1 | model: {id: x",
        "    |        ^",
    ],
    "a: [\n\n\n": [
        "pd.yaml:1:5: the file ends where a value or a closing bracket should be",
        "  1 | a: [",
        "    |     ^",
    ],
    "key: [a, b]]": [
        "pd.yaml:1:12: this does not fit the section that begins on line 1 "
        f"({COLUMNS}, its list items begin with `- `)",
        "  1 | key: [a, b]]",
        "    |            ^",
    ],
    "a: ,": [
        "pd.yaml:1:4: a value should begin here",
        "  1 | a: ,",
        "    |    ^",
    ],
    "hosts: - a": [
        "pd.yaml:1:8: a list item is not allowed here (begin the list on the line below its key)",
        "  1 | hosts: - a",
        "    |        ^",
    ],
    "name: x\n? y\nplain\nkey: z": [
        "pd.yaml:3:1: found text that is neither `key: value` nor a list item "
        f"(write `key: value`; {COLUMNS})",
        "  3 | plain",
        "    | ^",
    ],
    "user: @me": [
        "pd.yaml:1:7: a value cannot begin with '@' (put it in quotes)",
        "  1 | user: @me",
        "    |       ^",
    ],
    "name: 'x\n\n": [
        "pd.yaml:1:7: a quoted text has no end",
        "  1 | name: 'x",
        "    |       ^",
    ],
    'a: "C:\\q"': [
        "pd.yaml:1:8: `\\q` means nothing in double quotes (use single quotes)",
        '  1 | a: "C:\\q"',
        "    |        ^",
    ],
    "a: *all": [
        "pd.yaml:1:4: `*all` names an anchor that is not above it "
        "(put a value that begins with `*` in quotes)",
        "  1 | a: *all",
        "    |    ^",
    ],
    "a: &x 1\nb: &x 2": [
        "pd.yaml:2:4: this anchor is already set on line 1",
        "  2 | b: &x 2",
        "    |    ^",
    ],
    "name: x\n---\nname: y": [
        "pd.yaml:2:1: a second document begins here "
        "(a configuration is one document; remove the `---`)",
        "  2 | ---",
        "    | ^",
    ],
    "%FOO\na: 1": [
        "pd.yaml:2:1: this stands outside the document",
        "  2 | a: 1",
        "    | ^",
    ],
    "a: !<%zz> b": [
        "pd.yaml:1:7: not valid YAML: expected URI escape sequence of 2 hexadecimal numbers, but …",
        "  1 | a: !<%zz> b",
        "    |       ^",
    ],
    'a: "\\U00110000"': [
        "pd.yaml:1:7: a number in an escape or a directive is too large",
        '  1 | a: "\\U00110000"',
        "    |       ^",
    ],
    "a: 1\nb: \x07": ["pd.yaml:2:4: the character U+0007 is not allowed (remove it)"],
    b"a: caf\xe9\n": ["pd.yaml:1:7: the byte 0xe9 is not UTF-8 (save it as UTF-8)"],
    "a: 1".encode("utf-16"): ["pd.yaml: found UTF-16, expected UTF-8 (save it as UTF-8)"],
    b"#" * (MAX_BYTES + 1): ["pd.yaml: larger than 128 KiB, so it is no configuration"],
}


@pytest.mark.parametrize(("text", "lines"), SYNTAX.items(), ids=lambda value: repr(value)[:40])
def test_syntax(text: str | bytes, lines: list[str]) -> None:
    assert said(text) == lines


def test_deep_nesting_is_refused_with_the_excerpt_around_its_place() -> None:
    assert said("[" * 5000) == [
        "pd.yaml:1:65: nested deeper than 64 levels",
        "  1 | " + "[" * 100,
        "    | " + " " * 50 + "^",
    ]


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "---\n", "~\n", "\ufeff"])
def test_an_empty_file_is_told_where_to_start(text: str) -> None:
    assert said(text) == ["pd.yaml: is empty"]


def test_a_byte_order_mark_is_accepted() -> None:
    root = compose("\ufeffname: x".encode())
    assert root is not None
    assert root.start_mark.column == 0


@pytest.mark.parametrize("break_", ["\n", "\r\n", "\r"])
def test_lines_are_counted_with_every_line_break(break_: str) -> None:
    assert said(break_.join(["name: x", "kv: {", "  a: @"]))[0].startswith("pd.yaml:3:6: ")


@given(
    st.binary(max_size=400)
    | st.text(alphabet="ab01:-[]{}&*!|>'\"%@`#,?. \n\t\r\\<").map(str.encode)
)
@example(b"%YAML 1." + b"9" * 5000 + b"\n---\na")
@example(b"!!binary x")
@example(b'"\\uD800"')
def test_any_bytes_are_nodes_or_a_problem_within_the_file(data: bytes) -> None:
    try:
        compose(data)
    except NotYamlError as error:
        problem = error.problem
        lines = BREAKS.split(data.decode("utf-8", "replace"))
        assert 0 <= problem.line <= len(lines)
        if problem.line:
            assert 1 <= problem.column <= len(lines[problem.line - 1]) + 1


def test_a_long_file_is_given_up_early() -> None:
    assert said(b"- 1\n" * (MAX_BYTES // 4)) == [
        "pd.yaml:10000:3: more than 10000 keys and values",
        "  10000 | - 1",
        "        |   ^",
    ]
