"""docs/router.md names every limit with its default, every metric, and every reason."""

import re
from dataclasses import fields
from pathlib import Path

from pdctl.base.requestlog import RequestRecord
from pdctl.config.model import RouterLimits
from pdctl.engine.example import LIMITS
from pdctl.router.metrics import RouterMetrics

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


def test_every_metric_is_in_the_table_with_its_labels() -> None:
    metrics = RouterMetrics()
    told = set(re.findall(r"^\| `(pdctl_router_\w+(?:{[\w,]+})?)`", DOC, re.MULTILINE))
    has = set()
    for metric, names in metrics.registry._collector_to_names.items():
        labels = ",".join(metric._labelnames)
        name = next((name for name in names if name.endswith("_total")), metric._name)
        has.add(f"{name}{{{labels}}}" if labels else name)
    assert told == has


def found(pattern: str, *modules: str) -> set[str]:
    texts = [(ROOT / "pdctl" / "router" / f"{module}.py").read_text() for module in modules]
    words = set(re.findall(pattern, "\n".join(texts)))
    assert words, pattern
    return words


def test_every_reason_of_a_turn_is_explained() -> None:
    reasons = found(r'report\.reason = "([a-z_]+)"', "core")
    reasons |= found(r'return \(?"([a-z_]+)"', "core", "fleet")
    reasons |= found(r' else "([a-z_]+)"', "core")
    assert {"expired", "below_threshold", "left_to_another", "pair_paused"} <= reasons
    assert [reason for reason in sorted(reasons) if f"`{reason}`" not in DOC] == []


def test_every_reason_of_a_release_is_explained() -> None:
    begin, end = DOC.index("### What is given back"), DOC.index("### Which servers get a turn")
    told = set(re.findall(r"`(\w+)`", DOC[begin:end]))
    reasons = found(r'return None, "(\w+)"', "core")
    reasons |= found(r'give_back_all\(.*"(\w+)"\)', "engine_switch", "server")
    reasons |= found(r'return "(\w+)"', "match")
    giving = ("core", "driver", "engine_switch", "giving", "watch", "server")
    reasons |= found(r'(?:let_go|release_of)\(.*"(\w+)"\)', *giving)
    reasons |= found(r'let_go\(.*"(\w+)"\)', "admin") | found(r', "(client_\w+)"\)', "driver")
    reasons |= found(r'releases\.labels\((?:.* else )?"(\w+)"', "giving")
    assert reasons - told == set()
