"""docs/router.md names every limit with its default, and every reason a turn can have."""

import re
from dataclasses import fields
from pathlib import Path

from pdctl.base.requestlog import RequestRecord
from pdctl.config.model import RouterLimits
from pdctl.engine.example import LIMITS

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "router.md").read_text()


def limit_rows() -> str:
    rows = []
    for name, field in RouterLimits.model_fields.items():
        first = (field.description or "").split("\n")[0].rstrip(".")
        rows.append(f"| `{name}` | {field.default:g} | {first[0].lower()}{first[1:]} |")
    return "\n".join(rows)


def test_the_table_of_limits_is_the_configurations_own() -> None:
    table = re.search(r"<!-- limits -->\n(.*?)\n?<!-- end limits -->", DOC, re.DOTALL)
    assert table is not None
    assert table.group(1) == limit_rows()


def test_the_example_proxys_limits_are_those_that_status_says() -> None:
    listed = re.search(r"<!-- example limits -->\n(.*?)\n<!-- end", DOC, re.DOTALL)
    assert listed is not None
    assert listed.group(1).splitlines() == [f"- {limit}" for limit in LIMITS]


def test_the_request_logs_fields_are_explained() -> None:
    for field in fields(RequestRecord):
        assert f"`{field.name}`" in DOC


def test_every_reason_is_explained() -> None:
    source = (ROOT / "pdctl" / "router" / "core.py").read_text()
    reasons = set(re.findall(r'report\.reason = "([a-z_]+)"', source))
    reasons |= set(re.findall(r'return "(\w+)"', (ROOT / "pdctl/router/fleet.py").read_text()))
    assert reasons
    missing = sorted(reason for reason in reasons if f"`{reason}`" not in DOC)
    assert missing == []
