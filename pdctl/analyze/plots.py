"""Plots as SVG: a few lines each, so that a report needs neither a library nor a network."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from math import log10

from pdctl.base.durations import format_duration

_W, _H = 720, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 12, 34
Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """A line of a plot.

    Attributes:
        name: in the legend; empty: none.
        points: in the plot's own units.
        dashed: for what is no measurement, such as a limit.
    """

    name: str
    points: Sequence[Point]
    dashed: bool = False


@dataclass(frozen=True)
class _Frame:
    """From units to pixels."""

    low: float
    high: float
    top: float

    def x(self, value: float) -> float:
        return _LEFT + (value - self.low) / ((self.high - self.low) or 1) * (_W - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _H - _BOTTOM - value / (self.top or 1) * (_H - _TOP - _BOTTOM)


def hits(points: Sequence[Point], *, marks: Sequence[tuple[str, float]]) -> str:
    """The share of turns that come in time, over the TTL on a scale of logarithms.

    Args:
        points: TTL in seconds and share.
        marks: TTLs to point at, with their names.
    """
    if not points:
        return ""
    frame = _Frame(log10(points[0][0]), log10(points[-1][0]), 1.0)
    line = Series("", [(log10(ttl), share) for ttl, share in points])
    ticks = [
        (log10(ttl), format_duration(ttl))
        for ttl in (1, 2, 5, 10, 30, 60, 120, 300, 480, 900, 1800, 3600, 7200)
        if points[0][0] <= ttl <= points[-1][0]
    ]
    shown = [(name, log10(ttl)) for name, ttl in marks if points[0][0] <= ttl <= points[-1][0]]
    shares = [(each / 4, f"{each * 25}%") for each in range(5)]
    return _svg("Turns in time over the TTL", frame, [line], ticks, shares, shown)


def over_time(series: Sequence[Series], *, unit: str) -> str:
    """Amounts over time.

    Args:
        series: seconds since the epoch and amount.
        unit: of the amounts.
    """
    xs = [x for each in series for x, _ in each.points]
    if not xs:
        return ""
    top = max((y for each in series for _, y in each.points), default=0.0)
    frame = _Frame(min(xs), max(xs), top * 1.05)
    span = frame.high - frame.low
    form = "%m-%d %H:%M" if span > 86400 else "%H:%M:%S"
    ticks = [
        (at, datetime.fromtimestamp(at, UTC).strftime(form))
        for at in (frame.low + span * part / 4 for part in range(5))
    ]
    amounts = [(top * part / 4, f"{short(top * part / 4)}{unit}") for part in range(5)]
    return _svg("Retained on decode over time", frame, series, ticks, amounts, [])


def bars(rows: Sequence[tuple[str, int]]) -> str:
    """How many of each kind."""
    top = max((count for _, count in rows), default=0)
    frame = _Frame(0, len(rows), top * 1.05)
    width = (frame.x(1) - frame.x(0)) * 0.8
    body = "".join(
        f'<rect class="s0" x="{frame.x(number + 0.1):.1f}" y="{frame.y(count):.1f}" '
        f'width="{width:.1f}" height="{frame.y(0) - frame.y(count):.1f}">'
        f"<title>{escape(name)}: {count:,}</title></rect>"
        for number, (name, count) in enumerate(rows)
    )
    ticks = [(number + 0.5, name) for number, (name, _) in enumerate(rows)]
    amounts = [(top * part / 4, short(top * part / 4)) for part in range(5)]
    return _svg("Gaps between turns", frame, [], ticks, amounts, [], body)


def short(value: float) -> str:
    """`1.2M`, `340k`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _svg(
    title: str,
    frame: _Frame,
    series: Sequence[Series],
    x_ticks: Sequence[Point | tuple[float, str]],
    y_ticks: Sequence[tuple[float, str]],
    marks: Sequence[tuple[str, float]],
    body: str = "",
) -> str:
    parts = [
        f'<svg viewBox="0 0 {_W} {_H}" role="img" aria-label="{escape(title)}">',
        *(_y_tick(frame, at, name) for at, name in y_ticks),
        *(_x_tick(frame, at, str(name)) for at, name in x_ticks),
        body,
        *(_mark(frame, name, at, number) for number, (name, at) in enumerate(marks)),
        *(_line(frame, each, number) for number, each in enumerate(series)),
        *_legend(series),
        "</svg>",
    ]
    return "".join(parts)


def _y_tick(frame: _Frame, at: float, name: str) -> str:
    y = frame.y(at)
    return (
        f'<path class="grid" d="M{_LEFT} {y:.1f}H{_W - _RIGHT}"/>'
        f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(name)}</text>'
    )


def _x_tick(frame: _Frame, at: float, name: str) -> str:
    return (
        f'<text x="{frame.x(at):.1f}" y="{_H - _BOTTOM + 18}" '
        f'text-anchor="middle">{escape(name)}</text>'
    )


def _mark(frame: _Frame, name: str, at: float, number: int) -> str:
    x = frame.x(at)
    return (
        f'<path class="mark" d="M{x:.1f} {_TOP}V{_H - _BOTTOM}"/>'
        f'<text x="{x + 4:.1f}" y="{_H - _BOTTOM - 8 - 14 * number}">{escape(name)}</text>'
    )


def _line(frame: _Frame, series: Series, number: int) -> str:
    path = "L".join(f"{frame.x(x):.1f} {frame.y(y):.1f}" for x, y in series.points)
    dashed = " dashed" if series.dashed else ""
    return f'<path class="line s{number % 5}{dashed}" d="M{path}"/>' if path else ""


def _legend(series: Sequence[Series]) -> list[str]:
    named = [(number, each.name) for number, each in enumerate(series) if each.name]
    return [
        f'<text class="s{number % 5}" x="{_LEFT + 10}" y="{_TOP + 12 + 15 * place}">'
        f"{escape(name)}</text>"
        for place, (number, name) in enumerate(named)
    ]
