"""Unquoted words: the same to every YAML reader, or refused."""

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pdctl.config.scalars import Trap, read, shown

VALUES = {
    "": None,
    "~": None,
    "null": None,
    "true": True,
    "False": False,
    "0": 0,
    "-3": -3,
    "480": 480,
    "0.9": 0.9,
    ".5": 0.5,
    "1.10": 1.1,
    "1.5e-3": 0.0015,
    "on": "on",
    "off": "off",
    "Yes": "Yes",
    "n": "n",
    "0.33.0": "0.33.0",
    "10.0.0.1": "10.0.0.1",
    "8000:8000": "8000:8000",
    "8m": "8m",
    "::1": "::1",
    "fp8_e4m3": "fp8_e4m3",
    "_": "_",
    "NO": "NO",
}


@pytest.mark.parametrize(("word", "value"), VALUES.items())
def test_value(word: str, value: object) -> None:
    assert read(word) == value
    assert type(read(word)) is type(value)


TRAPS = {
    "1:30": (
        "`1:30` is a number in base 60 in YAML 1.1 and text in YAML 1.2",
        'write 1m30s or 1h30m for a duration, "1:30" for text',
    ),
    "1:30:20": (
        "`1:30:20` is a number in base 60 in YAML 1.1 and text in YAML 1.2",
        'write 1h30m20s for a duration, "1:30:20" for text',
    ),
    "1:30.5": (
        "`1:30.5` is a number in base 60 in YAML 1.1 and text in YAML 1.2",
        'write "1:30.5" for text',
    ),
    "22:22:22:22": (
        "`22:22:22:22` is a number in base 60 in YAML 1.1 and text in YAML 1.2",
        'write "22:22:22:22" for text',
    ),
    "010": (
        "`010` is octal in YAML 1.1 and decimal in YAML 1.2",
        'write "010" for text, or a plain number',
    ),
    "1_000": (
        "`1_000` is a number in YAML 1.1 and text in YAML 1.2",
        'write "1_000" for text, or a plain number',
    ),
    "0x1f": (
        "`0x1f` is a number that not every YAML reader knows",
        'write "0x1f" for text, or a plain number',
    ),
    "0o17": (
        "`0o17` is a number that not every YAML reader knows",
        'write "0o17" for text, or a plain number',
    ),
    "1e3": (
        "`1e3` is a number in YAML 1.2 and may be text in YAML 1.1",
        'write "1e3" for text, or a plain number',
    ),
    "9216e57": (
        "`9216e57` is a number in YAML 1.2 and may be text in YAML 1.1",
        'write "9216e57" for text, or a plain number',
    ),
    "+5": ("`+5` is a number in an unusual form", 'write "+5" for text, or a plain number'),
    "-0": ("`-0` is a number in an unusual form", 'write "-0" for text, or a plain number'),
    "9" * 20: (
        f"`{'9' * 20}` is a number in an unusual form",
        f'write "{"9" * 20}" for text, or a plain number',
    ),
    "2026-11-29": (
        "`2026-11-29` is a date in YAML 1.1 and text in YAML 1.2",
        'write "2026-11-29"',
    ),
    "2026-11-29T10:00:00Z": (
        "`2026-11-29T10:00:00Z` is a date in YAML 1.1 and text in YAML 1.2",
        'write "2026-11-29T10:00:00Z"',
    ),
    ".inf": ("`.inf` is not a finite number", 'write ".inf" for text'),
    "-.INF": ("`-.INF` is not a finite number", 'write "-.INF" for text'),
    ".nan": ("`.nan` is not a finite number", 'write ".nan" for text'),
}


@pytest.mark.parametrize(("word", "words"), TRAPS.items())
def test_trap(word: str, words: tuple[str, str]) -> None:
    assert read(word) == Trap(*words)


@settings(max_examples=300)
@example("0._")
@given(st.from_regex(r"\A[-+0-9.:_eExobTZ]{1,12}\Z"))
def test_whatever_is_accepted_means_the_same_to_pyyaml(word: str) -> None:
    value = read(word)
    if not isinstance(value, Trap):
        assert _to_pyyaml(word) == value


def _to_pyyaml(word: str) -> object:
    loader = yaml.SafeLoader("")
    tag = loader.resolve(yaml.ScalarNode, word, (True, False))
    return loader.construct_object(yaml.ScalarNode(tag, word))


@given(st.text(max_size=200))
def test_shown_is_one_short_printable_line(text: str) -> None:
    assert shown(text).isprintable()
    assert len(shown(text)) <= 60
