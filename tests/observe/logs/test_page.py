"""docs/signatures.md is as the table is, and docs/logs.md says what the command has."""

import re
from pathlib import Path

from pdctl.observe.signatures import SIGNATURES
from pdctl.observe.signatures.page import signatures_page
from tests.cli.helpers import run_cli

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_of_signatures_is_current() -> None:
    assert (DOCS / "signatures.md").read_text() == signatures_page(SIGNATURES)


def test_every_signature_has_its_anchor() -> None:
    page = signatures_page(SIGNATURES)
    for signature in SIGNATURES:
        assert f"\n## {signature.id}\n" in page
        # As the usual renderers make anchors: lower case, without dots.
        assert signature.docs.partition("#")[2] == re.sub(r"[^\w-]", "", signature.id.lower())


def test_every_option_is_described_and_every_id_exists() -> None:
    text = (DOCS / "logs.md").read_text()
    options = set(re.findall(r"--[a-z-]+", run_cli("logs", "--help").stdout))
    assert options - {"--help", "--name", "--file"} <= set(re.findall(r"--[a-z-]+", text))
    ids = {signature.id for signature in SIGNATURES}
    named = set(re.findall(r"`((?:kv|nixl|router|logs|engine)\.\w+(?:\.\w+)?)`", text))
    assert named - {"router.ttl", "kv.decoder_ttl"} <= ids
