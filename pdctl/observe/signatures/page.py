"""docs/signatures.md, made from the table; a test compares the file with it."""

from collections.abc import Sequence

from pdctl.base.words import listed
from pdctl.observe.signatures.model import Signature

_HEAD = """\
# Signatures

<!-- Made from the table in pdctl/observe/signatures/; a test compares them. To write it anew:
     python -c "from pdctl.observe.signatures import SIGNATURES, page; \
print(page.signatures_page(SIGNATURES), end='')" > docs/signatures.md -->

What `pdctl logs` knows. [logs.md](logs.md) says how logs are read; `pdctl explain ID` prints a
section of this page. `block`: it cannot work, or answers may be wrong. `degrade`: it works, slower
or less safely. `note`: worth knowing. `good`: a sign that something works.

A consequence is counted, and listed behind its cause where that was found too. Sources: *run* was
seen on real engines by this project, *read* was read in source code, `vllm#…` is an issue or pull
request of that repository, "upstream bug list" a collection of such that this project began from;
what has neither *run* nor *read* was taken from there and not checked.
"""


def signatures_page(signatures: Sequence[Signature]) -> str:
    """The whole page: an overview, then one section a signature."""
    rows = [
        f"| [{each.id}](#{each.id.replace('.', '')}) | {_weight(each)} | {each.title} |"
        for each in signatures
    ]
    table = "\n".join(["", "| id | weight | says |", "|---|---|---|", *rows, ""])
    return _HEAD + table + "".join(_section(each) for each in signatures)


def _weight(signature: Signature) -> str:
    return "good" if signature.good else signature.severity


def _section(signature: Signature) -> str:
    lines = [
        "",
        f"## {signature.id}",
        "",
        f"{signature.title[0].upper()}{signature.title[1:]}.",
        "",
        f"- `{_weight(signature)}`; {_written(signature)}",
        f"- {signature.meaning}",
        f"- fix: {signature.fix.text}",
        *(f"  - `{command}`" for command in signature.fix.commands),
    ]
    if signature.fields:
        lines.append(f"- fields: {', '.join(f'`{name}`' for name in signature.fields)}")
    if signature.follows:
        causes = ", ".join(f"`{cause}`" for cause in signature.follows)
        lines.append(f"- a consequence of: {causes}")
    lines.append(f"- source: {signature.source}")
    return "\n".join(lines) + "\n"


def _written(signature: Signature) -> str:
    if signature.derived:
        return f"concluded from several lines of {listed(list(signature.roles))}"
    literals = ", ".join(f"`{literal.strip()}`" for literal in signature.literals)
    return (
        f"written by {listed(list(signature.roles))} ({signature.versions}), in a line with "
        f"{literals}"
    )
