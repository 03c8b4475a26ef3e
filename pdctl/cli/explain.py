"""`pdctl explain`: what a check or a signature means, how it is found, and what to do."""

from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.base.errors import UsageError
from pdctl.cli import options, ui

if TYPE_CHECKING:
    from pdctl.doctor.table import Check
    from pdctl.observe.signatures.model import Signature


def explain(
    id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Of a check or a signature; none: list.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Explain a finding of `doctor` or `logs` by its id; without an id, list all.

    Exit status 2: there is no such id; the nearest are named.
    """
    from pdctl.doctor.checks import CHECKS
    from pdctl.observe.signatures import BY_ID, SIGNATURES

    checks = {check.id: check for check in CHECKS}
    if id is None:
        rows = [[c.id, "check", c.severity, c.title] for c in CHECKS]
        rows += [[s.id, "signature", "good" if s.good else s.severity, s.title] for s in SIGNATURES]
        if json:
            ui.json([dict(zip(("id", "kind", "severity", "title"), row)) for row in rows])  # noqa: B905
        else:
            ui.table(["id", "of", "severity", "says"], rows)
        return
    if id not in checks and id not in BY_ID:
        raise _unknown(id, [*checks, *BY_ID])
    texts = [_of_check(checks[id])] if id in checks else []
    texts += [_of_signature(BY_ID[id])] if id in BY_ID else []
    if json:
        ui.json(texts[0] if len(texts) == 1 else texts)
        return
    for text in texts:
        _show(text)


def _unknown(id: str, known: list[str]) -> UsageError:
    import difflib

    near = difflib.get_close_matches(id, known, n=3, cutoff=0.5)
    near += [each for each in known if id.lower() in each and each not in near][:3]
    return UsageError(
        f"`{id}` is no check and no signature",
        expected=" or ".join(f"`{each}`" for each in near) if near else "an id",
        hints=["`pdctl explain` lists all"],
    )


def _of_check(check: "Check") -> dict[str, object]:
    needs = f"; judged after {', '.join(check.needs)}" if check.needs else ""
    return {
        "id": check.id,
        "kind": "check",
        "title": check.title,
        "severity": check.severity,
        "meaning": check.meaning,
        "found": f"`pdctl doctor` judges each {check.scope}{needs}",
        "fix": check.fix.as_dict(),
        "source": "",
        "docs": check.docs,
    }


def _of_signature(signature: "Signature") -> dict[str, object]:
    from pdctl.base.words import listed

    if signature.derived:
        found = "concluded from several lines of " + listed(list(signature.roles))
    else:
        found = (
            f"a line of {listed(list(signature.roles))} ({signature.versions}) that has "
            + " or ".join(f"`{literal}`" for literal in signature.literals)
            + f" and matches `{signature.pattern}`"
        )
    if signature.follows:
        found += "; a consequence where one of these was found too: " + ", ".join(signature.follows)
    return {
        "id": signature.id,
        "kind": "signature",
        "title": signature.title,
        "severity": "good" if signature.good else signature.severity,
        "meaning": signature.meaning,
        "found": found,
        "fix": signature.fix.as_dict(),
        "source": signature.source,
        "docs": signature.docs,
    }


def _show(text: dict[str, object]) -> None:
    fix = text["fix"]
    assert isinstance(fix, dict)
    line = ui.writer()
    line(f"{text['id']} ({text['severity']}): {text['title']}")
    line("")
    line(str(text["meaning"]))
    line("")
    line(f"found: {text['found']}")
    line(f"fix: {fix['text']}")
    for command in fix["commands"]:
        line(f"  {command}")
    if text["source"]:
        line(f"source: {text['source']}")
    line(f"more: {text['docs']}")
