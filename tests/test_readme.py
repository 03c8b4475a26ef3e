"""README's tables are made from the code; each test prints what to paste when they differ."""

import re
from pathlib import Path

import pytest

from pdctl.base.exits import ExitCode

ROOT = Path(__file__).parents[1]


def commands() -> str:
    from typer.main import get_command

    from pdctl.cli.app import app

    group = get_command(app)
    rows = []
    for name in sorted(group.commands):  # type: ignore[attr-defined]
        first = (group.commands[name].help or "").strip().split("\n")[0]  # type: ignore[attr-defined]
        rows.append(f"| `{name}` | {first} |")
    return "\n".join(rows)


def exits() -> str:
    source = (ROOT / "pdctl/base/exits.py").read_text()
    rows = []
    for code in ExitCode:
        said = re.search(rf'{code.name} = {code.value}\n    """(.*?)"""', source, re.DOTALL)
        assert said is not None, f"{code.name} has no docstring"
        rows.append(f"| {code.value} | {' '.join(said.group(1).split())} |")
    return "\n".join(rows)


@pytest.mark.parametrize("block", [commands, exits])
def test_generated_blocks_are_current(block) -> None:
    name = block.__name__
    text = (ROOT / "README.md").read_text()
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- end {name} -->", text, re.DOTALL)
    assert found is not None
    assert found.group(1).strip() == block()


def test_every_link_to_a_file_leads_somewhere() -> None:
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} → {target}"


def test_every_environment_variable_is_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    names = set()
    for path in (ROOT / "pdctl" / "cli").glob("*.py"):
        names |= set(re.findall(r'"(PDCTL_\w+)"', path.read_text()))
    names |= set(re.findall(r'"(PDCTL_\w+)"', (ROOT / "pdctl/base/paths.py").read_text()))
    assert {name for name in names if name not in text} == set()
