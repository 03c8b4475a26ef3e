"""docs/analyze.md and docs/tuning.md: examples are what is printed, keys those that are emitted."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.cli.helpers import run_cli

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/analyze.md").read_text()
TUNING = (ROOT / "docs/tuning.md").read_text()
EXAMPLE = "examples/requests.jsonl"


@pytest.fixture(autouse=True)
def at_home(monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.mark.parametrize("block", re.findall(r"```console\n\$ (.*?)```", TEXT + TUNING, re.DOTALL))
def test_examples_print_what_is_shown(block: str) -> None:
    command, _, shown = block.partition("\n")
    printed = run_cli(*shlex.split(command)[1:]).stdout
    assert [line.rstrip() for line in printed.splitlines()] == shown.splitlines()


def documented(name: str) -> set[str]:
    found = re.search(rf"<!-- {name} keys -->\n(.*?)<!-- end", TEXT, re.DOTALL)
    assert found is not None
    first = [row.split("|")[1] for row in found.group(1).splitlines()]
    return {key for cell in first for key in re.findall(r"`([^`]+)`", cell)}


def emitted(value: object, path: str = "") -> set[str]:
    if isinstance(value, dict) and path not in ("lines.left_out",):
        return {
            key
            for name, inner in value.items()
            for key in emitted(inner, f"{path}.{name}" if path else name)
        }
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return set().union(*(emitted(each, f"{path}[]") for each in value))
    return {path}


def test_keys_of_analyze(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (ROOT / EXAMPLE).read_text().splitlines()]
    for number, row in enumerate(rows):
        row["reused_tokens"] = row["prompt_tokens"] // 2 * (number % 2)
    log = tmp_path / "log"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = run_cli("analyze", str(log), "--json", "--capacity", "5000000").json
    assert told["ttft"]["measured"] is not None
    assert emitted(told) == documented("analyze")


def test_keys_of_size() -> None:
    ask = ["--sessions", "50", "--turn-gap", "30", "--context", "5000"]
    assert emitted(run_cli("size", *ask, "--json").json) == documented("size")


def test_the_example_is_what_its_script_makes(capsys) -> None:
    scope: dict[str, object] = {"__name__": "example"}
    exec((ROOT / "examples/make_requests.py").read_text(), scope)
    scope["main"]()  # type: ignore[operator]
    assert capsys.readouterr().out == (ROOT / EXAMPLE).read_text()
