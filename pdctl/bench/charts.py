"""The two charts of the published post, for the user's runs: figures as values, for plotly to draw.

A figure is the JSON that plotly.js takes, so nothing of plotly is needed to make or to test one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pdctl.base.published import PUBLISHED, Published
from pdctl.bench.stats import Estimate
from pdctl.bench.summary import Line, Summary

Figure = dict[str, Any]
_COLOURS = {"off": "#c2571a", "on": "#1f5fbf", "transfer": "#23844a"}
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x")
_LINES = ("solid", "dash", "dot", "dashdot")
_GREY = {"off": "#a39387", "on": "#8595ab", "transfer": "#8ea596"}
_OPEN = {"off": "-open", "on": "", "transfer": "-dot"}
_WIDE = 20.0
"""From this ratio of the greatest to the least value on, a logarithmic scale shows more."""


@dataclass(frozen=True)
class Shown:
    """A run with the name that tells it from the others; empty when it is alone."""

    name: str
    summary: Summary


@dataclass(frozen=True)
class _Series:
    name: str
    kind: str
    xs: Sequence[float]
    ys: Sequence[Estimate]
    number: int
    published: bool = False


def ttft(runs: Sequence[Shown], published: Sequence[Published] = PUBLISHED) -> Figure:
    """Time to first token of later turns over the length, without and with reuse."""
    series = [
        _series(run, number, caching, reuse, f"reuse {reuse}", lambda line: line.ttft)
        for number, (run, caching) in enumerate(_groups(runs))
        for reuse in ("off", "on")
    ]
    for number, each in enumerate(published):
        series.append(_reference(each, number, "reuse off", "off", each.ttft_off))
        series.append(_reference(each, number, "reuse on", "on", each.ttft_on))
    return _figure("Time to first token of later turns", series)


def prefill(runs: Sequence[Shown], published: Sequence[Published] = PUBLISHED) -> Figure:
    """Prefill's part of it without and with reuse, and how much of that is the transfer."""
    series = []
    for number, (run, caching) in enumerate(_groups(runs)):
        for reuse in ("off", "on"):
            name = f"prefill, reuse {reuse}"
            series.append(_series(run, number, caching, reuse, name, _mean("prefill_ms"), reuse))
        series.append(
            _series(run, number, caching, "on", "KV transfer", _mean("transfer_ms"), "transfer")
        )
    for number, each in enumerate(published):
        series.append(_reference(each, number, "prefill, reuse off", "off", each.prefill_off))
        series.append(_reference(each, number, "prefill, reuse on", "on", each.prefill_on))
        series.append(_reference(each, number, "KV transfer", "transfer", each.transfer))
    return _figure("Prefill of later turns, and the transfer in it", series)


def _groups(runs: Sequence[Shown]) -> list[tuple[Shown, bool | None]]:
    found = []
    for run in runs:
        known = dict.fromkeys(line.leg.caching for line in run.summary.lines)
        found += [(run, caching) for caching in known]
    return found


def _series(
    run: Shown,
    number: int,
    caching: bool | None,
    reuse: str,
    name: str,
    value: Callable[[Line], Estimate | None],
    kind: str | None = None,
) -> _Series:
    lines = [
        line
        for line in run.summary.lines
        if (line.leg.reuse, line.leg.caching) == (reuse, caching) and line.length is not None
    ]
    points = [
        (float(line.length), found)
        for line in lines
        if line.length is not None and (found := value(line)) is not None
    ]
    several = len({line.leg.caching for line in run.summary.lines}) > 1
    cache = {None: "", True: ", prefix cache on", False: ", prefix cache off"}[caching]
    label = f"{run.name}: {name}" if run.name else name
    return _Series(
        label + (cache if several else ""),
        kind or reuse,
        [x for x, _ in points],
        [y for _, y in points],
        number,
    )


def _mean(name: str) -> Callable[[Line], Estimate | None]:
    def value(line: Line) -> Estimate | None:
        found = getattr(line, name)
        return None if found is None else Estimate(found, None, None)

    return value


def _reference(
    each: Published, number: int, name: str, kind: str, ends: tuple[float, float]
) -> _Series:
    points = [Estimate(end, None, None) for end in ends]
    return _Series(
        f"published {each.model}: {name}", kind, each.lengths, points, number, published=True
    )


def _figure(title: str, series: Sequence[_Series]) -> Figure:
    shown = [each for each in series if each.xs]
    values = [y.value for each in shown for y in each.ys if y.value > 0]
    wide = bool(values) and max(values) / min(values) >= _WIDE
    axis: dict[str, Any] = {
        "title": {"text": "milliseconds" + (" (logarithmic)" if wide else "")},
        "type": "log" if wide else "linear",
        "gridcolor": "#e4e7ee",
    }
    if wide:
        axis |= {"dtick": 1}
    else:
        axis |= {"rangemode": "tozero"}
    return {
        "data": [_trace(each) for each in shown],
        "layout": {
            "title": {"text": title},
            "xaxis": {
                "title": {"text": "tokens that conversations begin with"},
                "rangemode": "tozero",
                "gridcolor": "#e4e7ee",
            },
            "yaxis": axis,
            "legend": {"orientation": "h", "y": -0.22},
            "margin": {"l": 70, "r": 20, "t": 50, "b": 60},
            "paper_bgcolor": "#ffffff",
            "plot_bgcolor": "#ffffff",
            "font": {"family": "system-ui, sans-serif", "color": "#1d2129"},
            "hovermode": "x unified",
        },
    }


def _trace(each: _Series) -> dict[str, Any]:
    colours = _GREY if each.published else _COLOURS
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": each.name,
        "x": list(each.xs),
        "y": [round(y.value, 3) for y in each.ys],
        "line": {
            "color": colours[each.kind],
            "dash": "dot" if each.published else _LINES[each.number % len(_LINES)],
            "width": 1.5 if each.published else 2.5,
        },
        # Colour alone tells nothing to whoever does not see it, or prints in grey.
        "marker": {
            "symbol": _SYMBOLS[each.number % len(_SYMBOLS)] + _OPEN[each.kind],
            "size": 7 if each.published else 9,
        },
        "hovertemplate": "%{y:,.0f} ms",
    }
    spans = [(y.low, y.high, y.value) for y in each.ys]
    if all(low is not None and high is not None for low, high, _ in spans):
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [round(high - value, 3) for _, high, value in spans if high is not None],
            "arrayminus": [round(value - low, 3) for low, _, value in spans if low is not None],
        }
    return trace
