"""What the JSON Schema says about one key: used to word errors, to guess keys, to fill the docs."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pdctl.base.problems import Loc
from pdctl.config.model import EXPECTED, Config

Node = Mapping[str, Any]

ANY = "*"
"""Stands for every list item and every free key in paths of the schema."""


@cache
def schema() -> Node:
    """The JSON Schema as pydantic makes it."""
    return Config.model_json_schema()


@cache
def kinds() -> tuple[str, ...]:
    """The kinds of target."""
    choices = schema()["properties"]["target"]["oneOf"]
    return tuple(resolved(choice, None)["properties"]["kind"]["const"] for choice in choices)


def at(loc: Loc, kind: str | None) -> Node | None:
    """The schema of the value at `loc` when the target is of `kind`; None for unknown keys."""
    node: Node | None = schema()
    for part in loc:
        node = _child(resolved(node, kind), part) if node is not None else None
    return node


def resolved(node: Node, kind: str | None) -> Node:
    """The node itself rather than a reference, an optional value or a choice of targets."""
    if "$ref" in node:
        return resolved(schema()["$defs"][node["$ref"].rsplit("/", 1)[1]], kind)
    if "discriminator" in node:
        reference = node["discriminator"]["mapping"].get(kind)
        return resolved({"$ref": reference}, kind) if reference else node
    if "anyOf" in node and EXPECTED not in node:
        chosen = next(choice for choice in node["anyOf"] if choice.get("type") != "null")
        return resolved(chosen, kind)
    return node


def _child(node: Node, part: str | int) -> Node | None:
    if isinstance(part, int):
        return node.get("items") or None
    if part in node.get("properties", {}):
        child: Node = node["properties"][part]
        return child
    return _free(node)


def _free(node: Node) -> Node | None:
    """The schema of values under free keys, such as names of environment variables."""
    patterns = node.get("patternProperties", {})
    free = next(iter(patterns.values()), node.get("additionalProperties"))
    return free if isinstance(free, Mapping) else None


def is_section(node: Node) -> bool:
    """True for a mapping with known keys."""
    return "properties" in node


def names(loc: Loc, kind: str | None) -> list[str]:
    """The keys that the section at `loc` knows."""
    node = at(loc, kind)
    return list(resolved(node, kind).get("properties", {})) if node is not None else []


def walk(kind: str | None, node: Node | None = None, path: Loc = ()) -> Iterator[tuple[Loc, Node]]:
    """Every known key below a node with its schema, sections included; list items are `ANY`."""
    node = resolved(schema() if node is None else node, kind)
    for name, child in node.get("properties", {}).items():
        yield (*path, name), child
        yield from walk(kind, child, (*path, name))
    if "items" in node:
        yield from walk(kind, node["items"], (*path, ANY))


def expected(node: Node, kind: str | None = None) -> str:
    """What a value may be, in words that follow "expected"."""
    node = resolved(node, kind)
    if EXPECTED in node:
        return str(node[EXPECTED])
    if "enum" in node or "const" in node:
        return one_of(node.get("enum") or [node["const"]])
    if "discriminator" in node:
        return "keys such as `kind`"
    if is_section(node):
        return f"keys such as `{next(iter(node['properties']))}`"
    words = {"boolean": "`true` or `false`", "string": "text", "object": "keys with values"}
    kind_of = str(node.get("type", "a value"))
    if kind_of == "array":
        least = " of at least one" if node.get("minItems") else ""
        return f"a list{least}, each item {expected(node['items'], kind)}"
    if kind_of in {"integer", "number"}:
        return {"integer": "a whole number", "number": "a number"}[kind_of] + _range(node)
    return "a path" if node.get("format") == "path" else words.get(kind_of, kind_of)


def meaning(node: Node, kind: str | None = None) -> str:
    """What a key is for; pydantic leaves it to the section where both would say the same."""
    return str(node.get("description") or resolved(node, kind).get("description", ""))


def one_of(values: list[str]) -> str:
    """`a`, or "one of `a`, `b`"."""
    quoted = [f"`{value}`" for value in values]
    return quoted[0] if len(quoted) == 1 else f"one of {', '.join(quoted)}"


def _range(node: Node) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    if low is not None:
        return f", {low} or more"
    above = f" above {node['exclusiveMinimum']}" if "exclusiveMinimum" in node else ""
    return above + (f" and at most {high}" if high is not None else "")
