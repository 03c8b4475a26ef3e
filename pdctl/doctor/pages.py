"""docs/checks.md, made from the table; a test compares the file with it."""

from collections.abc import Sequence

from pdctl.doctor.table import Check

_HEAD = """\
# Checks

<!-- Made from the table in pdctl/doctor/rows; a test compares them. To write it anew:
     python -c "from pdctl.doctor import checks, pages; print(pages.checks_page(checks.CHECKS), \
end='')" > docs/checks.md -->

In the order they are judged. A check whose needs fail is skipped, so that one cause gives one
finding. `block`: it cannot work. `degrade`: it works, slower or less safely. `note`: worth knowing.
"""


def checks_page(checks: Sequence[Check]) -> str:
    """The whole page, one section a check."""
    return _HEAD + "".join(_section(check) for check in checks)


def _section(check: Check) -> str:
    needs = ", ".join(f"`{need}`" for need in check.needs) or "nothing"
    lines = [
        "",
        f"## {check.id}",
        "",
        f"Passes when {check.title}.",
        "",
        f"- of each {check.scope}; `{check.severity}`; needs {needs}",
        f"- otherwise: {check.meaning}",
        f"- fix: {check.fix.text}",
        *(f"  - `{command}`" for command in check.fix.commands),
    ]
    return "\n".join(lines) + "\n"
