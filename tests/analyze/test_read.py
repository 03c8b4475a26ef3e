"""Lines that are not as they should be: counted, shown, and the rest is read."""

import pytest

from pdctl.analyze.read import SHOWN, JsonReader, is_rich

GOOD = b'{"conversation_id": "c", "ts": 1.5, "prompt_tokens": 7}\n'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"nonsense", "it is no JSON"),
        (b"[1, 2]", "it is no JSON object"),
        (b'{"conversation_id": "c", "ts": 1}', "`prompt_tokens` is missing"),
        (b'{"conversation_id": "c", "prompt_tokens": 1}', "`ts` is missing"),
        (b'{"ts": 1, "prompt_tokens": 1}', "`conversation_id` is missing"),
        (b'{"conversation_id": "c", "ts": "x", "prompt_tokens": 1}', "Expected `float`"),
        (b'{"conversation_id": "c", "ts": 1, "prompt_tokens": 1.5}', "Expected `int`"),
        (b'{"conversation_id": "c", "ts": 1, "prompt_tokens": -1}', "Expected `int` >= 0"),
        (b'{"conversation_id": [], "ts": 1, "prompt_tokens": 1}', "Expected `int | str`"),
        (b'{"conversation_id": "c", "ts": 1e300, "prompt_tokens": 1}', "Expected `float` <="),
        (b'{"conversation_id": "c", "ts": NaN, "prompt_tokens": 1}', "it is no JSON"),
        (b'{"conversation_id": "\xff", "ts": 1, "prompt_tokens": 1}', "it is no JSON"),
    ],
)
def test_a_bad_line_is_named_and_the_rest_is_read(line: bytes, reason: str) -> None:
    reader = JsonReader(rich=False)
    assert len(reader.rows(GOOD * 2)) == 2
    assert len(reader.rows(GOOD + line + b"\n" + GOOD)) == 2
    assert reader.reading.bad == 1
    assert reader.reading.first_bad[0].number == 4
    assert reader.reading.first_bad[0].reason.startswith(reason)
    assert reader.reading.lines == 5


def test_a_carriage_return_within_a_line_is_no_line_of_its_own() -> None:
    reader = JsonReader(rich=False)
    whole = b'{"conversation_id":"a",\r"ts":1,"prompt_tokens":3}\r\n'
    rows = reader.rows(whole + b"bad\rline\r\n")
    assert [row.prompt_tokens for row in rows] == [3]
    assert (reader.reading.lines, reader.reading.bad) == (2, 1)
    assert reader.reading.first_bad[0].number == 2


def test_only_some_bad_lines_are_kept() -> None:
    reader = JsonReader(rich=False)
    reader.rows(b"x\n" * 100)
    assert reader.reading.bad == 100
    assert len(reader.reading.first_bad) == SHOWN


def test_empty_lines_and_whole_numbers_written_as_fractions_are_no_fault() -> None:
    reader = JsonReader(rich=False)
    rows = reader.rows(b'\n  \r\n{"conversation_id": 3, "ts": 1, "prompt_tokens": 7.0}\r\n' + GOOD)
    assert [row.prompt_tokens for row in rows] == [7, 7]
    assert reader.reading.bad == 0
    assert reader.reading.lines == 4


def test_a_request_without_a_count_is_no_turn_and_no_fault() -> None:
    reader = JsonReader(rich=False)
    assert not reader.rows(b'{"conversation_id": "c", "ts": 1, "prompt_tokens": null}\n')
    assert reader.reading.bad == 0
    assert sum(reader.reading.left_out.values()) == 1


def test_a_log_that_says_more_is_known_by_its_keys() -> None:
    assert not is_rich(GOOD * 3)
    assert is_rich(GOOD + b"x\n" + GOOD.replace(b"}", b', "output_tokens": 3}'))
