"""Whatever is in the file: an error has a place in it, and nothing but our own errors comes out."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.base.errors import PdctlError
from pdctl.base.problems import ConfigError, Loc, Problem
from pdctl.config.load import loads
from pdctl.config.syntax import BREAKS, compose
from pdctl.config.tree import grow

KEYS = ["name", "model", "id", "kv", "target", "kind", "hosts", "router", "port", "zzz", "tp", "on"]
NAMES = st.sampled_from(KEYS) | st.text(max_size=6)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False)
    | st.text(max_size=12)
    | st.sampled_from(["local", "ssh", "1:30", "010", "1.10", "on", "8m", "redis://h"])
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
MAPPINGS = st.dictionaries(NAMES, VALUES, max_size=6)
LOCS = st.lists(NAMES | st.integers(0, 3), max_size=5).map(tuple)
VALID = {"name": "x", "model": {"id": "a"}, "target": {"kind": "local"}}


def paths_of(value: object, above: Loc = ()) -> list[Loc]:
    found: list[Loc] = [above]
    if isinstance(value, dict):
        for key, inner in value.items():
            found += paths_of(inner, (*above, key))
    if isinstance(value, list):
        for index, inner in enumerate(value):
            found += paths_of(inner, (*above, index))
    return found


@given(MAPPINGS.filter(bool), st.data(), st.booleans(), st.booleans())
def test_every_loc_is_placed_within_the_file(
    value: dict[str, Any], data: st.DataObject, flow: bool, on_key: bool
) -> None:
    text = yaml.safe_dump(value, default_flow_style=flow, allow_unicode=True)
    root = compose(text.encode())
    assert root is not None
    tree = grow(root)
    for loc in [*paths_of(tree.value), data.draw(LOCS)]:
        problem = tree.place(Problem(loc, "m", on_key=on_key))
        lines = BREAKS.split(text)
        assert 1 <= problem.line <= len(lines)
        assert 1 <= problem.column <= len(lines[problem.line - 1]) + 1


@given(MAPPINGS)
@settings(deadline=None)
def test_any_mapping_loads_or_has_every_problem_placed(value: dict[str, Any]) -> None:
    text = yaml.safe_dump({**VALID, **value}, allow_unicode=True)
    try:
        loads(text.encode(), file="pd.yaml", base=Path("/srv"))
    except ConfigError as error:
        for problem in error.problems:
            assert problem.message
            assert 1 <= problem.line <= len(BREAKS.split(text))
            assert problem.column >= 1
        for line in error.detail:
            assert "\n" not in line
            assert "pydantic" not in line


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_any_bytes_raise_nothing_but_our_errors(data: bytes) -> None:
    with suppress(PdctlError):
        loads(data, file="pd.yaml", base=Path("/srv"))


@given(st.text(alphabet="namekvid: []{}&*!|>'\"%@#,?-.~<10\n", max_size=120))
@settings(deadline=None)
def test_text_that_looks_like_yaml_raises_nothing_but_our_errors(text: str) -> None:
    whole = "name: x\nmodel: {id: a}\ntarget: {kind: local}\n" + text
    with suppress(PdctlError):
        loads(whole.encode(), file="pd.yaml", base=Path("/srv"))
