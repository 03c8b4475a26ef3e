"""pydantic's errors in our words: what was found, what is allowed, what to write instead."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pdctl.base.problems import Loc, Problem
from pdctl.config import shape
from pdctl.config.guess import unknown_key
from pdctl.config.scalars import read, shown
from pdctl.config.tree import Tree

_KEY = "[key]"
_YES = {"on": "true", "yes": "true", "y": "true", "off": "false", "no": "false", "n": "false"}


def problems(error: ValidationError, tree: Tree) -> Iterator[Problem]:
    """One problem for each error, at the path that the file has."""
    kind = target_kind(tree.value)
    for details in error.errors(include_url=False):
        yield _problem(details, _loc_in_file(details["loc"]), kind, tree)


def target_kind(value: object) -> str | None:
    """The kind of target that the file names, when it is one that exists."""
    target = value.get("target") if isinstance(value, Mapping) else None
    kind = target.get("kind") if isinstance(target, Mapping) else None
    return kind if kind in shape.kinds() else None


def _loc_in_file(loc: Loc) -> Loc:
    # pydantic names the chosen kind as a step of the path: target.local.prefill.port.
    if len(loc) > 1 and loc[0] == "target" and loc[1] in shape.kinds():
        return (loc[0], *loc[2:])
    return loc


def _problem(details: ErrorDetails, loc: Loc, kind: str | None, tree: Tree) -> Problem:
    match details["type"]:
        case "missing":
            return _missing(loc, kind)
        case "extra_forbidden":
            message, hint = unknown_key(loc, kind)
            return Problem(loc, message, hint, on_key=True)
        case "union_tag_not_found":
            return Problem((*loc, "kind"), "is missing", shape.one_of(list(shape.kinds())))
        case "union_tag_invalid":
            expected = shape.one_of(list(shape.kinds()))
            return _mismatch((*loc, "kind"), expected, {"enum": list(shape.kinds())}, tree)
    if loc[-1:] == (_KEY,):
        return _free_key(loc[:-1], kind)
    node = shape.resolved(shape.at(loc, kind) or {}, kind)
    return _mismatch(loc, shape.expected(node, kind), node, tree)


def _missing(loc: Loc, kind: str | None) -> Problem:
    node = shape.at(loc, kind) or {}
    meaning = shape.meaning(node, kind).split(". ")[0].rstrip(".")
    return Problem(loc, "is missing", meaning[:1].lower() + meaning[1:] or None)


def _free_key(loc: Loc, kind: str | None) -> Problem:
    """A key of a mapping with free keys, such as an environment variable's name."""
    node = shape.resolved(shape.at(loc[:-1], kind) or {}, kind)
    expected = shape.expected(node.get("propertyNames", {"type": "string"}))
    key = shown(str(loc[-1]))
    return Problem(loc, f"found the key `{key}`, expected {expected}", on_key=True)


def _mismatch(loc: Loc, expected: str, node: shape.Node, tree: Tree) -> Problem:
    value = _value(tree.value, loc)
    if value is None:
        what = "put keys below it" if expected.startswith("keys") else "give it a value"
        return Problem(loc, f"found nothing, expected {expected}", f"{what} or remove the key")
    hint = _remedy(value, node, tree, loc)
    return Problem(loc, f"found {_found(value, tree, loc)}, expected {expected}", hint)


def _value(value: Any, loc: Loc) -> object:
    for part in loc:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _found(value: object, tree: Tree, loc: Loc) -> str:
    spot = tree.spots.get(loc)
    text = shown(spot.text) if spot is not None and spot.text is not None else str(value)
    match value:
        case bool():
            return f"`{text}`"
        case int() | float():
            return f"the number {text}"
        case str():
            return f'the text "{text}"' if spot is not None and spot.quoted else f"`{text}`"
        case list():
            return "a list" if value else "an empty list"
    return "keys"


def _remedy(value: object, node: shape.Node, tree: Tree, loc: Loc) -> str | None:
    spot = tree.spots.get(loc)
    text = spot.text if spot is not None and spot.text is not None else ""
    if "enum" in node or "const" in node:
        return _near(text, node.get("enum") or [node["const"]])
    kind = node.get("type")
    if not isinstance(value, str):
        wants_text = kind == "string" or (isinstance(kind, list) and "string" in kind)
        return f'quote it: "{shown(text)}"' if wants_text and text else None
    if kind == "boolean":
        return f"write `{_YES[text.lower()]}`" if text.lower() in _YES else None
    if kind in {"integer", "number"}:
        is_number = isinstance(read(text), int | float)
        return "remove the quotes" if spot is not None and spot.quoted and is_number else None
    if kind == "array":
        return f"write [{shown(text)}]"
    if shape.is_section(node) and "id" in node["properties"]:
        return f"write {{id: {shown(text)}}}"
    return None


def _near(text: str, allowed: list[str]) -> str | None:
    by_fold = {name.casefold(): name for name in allowed}
    near = get_close_matches(text.casefold(), by_fold, n=1, cutoff=0.6)
    return f"did you mean `{by_fold[near[0]]}`?" if near else None
