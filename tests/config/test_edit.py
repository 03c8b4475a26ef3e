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


@pytest.mark.parametrize(
    ("value", "written"),
    [(1234567.0, "1234567"), (12345.67, "12345.67"), (0.5, "0.5"), (60, "60")],
)
def test_the_value_is_written_whole(value: float, written: str) -> None:
    assert with_value("kv:\n  decoder_ttl: 8m\n", TTL, value) == f"kv:\n  decoder_ttl: {written}\n"


@pytest.mark.parametrize("old", ["", " |\n    8m", " 8m"])
def test_an_empty_or_a_long_value_is_replaced_and_no_more(old: str) -> None:
    changed = with_value(f"kv:\n  decoder_ttl:{old}\nname: x\n", TTL, 60)
    assert yaml.safe_load(changed) == {"kv": {"decoder_ttl": 60}, "name": "x"}


@pytest.mark.parametrize(
    "text",
    [
        "other: &t 8m\nkv:\n  decoder_ttl: *t\n",
        "kv:\n  decoder_ttl: &t 8m\nother: *t\n",
        "other: &t\n  decoder_ttl: 8m\nkv: *t\n",
        "other: &t\n  backends: [UCX]\nkv: *t\n",
    ],
)
def test_what_another_key_shares_is_not_changed(text: str) -> None:
    with pytest.raises(BadAnswerError, match="shares its value"):
        with_value(text, TTL, 60)
