"""Every `FACTS T3` in the repository leads to something in docs/facts.md."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
REFERENCE = re.compile(r"FACTS ((?:[TL]\d+|\d+)(?:, (?:[TL]\d+|\d+))*)")


def test_every_reference_to_a_fact_is_there() -> None:
    page = (ROOT / "docs" / "facts.md").read_text()
    known = set(re.findall(r"^\| ([TL]\d+) \|", page, re.MULTILINE))
    known |= set(re.findall(r"^## (\d+)\.", page, re.MULTILINE))
    missing = {
        f"{path.relative_to(ROOT)}: {number}"
        for folder in ("pdctl", "tests", "docs", "templates")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md", ".j2", ".yaml")
        for listed in REFERENCE.findall(path.read_text())
        for number in listed.split(", ")
        if number not in known
    }
    assert missing == set()
