"""The pages that are made from tables are as the tables are."""

from pathlib import Path

from pdctl.doctor.checks import CHECKS
from pdctl.doctor.pages import checks_page

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_of_checks_is_current() -> None:
    assert (DOCS / "checks.md").read_text() == checks_page(CHECKS)


def test_every_check_has_its_anchor() -> None:
    page = checks_page(CHECKS)
    for check in CHECKS:
        # As the usual renderers make anchors: lower case, without dots.
        assert f"\n## {check.id}\n" in page
        assert check.docs.partition("#")[2] == check.id.lower().replace(".", "")
