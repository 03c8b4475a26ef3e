"""The report: one HTML file that needs no network."""

from collections.abc import Sequence

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pdctl import __version__
from pdctl.analyze import plots
from pdctl.analyze.answer import Answer, Plots, TtlRow
from pdctl.analyze.plots import Series
from pdctl.base.durations import format_duration
from pdctl.base.paths import templates_dir

_SHOWN = 4
"""TTLs whose retained blocks are drawn."""


def page(answer: Answer, drawn: Plots) -> str:
    """The whole page."""
    environment = Environment(
        loader=FileSystemLoader(templates_dir() / "analyze"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"share": _share, "duration": _duration, "short": plots.short}
    return environment.get_template("report.html.j2").render(
        answer=answer,
        version=__version__,
        hits=Markup(plots.hits(drawn.hits, marks=_marks(answer))),
        pinned=Markup(plots.over_time(_retained(answer, drawn), unit="")),
        gaps=Markup(plots.bars(_bars(answer))),
    )


def _marks(answer: Answer) -> list[tuple[str, float]]:
    marks = [(f"now {format_duration(answer.ttl_s)}", answer.ttl_s)]
    if answer.knee_s is not None:
        marks.append((f"knee {format_duration(answer.knee_s)}", float(answer.knee_s)))
    if answer.recommended_ttl_s is not None:
        named = f"recommended {format_duration(answer.recommended_ttl_s)}"
        marks.append((named, answer.recommended_ttl_s))
    return marks


def _retained(answer: Answer, drawn: Plots) -> list[Series]:
    chosen = _few([row for row in answer.ttl_curve if row.ttl_s in drawn.pinned], answer)
    series = [
        Series(
            f"TTL {format_duration(ttl)}",
            list(zip(drawn.instants, drawn.pinned[ttl], strict=True)),
        )
        for ttl in chosen
    ]
    if answer.capacity_tokens is not None and drawn.instants:
        ends = (drawn.instants[0], drawn.instants[-1])
        limit = [(at, float(answer.capacity_tokens)) for at in ends]
        series.append(Series("room on decode", limit, dashed=True))
    return series


def _few(rows: Sequence[TtlRow], answer: Answer) -> list[float]:
    """The TTL in force, the recommended one, and some around them."""
    wanted = [answer.recommended_ttl_s, answer.ttl_s, 60.0, 1800.0]
    return sorted({row.ttl_s for row in rows if row.ttl_s in wanted})[:_SHOWN]


def _bars(answer: Answer) -> list[tuple[str, int]]:
    rows = answer.gaps["histogram"]
    assert isinstance(rows, list)
    return [
        ("more" if row["up_to_s"] is None else format_duration(row["up_to_s"]), row["turns"])
        for row in rows
    ]


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _duration(value: float | None) -> str:
    return "–" if value is None else format_duration(value)
