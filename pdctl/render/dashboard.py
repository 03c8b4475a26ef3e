"""A Grafana dashboard of one deployment, from what its routers and engines export."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pdctl.base import metric_names as names

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT, _ACROSS = 8, 8, 24
"""Of a panel in Grafana's grid, which is 24 wide."""
_RATE = "$__rate_interval"

Unit = Literal["short", "s", "Bps", "percentunit", "reqps", "cps"]


@dataclass(frozen=True)
class Panel:
    """One chart.

    Attributes:
        about: shown behind the panel's `i`.
        unit: as Grafana names it.
        lines: PromQL and legend of each.
        most: upper end of the axis; None: as the values are.
        kind: `heatmap` for the buckets of one histogram.
    """

    title: str
    about: str
    unit: Unit
    lines: Sequence[tuple[str, str]]
    most: float | None = None
    kind: Literal["timeseries", "heatmap"] = "timeseries"


@dataclass(frozen=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: Sequence[Panel]


def dashboard(name: str) -> dict[str, Any]:
    """The dashboard as Grafana imports it; the data source is chosen there."""
    return {
        "uid": f"pdctl-{name}"[:40],
        "title": f"pdctl: {name}",
        "description": "A vLLM prefill/decode deployment and its router. Made by `pdctl render`.",
        "tags": ["pdctl", "vllm"],
        "schemaVersion": 38,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Data source",
                    "type": "datasource",
                    "query": "prometheus",
                }
            ]
        },
        "panels": list(_placed(rows(name))),
    }


def rows(name: str) -> tuple[Row, ...]:
    """What is on it."""
    return (
        Row("Turns", _turns(name)),
        Row("What decode retains", _retained(name)),
        Row("KV transfers (NIXL)", _transfers(name)),
        Row("Engines", _engines(name)),
    )


# --- expressions -----------------------------------------------------------------------------


def _of(metric: str, name: str, *labels: str) -> str:
    return metric + "{" + ",".join((f'deployment="{name}"', *labels)) + "}"


def _rate(metric: str, name: str, *labels: str, by: str) -> str:
    return f"sum by ({by}) (rate({_of(metric, name, *labels)}[{_RATE}]))"


def _share(part: str, whole: str) -> str:
    # Nothing over nothing is no share; it must not draw a line.
    return f"{part} / ({whole} > 0)"


def _quantiles(histogram: str, name: str, *labels: str, by: str = "") -> list[tuple[str, str]]:
    """Median, p95 and p99, of all or by one label."""
    grouped = f"le, {by}" if by else "le"
    buckets = _rate(f"{histogram}_bucket", name, *labels, by=grouped)
    legend = f"{{{{{by}}}}} " if by else ""
    return [
        (f"histogram_quantile({quantile}, {buckets})", f"{legend}p{round(quantile * 100)}")
        for quantile in (0.5, 0.95, 0.99)
    ]


def _mean(histogram: str, name: str, by: str) -> str:
    total = _rate(f"{histogram}_sum", name, by=by)
    return _share(total, _rate(f"{histogram}_count", name, by=by))


# --- panels ----------------------------------------------------------------------------------


def _turns(name: str) -> list[Panel]:
    turns = f"{names.ROUTER_TURNS}_total"
    reused = _rate(f"{names.ROUTER_REUSED_TOKENS}_total", name, by="deployment")
    prompt = _rate(f"{names.ROUTER_PROMPT_TOKENS}_total", name, by="deployment")
    buckets = _rate(f"{names.ROUTER_TTFT}_bucket", name, by="le")
    retries = _rate(f"{names.ROUTER_RETRIES}_total", name, by="cause")
    return [
        Panel(
            "Requests by status",
            "All requests to the router; 499 when the client left.",
            "reqps",
            [(_rate(f"{names.ROUTER_REQUESTS}_total", name, by="status"), "{{status}}")],
        ),
        Panel(
            "Turns by outcome",
            "HIT: all of the history was reused. PARTIAL: its equal part. MISS: nothing.",
            "reqps",
            [(_rate(turns, name, by="outcome"), "{{outcome}}")],
        ),
        Panel(
            "Why turns were not reused",
            "The reasons are in docs/router.md.",
            "reqps",
            [(_rate(turns, name, 'outcome!~"HIT|OFF"', by="outcome, reason"), "{{reason}}")],
        ),
        Panel(
            "Share of prompt tokens that were reused",
            "As prefill counted what it pulled from decode.",
            "percentunit",
            [(_share(reused, prompt), "reused")],
            most=1.0,
        ),
        Panel(
            "Time to the first token",
            "Arrival at the router to the first byte of content.",
            "s",
            _quantiles(names.ROUTER_TTFT, name),
        ),
        Panel(
            "Time to the first token, distribution",
            "The router's histogram.",
            "s",
            [(buckets, "{{le}}")],
            kind="heatmap",
        ),
        Panel(
            "Prefill leg by outcome",
            "The leg that counted, with the pull where there was one.",
            "s",
            _quantiles(names.ROUTER_PREFILL, name, by="outcome"),
        ),
        Panel(
            "Legs run again",
            "`reuse_…` with a handle, `prefill_…` without. Each is a turn that took longer.",
            "cps",
            [(retries, "{{cause}}")],
        ),
        Panel(
            "Requests in flight",
            "In each router.",
            "short",
            [(_of(names.ROUTER_IN_FLIGHT, name), "{{process}}")],
        ),
    ]


