"""Changing one value in a configuration file and nothing else: comments, order and style stay."""

from collections.abc import Sequence

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode

from pdctl.base.errors import BadAnswerError


def with_value(text: str, path: Sequence[str], value: float) -> str:
    """The file's text with a number at a path of keys, which are added where they are missing.

    Raises:
        BadAnswerError: something else than a mapping stands on the way, or the value is shared
            with another key.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    written = str(int(value)) if value == int(value) else repr(value)
    if root is None:
        return text + _block(path, written, "")
    node: Node = root
    begin = 0  # where the key stands; its value is after it, unless it is an alias
    for depth, key in enumerate(path):
        if not isinstance(node, MappingNode):
            raise BadAnswerError(
                f"`{'.'.join(path[:depth])}` is not a mapping, so nothing can be set in it",
                where=f"line {node.start_mark.line + 1}",
            )
        found = next(((k, v) for k, v in node.value if getattr(k, "value", None) == key), None)
        if found is None:
            if node.start_mark.index < begin:
                raise _shared(path[: depth or 1], node)
            return _added(text, node, path[depth:], written)
        begin, node = max(begin, found[0].start_mark.index), found[1]
    if not isinstance(node, ScalarNode):
        raise BadAnswerError(
            f"`{'.'.join(path)}` is not a single value", where=f"line {node.start_mark.line + 1}"
        )
    start, end = node.start_mark.index, node.end_mark.index
    if text[start : start + 1] == "&" or node.start_mark.index < begin:
        raise _shared(path, node)
    before = text[:start] + (" " if text[:start].endswith(":") else "")
    # A block scalar ends after its line, which the number must do too.
    return before + written + ("\n" if text[start:end].endswith("\n") else "") + text[end:]


def _shared(path: Sequence[str], node: Node) -> BadAnswerError:
    return BadAnswerError(
        f"`{'.'.join(path)}` shares its value with other keys (a YAML anchor), so it cannot be "
        "changed alone",
        where=f"line {node.start_mark.line + 1}",
        expected="a value of its own",
        hints=["write the value there by hand"],
    )


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
