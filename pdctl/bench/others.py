"""Result files of other tools, for the same report: what they say of the first token.

Known are `vllm bench serve --save-result` (with or without `--save-detailed`), vLLM's multi-turn
benchmark with `--stats-json-output`, and aiperf's `profile_export_aiperf.json`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdctl.base.errors import BadAnswerError, NotFoundError
from pdctl.bench.stats import median, percentile

Numbers = Mapping[str, float | None]


@dataclass(frozen=True)
class Other:
    """What a file says; None where it does not. Times are milliseconds.

    Attributes:
        file: its name.
        tool: that wrote it.
        requests: that were answered.
        ttft, ttft_p95: of all turns, the first ones too: other tools do not keep them apart.
        tpot, total: medians.
    """

    file: str
    tool: str
    requests: int | None
    ttft: float | None
    ttft_p95: float | None
    tpot: float | None
    total: float | None


def read_other(path: Path) -> Other:
    """The results in a file.

    Raises:
        NotFoundError: it cannot be read.
        BadAnswerError: it is of none of the known tools.
    """
    try:
        value = json.loads(path.read_text())
    except OSError as error:
        raise NotFoundError(f"cannot read it: {error.strerror}", where=str(path)) from error
    except ValueError as error:
        raise BadAnswerError(
            f"this is no JSON: {error}",
            where=str(path),
            expected="a folder of `pdctl bench`, or a result file of a benchmark, as JSON",
        ) from error
    if isinstance(value, list) and value and "ttft_ms" in value[0]:
        return _multi_turn(path.name, value)
    if isinstance(value, dict) and "time_to_first_token" in value:
        return _aiperf(path.name, value)
    if isinstance(value, dict) and ("median_ttft_ms" in value or "ttfts" in value):
        return _serve(path.name, value)
    raise BadAnswerError(
        "these are the results of no tool that is known",
        where=str(path),
        expected="a folder of `pdctl bench`, or a file of `vllm bench serve --save-result`, of "
        "vLLM's multi-turn benchmark (`--stats-json-output`), or aiperf's "
        "`profile_export_aiperf.json`",
    )


def _multi_turn(file: str, rows: Sequence[Mapping[str, Any]]) -> Other:
    def column(name: str) -> list[float]:
        return [float(row[name]) for row in rows if row.get(name) is not None]

    ttfts = column("ttft_ms")
    return Other(
        file,
        "vLLM's multi-turn benchmark",
        len(rows),
        median(ttfts),
        percentile(ttfts, 0.95),
        _median(column("tpot_ms")),
        _median(column("latency_ms")),
    )


def _aiperf(file: str, value: Mapping[str, Any]) -> Other:
    first = value["time_to_first_token"]
    # Where the block itself has no count, this has it.
    answered = first.get("count") or _number(value.get("request_count", {}).get("avg"))
    return Other(
        file,
        "aiperf",
        None if answered is None else int(answered),
        _in_ms(first, "p50"),
        _in_ms(first, "p95"),
        _in_ms(value.get("inter_token_latency", {}), "p50"),
        _in_ms(value.get("request_latency", {}), "p50"),
    )


def _serve(file: str, value: Mapping[str, Any]) -> Other:
    ttfts = [float(each) * 1000 for each in value.get("ttfts") or ()]
    return Other(
        file,
        "vllm bench serve",
        value.get("completed"),
        _number(value.get("median_ttft_ms")) or _median(ttfts),
        percentile(ttfts, 0.95) if ttfts else _number(value.get("p95_ttft_ms")),
        _number(value.get("median_tpot_ms")),
        _number(value.get("median_e2el_ms")),
    )


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _in_ms(block: Mapping[str, Any], name: str) -> float | None:
    scale = {"ms": 1.0, "s": 1000.0, "sec": 1000.0, "us": 0.001, "ns": 1e-6}
    value = _number(block.get(name))
    return None if value is None else value * scale.get(str(block.get("unit")), 1.0)
