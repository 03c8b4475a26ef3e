"""Changing one value in a configuration file and nothing else: comments, order and style stay."""

from collections.abc import Sequence

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode

from pdctl.base.errors import BadAnswerError


def with_value(text: str, path: Sequence[str], value: float) -> str:
    """The file's text with a number at a path of keys, which are added where they are missing.

    Raises:
        BadAnswerError: something else than a mapping stands on the way.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    written = f"{value:g}"
    if root is None:
        return text + _block(path, written, "")
    node: Node = root
    for depth, key in enumerate(path):
        if not isinstance(node, MappingNode):
            raise BadAnswerError(
                f"`{'.'.join(path[:depth])}` is not a mapping, so nothing can be set in it",
                where=f"line {node.start_mark.line + 1}",
            )
        inner = next((v for k, v in node.value if getattr(k, "value", None) == key), None)
        if inner is None:
            return _added(text, node, path[depth:], written)
        node = inner
    if not isinstance(node, ScalarNode):
        raise BadAnswerError(
            f"`{'.'.join(path)}` is not a single value", where=f"line {node.start_mark.line + 1}"
        )
    return text[: node.start_mark.index] + written + text[node.end_mark.index :]


def _added(text: str, mapping: MappingNode, rest: Sequence[str], written: str) -> str:
    """As the first key of a mapping, in its own style."""
    if mapping.flow_style:
        at = mapping.start_mark.index + 1
        flow = written
        for key in reversed(rest[1:]):
            flow = f"{{{key}: {flow}}}"
        return f"{text[:at]}{rest[0]}: {flow}{', ' if mapping.value else ''}{text[at:]}"
    at = mapping.start_mark.index
    indent = " " * mapping.start_mark.column
    return text[:at] + _block(rest, written, indent).lstrip(" ") + indent + text[at:]


def _block(path: Sequence[str], written: str, indent: str) -> str:
    lines = [f"{indent}{'  ' * depth}{key}:" for depth, key in enumerate(path)]
    return "\n".join(lines) + f" {written}\n"
