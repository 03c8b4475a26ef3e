"""What is taken out of text that is given away, and what must stay in it."""

import time

import pytest

from pdctl.base.redact import redacted


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("redis://user:hunter22@host:6379/0", "redis://***@host:6379/0"),
        ("store: rediss://:hunter22@h", "store: rediss://***@h"),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer ***"),
        ("HF_TOKEN=hf_abcdefgh12345", "HF_TOKEN=***"),
        ("--api-key 0123abcd --port 8000", "--api-key *** --port 8000"),
        ('{"api_key": "0123abcd", "port": 1}', '{"api_key": "***", "port": 1}'),
        ("password: correcthorse", "password: ***"),
        ("the key sk-0123456789ab is in it", "the key *** is in it"),
        ("AKIAIOSFODNN7EXAMPLE", "***"),
        ("-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\nx", "***\nx"),
    ],
)
def test_secrets_go(text: str, kept: str) -> None:
    assert redacted(text) == kept


@pytest.mark.parametrize(
    "text",
    [
        "turn 2 reused 271 of 336 prompt tokens",
        "max_tokens: 8192, prompt_token_ids: [1, 2]",
        "`router.api_keys_file` cannot be read: No such file",
        "api_keys_file: /etc/pdctl/keys",
        "http://10.0.0.1:8100 → http://10.0.0.2:8200",
        "`--tokenizer` belongs in `model.extra_args`",
        "token: null, secret: ***",
        "kv_recompute_threshold: 64 → 128",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == text


def test_known_secrets_go_wherever_they_stand_and_short_ones_do_not() -> None:
    assert redacted("it says plainword twice: plainword", ["plainword"]) == (
        "it says *** twice: ***"
    )
    assert redacted("abc in abcdef", ["abc", "abcdef"]) == "abc in ***"


def test_a_long_line_does_not_take_long() -> None:
    began = time.monotonic()
    for line in ("a_" * 50_000, "token" * 20_000, "a://" * 20_000, "x" * 100_000):
        redacted(line)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("redis://:p@ssw0rd@host/0", "redis://***@host/0"),
        ("redis://u:pa/ss1@host/0", "redis://***@host/0"),
        ("--api-key lettersonly --port 1", "--api-key *** --port 1"),
        ("--hf-token lettersonly", "--hf-token ***"),
        ('password: "correct horse battery"', 'password: "***"'),
        ("{'api_key': ['first1', 'second2'], 'port': 1}", "{'api_key': ***, 'port': 1}"),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic ***"),
        ("aws_secret_access_key = wJalr/K7MDENG", "aws_secret_access_key = ***"),
        ("requirepass lettersonly", "requirepass ***"),
    ],
)
def test_secrets_of_odd_shapes_go_whole(text: str, kept: str) -> None:
    assert redacted(text) == kept
    assert redacted(kept) == kept
