"""The schema for editors, and the key table of docs/configuration.md."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from pdctl.base.durations import format_duration
from pdctl.base.problems import Loc
from pdctl.config import shape
from pdctl.config.model import EXPECTED, Config


class _Untitled(GenerateJsonSchema):
    """A title that repeats the key's name says nothing."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema() -> dict[str, Any]:
    """The JSON Schema of `pd.yaml`, for editors and other validators.

    It says about single keys what `config.load` says; what several keys say together only
    `config.load` knows.
    """
    schema = deepcopy(Config.model_json_schema(schema_generator=_Untitled))
    for node in _nodes(schema):
        node.pop(EXPECTED, None)
        if "patternProperties" in node:
            node["additionalProperties"] = False
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "pdctl deployment (pd.yaml)",
    }


def _nodes(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _nodes(item)


# --- key table -----------------------------------------------------------------------------------


def key_table() -> str:
    """Markdown: a table of keys for each section of the file."""
    tables: dict[str, tuple[list[str], str, shape.Node]] = {}
    for kind in shape.kinds():
        for path, node in _sections(kind):
            section = shape.resolved(node, kind)
            suffix = f" (`kind: {kind}`)" if path[:1] == ("target",) else ""
            # By the class behind it: sections that are alike share a table.
            paths, _, _ = tables.setdefault(str(section["title"]), ([], suffix, section))
            if _written(path) not in paths:
                paths.append(_written(path))
    return "\n\n".join(
        _table(f"{', '.join(paths)}{suffix}", section) for paths, suffix, section in tables.values()
    )


def _sections(kind: str) -> Iterator[tuple[Loc, shape.Node]]:
    yield (), shape.schema()
    for path, node in shape.walk(kind):
        inner = shape.resolved(node, kind)
        if shape.is_section(inner):
            yield path, node
        elif shape.is_section(shape.resolved(inner.get("items", {}), kind)):
            yield (*path, shape.ANY), inner["items"]


def _written(path: Loc) -> str:
    if not path:
        return "Top level"
    return f"`{'.'.join(map(str, path)).replace('.' + shape.ANY, '[]')}`"


def _table(heading: str, node: shape.Node) -> str:
    required = node.get("required", [])
    rows = [
        f"| `{name}` | {_cell(_value(child))} | {_cell(_default(name, child, required))} "
        f"| {_cell(shape.meaning(child))} |"
        for name, child in node["properties"].items()
    ]
    return "\n".join(
        [
            f"### {heading}",
            "",
            str(node["description"]).replace("\n", " "),
            "",
            "| key | value | default | meaning |",
            "|---|---|---|---|",
            *rows,
        ]
    )


def _value(node: shape.Node) -> str:
    inner = shape.resolved(node, None)
    if shape.is_section(inner) or "discriminator" in inner:
        return "a section"
    if shape.is_section(shape.resolved(inner.get("items", {}), None)):
        return "a list of sections"
    return shape.expected(node)


def _default(name: str, node: shape.Node, required: list[str]) -> str:
    if name in required:
        return "required"
    default = node.get("default")
    if default in (None, [], {}) or isinstance(default, dict):
        return "–"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if "duration" in shape.expected(node):
        return f"`{format_duration(default)}`"
    return f"`{default}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
