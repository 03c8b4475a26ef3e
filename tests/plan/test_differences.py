from dataclasses import replace

import pytest

from pdctl.base.command import Command, Secret
from pdctl.plan.differences import by_option, differences
from pdctl.state.model import record_of
from tests.plan.samples import spec


def test_what_was_rendered_the_same_has_no_difference() -> None:
    same = spec("decode", port=8200, side=5601)
    assert differences(record_of(same, log="l", engine_id=None), same) == ()


def test_every_kind_of_difference_is_one_line() -> None:
    old = replace(
        spec("decode", port=1, side=None),
        command=Command(
            (
                "python",
                "-m",
                "x",
                "--seqs",
                "8",
                "--old",
                "1",
                "--eager",
                "--kv",
                '{"a":1,"b":{"ttl":480}}',
            ),
            {"A": "1", "GONE": "x", "KEY": Secret("one")},
            "/tmp/a",
        ),
    )
    new = replace(
        old,
        command=Command(
            (
                "python3",
                "-m",
                "x",
                "--seqs=16",
                "--new",
                "2",
                "--fast",
                "--kv",
                '{"a":1,"b":{"ttl":300},"c":[]}',
            ),
            {"A": "2", "NEW": "y", "KEY": Secret("two")},
            "/tmp/b",
        ),
    )
    assert differences(record_of(old, log="l", engine_id=None), new) == (
        "program: python -m x → python3 -m x",
        "--seqs: 8 → 16",
        "--old: 1 → not given",
        "--eager: no longer given",
        "--kv b.ttl: 480 → 300",
        "--new: not given → 2",
        "--fast: newly given",
        "--kv c: not given → []",
        "A: 1 → 2",
        "GONE: x → not given",
        "NEW: not given → y",
        "working directory: /tmp/a → /tmp/b",
    )


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ((), {}),
        (("p", "--a", "1", "--a", "2"), {"program": "p", "--a": "1 2"}),
        (("p", "--url", "http://x", "-1"), {"program": "p", "--url": "http://x -1"}),
        (("p", "--text", "{not json"), {"program": "p", "--text": "{not json"}),
        (("p", "--kv", "{}"), {"program": "p", "--kv": "{}"}),
    ],
)
def test_arguments_by_option(argv: tuple[str, ...], expected: dict[str, str]) -> None:
    assert by_option(argv) == expected
