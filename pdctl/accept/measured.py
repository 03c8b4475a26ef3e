"""What a run measured of the version table: cells that its turns could not have passed without.

The table in `pdctl/engine/versions.py` says of each cell whether it was measured, read or inferred.
A bundle with a cell in it is what turns *read* into *measured*, on the device that it names.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pdctl.accept.model import Result
from pdctl.config.model import Config, ExternalTarget
from pdctl.engine import choices
from pdctl.engine.versions import Traits, traits


def cells(config: Config, results: Sequence[Result]) -> list[dict[str, Any]]:
    """The cells; none when no pair was proven, or when its engines are of several versions."""
    by_id = {result.id: result.found for result in results}
    doctor = by_id.get("doctor")
    versions = set((doctor.data if doctor else {}).get("versions", {}).get("vllm", {}).values())
    proofs = [
        result.found.data
        for result in results
        if result.id.startswith("pair.") and result.found.status == "pass"
    ]
    if not proofs or len(versions) != 1 or None in versions:
        return []
    row = traits(versions.pop())
    device = "cpu" if choices.on_cpu(config) else "gpu"
    return [{**cell, "device": device} for cell in _cells(config, row, proofs)]


def _cells(
    config: Config, row: Traits, proofs: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    counted = all(proof["turns"][1]["reason"] != "not_counted_by_engine" for proof in proofs)
    yield _cell(row, "remote_cached_tokens", counted)
    if config.engine.plugin == "off":
        # The proof's turns are streams; without the plugin their handles are vLLM's own.
        yield _cell(row, "streaming_handles", True)
    if not isinstance(config.target, ExternalTarget):
        nixl = choices.nixl_version(config)
        for backend in choices.backends(config):
            known = row.nixl.value.get(backend)
            agrees = known is None or known.why_not(nixl) is None
            yield {
                "row": row.row,
                "column": f"nixl.{backend}",
                "value": nixl,
                "agrees": agrees,
                "evidence_now": row.nixl.evidence,
            }


def _cell(row: Traits, column: str, value: bool) -> dict[str, Any]:
    cell = row.cells()[column]
    return {
        "row": row.row,
        "column": column,
        "value": value,
        "agrees": cell.value == value,
        "evidence_now": cell.evidence,
    }
