"""Taking secrets out of text that is shown or given away.

What is known to be secret is named by whoever has it; the rest is told by how it looks. Too much is
taken out rather than too little.
"""

import re
from collections.abc import Iterable

from pdctl.base.command import MASK

_NAME = (
    r"[A-Za-z0-9_.\-]{0,40}"
    r"(?:(?:api|access)[_-]?key|token|secret|passw(?:or)?d|credential|authorization)"
)
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # `redis://user:password@host`, whatever the scheme; a password may have an @ or a / in it.
    (
        re.compile(r"(?P<keep>\b[a-z][a-z0-9+.\-]*://)[^\s/@]{0,200}:[^\s\"'`,]{0,200}@", re.I),
        rf"\g<keep>{MASK}@",
    ),
    (re.compile(r"(?P<keep>\b[a-z][a-z0-9+.\-]*://)[^\s/@]+@", re.IGNORECASE), rf"\g<keep>{MASK}@"),
    (re.compile(r"(?P<keep>\bBearer\s+)[^\s\"',;]+", re.IGNORECASE), rf"\g<keep>{MASK}"),
    (
        re.compile(r"(?P<keep>\bAuthorization[\"']?\s*[=:]\s*[\"']?Basic\s+)[^\s\"',;]+", re.I),
        rf"\g<keep>{MASK}",
    ),
    # `--api-key WORD`, where only a value can follow, and `requirepass WORD` of Redis.
    (
        re.compile(
            r"(?P<keep>--(?:[a-z]{1,20}-)?(?:api-key|token|secret|password)\s+|\brequirepass\s+)"
            r"[^\s\"',;-][^\s\"',;]*",
            re.IGNORECASE,
        ),
        rf"\g<keep>{MASK}",
    ),
    # `password: "several words"`, and vLLM's `'api_key': ['…', '…']`.
    (
        re.compile(
            rf"(?P<keep>(?<![A-Za-z0-9]){_NAME}[\"']?\s*[=:]\s*)"
            r"(?P<open>\[\s*(?=[\"'])|(?P<quote>[\"']))(?!\*\*\*)"
            r"(?(quote)(?:(?!(?P=quote))[^\n]){4,}(?P=quote)|[^\]\n]{4,}\])",
            re.IGNORECASE,
        ),
        rf"\g<keep>\g<quote>{MASK}\g<quote>",
    ),
    # `HF_TOKEN=…`, `--api-key …`, `"password": "…"`: a name, a sign, and one word.
    (
        re.compile(
            rf"(?P<keep>(?<![A-Za-z0-9]){_NAME}[\"']?\s*(?:[=:]\s*|\s+(?=\S*[0-9])))"
            r"(?P<quote>[\"']?)(?!\*\*\*)(?!None\b|null\b|true\b|false\b|Bearer\b|Basic\b)[^\s\"',;}\]]{4,}",
            re.IGNORECASE,
        ),
        rf"\g<keep>\g<quote>{MASK}",
    ),
    (re.compile(r"\b(?:hf_|sk-|ghp_|github_pat_)[A-Za-z0-9_\-]{8,}"), MASK),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b"), MASK),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)", re.S), MASK),
)
_SHORTEST = 4  # a key of fewer characters is a word like any other


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without what looks like a secret, and without these.

    Args:
        secrets: values that are known to be secret.
    """
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, MASK)
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text
