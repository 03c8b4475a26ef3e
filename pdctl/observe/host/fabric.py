"""`fi_info`: which libfabric there is, and which EFA devices it offers."""

import re

from pdctl.base.hostfacts import FabricTool
from pdctl.observe.host.raw import items, mapping, output, said, text

_VERSION = re.compile(r"^libfabric:\s*(\S+)", re.MULTILINE)
_FIELD = re.compile(r"^\s*(provider|fabric|domain):\s*(\S+)", re.MULTILINE)
_NO_DATA = 61  # FI_ENODATA: no such provider, or it has no device


def read_fabric(raw: object) -> tuple[FabricTool, ...]:
    """From the script's `fabric`: every `fi_info`, the one that counts first."""
    return tuple(_tool(mapping(each)) for each in items(raw) if mapping(each).get("path"))


def _tool(answer: dict[str, object]) -> FabricTool:
    path = text(answer.get("path"))
    printed = output(answer.get("version"))
    version = _VERSION.search(printed or "")
    domains, fabrics, error = _offered(answer.get("efa"))
    if printed is None:
        error = said(answer.get("version"))
    return FabricTool(
        path=path,
        version=version[1] if version else None,
        domains=domains,
        fabrics=fabrics,
        error=error,
    )


def _offered(run: object) -> tuple[tuple[str, ...] | None, tuple[str, ...], str]:
    """Domains and fabrics of the EFA provider, each once: libfabric 2 lists a device twice."""
    printed = output(run)
    if printed is None:
        nothing = mapping(run).get("status") == _NO_DATA
        return (() if nothing else None), (), said(run)
    domains: dict[str, None] = {}
    fabrics: dict[str, None] = {}
    provider = ""
    for field, value in _FIELD.findall(printed):
        if field == "provider":
            provider = value.partition(";")[0]
        elif provider == "efa":
            (domains if field == "domain" else fabrics)[value] = None
    return tuple(domains), tuple(fabrics), ""
