import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pdctl.base.errors import BadAnswerError
from pdctl.config.edit import with_value

TTL = ("kv", "decoder_ttl")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("kv:\n  decoder_ttl: 480  # why\n", "kv:\n  decoder_ttl: 60  # why\n"),
        ("kv: {decoder_ttl: 8m, backends: [UCX]}\n", "kv: {decoder_ttl: 60, backends: [UCX]}\n"),
        ("kv: {backends: [UCX]}\n", "kv: {decoder_ttl: 60, backends: [UCX]}\n"),
        ("kv: {}\n", "kv: {decoder_ttl: 60}\n"),
        (
            "kv:\n  # of both\n  backends: [UCX]\nname: x\n",
            "kv:\n  # of both\n  decoder_ttl: 60\n  backends: [UCX]\nname: x\n",
        ),
        ("name: x # mine\n", "kv:\n  decoder_ttl: 60\nname: x # mine\n"),
        ("", "kv:\n  decoder_ttl: 60\n"),
        ('"kv":\n    "decoder_ttl": "8m"\n', '"kv":\n    "decoder_ttl": 60\n'),
    ],
)
def test_one_value_changes_and_all_else_stays(before: str, after: str) -> None:
    assert with_value(before, TTL, 60) == after


@pytest.mark.parametrize("text", ["kv: 3\n", "kv: [1]\n", "kv:\n  decoder_ttl: [1]\n", "[]\n"])
def test_what_is_no_place_for_it_is_an_error(text: str) -> None:
    with pytest.raises(BadAnswerError):
        with_value(text, TTL, 60)


NAMES = st.sampled_from(["kv", "decoder_ttl", "name", "a"])
VALUES = st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)


SECTIONS = st.dictionaries(NAMES, VALUES, max_size=3)


@given(
    document=st.dictionaries(NAMES, VALUES | SECTIONS, max_size=4),
    flow=st.sampled_from([None, True, False]),
    indent=st.integers(2, 5),
)
def test_what_is_read_afterwards_is_the_same_but_for_the_value(
    document: dict[str, object], flow: bool | None, indent: int
) -> None:
    text = yaml.safe_dump(document, default_flow_style=flow, indent=indent, sort_keys=False)
    kv = document.get("kv", {})
    try:
        changed = yaml.safe_load(with_value(text, TTL, 60))
    except BadAnswerError:
        assert not isinstance(kv, dict) or isinstance(kv.get("decoder_ttl"), list)
        return
    assert isinstance(kv, dict)
    assert changed == {**document, "kv": {**kv, "decoder_ttl": 60}}