def _retained(name: str) -> list[Panel]:
    retained, capacity = names.ROUTER_RETAINED_TOKENS, names.ROUTER_CAPACITY_TOKENS
    errors = _rate(f"{names.ROUTER_STORE_ERRORS}_total", name, by="operation")
    return [
        Panel(
            "Retained tokens against capacity",
            "Tokens that decode keeps for turns that may come, and its whole room.",
            "short",
            [
                (f"max by (decode) ({_of(retained, name)})", "{{decode}} retained"),
                (f"max by (decode) ({_of(capacity, name)})", "{{decode}} capacity"),
            ],
        ),
        Panel(
            "Handles kept",
            "One for each finished turn that may be continued.",
            "short",
            [(f"max by (decode) ({_of(names.ROUTER_HANDLES, name)})", "{{decode}}")],
        ),
        Panel(
            "Releases by reason",
            "Handles given back to decode before its TTL.",
            "cps",
            [(_rate(f"{names.ROUTER_RELEASES}_total", name, by="reason"), "{{reason}}")],
        ),
        Panel(
            "Renewals by result",
            "Handles whose deadline decode was asked to move.",
            "cps",
            [(_rate(f"{names.ROUTER_RENEWALS}_total", name, by="result"), "{{result}}")],
        ),
        Panel(
            "Pairs that are proven",
            "1: the router's probe saw blocks move both ways. 0: no handle is sent between them.",
            "short",
            [(_of(names.ROUTER_PAIR_OK, name), "{{prefill}} × {{decode}}")],
            most=1.0,
        ),
        Panel(
            "Store errors and alarms",
            "Failures of the store that routers share, and what must not happen.",
            "cps",
            [
                (errors, "store: {{operation}}"),
                (_rate(f"{names.ROUTER_ALARMS}_total", name, by="kind"), "alarm: {{kind}}"),
            ],
        ),
    ]


def _transfers(name: str) -> list[Panel]:
    time, size = names.NIXL_TRANSFER_TIME, names.NIXL_BYTES
    late = _rate(f"{names.NIXL_AFTER_EXPIRY}_total", name, by="process")
    return [
        Panel(
            "Bytes pulled",
            "The engine that pulls counts: prefill's are decode's blocks that were reused.",
            "Bps",
            [(_rate(f"{size}_sum", name, by="process"), "{{process}}")],
        ),
        Panel(
            "Time of a transfer",
            "Mean, and p95 from the engine's histogram.",
            "s",
            [
                (_mean(time, name, "process"), "{{process}} mean"),
                (_quantiles(time, name, by="process")[1][0], "{{process}} p95"),
            ],
        ),
        Panel(
            "Failures",
            "Failed transfers, requests whose blocks expired, reads after that.",
            "cps",
            [
                (
                    _rate(f"{names.NIXL_FAILED_TRANSFERS}_total", name, by="process"),
                    "{{process}} failed",
                ),
                (_rate(f"{names.NIXL_EXPIRED}_total", name, by="process"), "{{process}} expired"),
                (late, "{{process}} read after expiry"),
            ],
        ),
    ]


def _engines(name: str) -> list[Panel]:
    sources = _rate(f"{names.VLLM_PROMPT_TOKENS_BY_SOURCE}_total", name, by="process, source")
    hits = _rate(f"{names.VLLM_PREFIX_HITS}_total", name, by="process")
    queries = _rate(f"{names.VLLM_PREFIX_QUERIES}_total", name, by="process")
    return [
        Panel(
            "KV cache usage",
            "With what is retained for turns that may come.",
            "percentunit",
            [(f"max by (process) ({_of(names.VLLM_KV_USAGE, name)})", "{{process}}")],
            most=1.0,
        ),
        Panel(
            "Requests running and waiting",
            "Waiting while the cache is full and little runs: what is retained takes the room.",
            "short",
            [
                (f"sum by (process) ({_of(names.VLLM_RUNNING, name)})", "{{process}} running"),
                (f"sum by (process) ({_of(names.VLLM_WAITING, name)})", "{{process}} waiting"),
            ],
        ),
        Panel(
            "Prompt tokens by source",
            "Computed, from the engine's own prefix cache, or pulled.",
            "cps",
            [(sources, "{{process}} {{source}}")],
        ),
        Panel(
            "Prefix cache hit rate",
            "Of each engine's own cache; not the reuse from decode.",
            "percentunit",
            [(_share(hits, queries), "{{process}}")],
            most=1.0,
        ),
        Panel(
            "Prefill time in the engine",
            "p95 of what prefill itself needs, without waiting.",
            "s",
            _quantiles(names.VLLM_PREFILL_TIME, name, 'role="prefill"')[:2],
        ),
        Panel(
            "Processes that answer",
            "Prometheus' own view of each.",
            "short",
            [(_of("up", name), "{{process}}")],
            most=1.0,
        ),
    ]


# --- Grafana's form --------------------------------------------------------------------------


def _placed(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for row in rows:
        number += 1
        place = {"h": 1, "w": _ACROSS, "x": 0, "y": top}
        yield {"id": number, "type": "row", "title": row.title, "gridPos": place, "panels": []}
        top += 1
        for index, panel in enumerate(row.panels):
            number += 1
            across, down = index * _WIDTH % _ACROSS, index * _WIDTH // _ACROSS * _HEIGHT
            place = {"h": _HEIGHT, "w": _WIDTH, "x": across, "y": top + down}
            yield {"id": number, "gridPos": place, **_panel(panel)}
        top += -(-len(row.panels) * _WIDTH // _ACROSS) * _HEIGHT


def _panel(panel: Panel) -> dict[str, Any]:
    heat = panel.kind == "heatmap"
    most = {} if panel.most is None else {"max": panel.most}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, **most}, "overrides": []},
        "options": {"calculate": False, "yAxis": {"unit": panel.unit}} if heat else _LEGEND,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": expr,
                "legendFormat": legend,
                "format": "heatmap" if heat else "time_series",
            }
            for index, (expr, legend) in enumerate(panel.lines)
        ],
    }


_LEGEND = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
