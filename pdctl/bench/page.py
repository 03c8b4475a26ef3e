"""The report: one HTML file that needs no network, for eyes, printers and screen readers."""

import json
from collections.abc import Sequence
from importlib import resources

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from pdctl import __version__
from pdctl.base.errors import UsageError
from pdctl.base.paths import templates_dir
from pdctl.base.published import PUBLISHED
from pdctl.bench import charts, words
from pdctl.bench.charts import Figure, Shown
from pdctl.bench.others import Other
from pdctl.bench.stats import Estimate


def figures(runs: Sequence[Shown]) -> dict[str, Figure]:
    """All charts by the name of their files; those without a point are left out."""
    made = {"ttft": charts.ttft(runs), "prefill": charts.prefill(runs)}
    own = [run.summary for run in runs]
    has_lengths = any(line.length is not None for summary in own for line in summary.lines)
    return made if has_lengths else {}


def page(runs: Sequence[Shown], others: Sequence[Other]) -> str:
    """The whole page.

    Raises:
        UsageError: plotly is not installed.
    """
    made = figures(runs)
    return _template("report.html.j2").render(
        runs=runs,
        others=others,
        figures=made,
        words=words,
        published=PUBLISHED,
        version=__version__,
        plotly=Markup(plotly_js()) if made else "",
        data=Markup(_embedded(made)),
    )


def picture_page(figure: Figure, *, width: int, height: int, svg: bool) -> str:
    """A page that is nothing but one chart, for a browser to take its picture.

    Raises:
        UsageError: plotly is not installed.
    """
    return _template("picture.html.j2").render(
        plotly=Markup(plotly_js()),
        data=Markup(_embedded(figure)),
        width=width,
        height=height,
        svg=svg,
    )


def plotly_js() -> str:
    """The library that draws, whole.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return (resources.files("plotly") / "package_data" / "plotly.min.js").read_text("utf-8")
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise UsageError(
            "reports are drawn by plotly, which is not installed",
            hints=["pip install 'pdctl[report]'"],
        ) from error


def _template(name: str) -> Template:
    environment = Environment(
        loader=FileSystemLoader(templates_dir() / "bench"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"ms": _ms, "number": _number, "share": _share, "length": _length}
    return environment.get_template(name)


def _embedded(value: object) -> str:
    """JSON that cannot end the script element that it stands in."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")


def _ms(value: Estimate | float | None) -> str:
    if value is None:
        return "–"
    if not isinstance(value, Estimate):
        return f"{value:,.1f}"
    if value.low is None or value.high is None:
        return f"{value.value:,.1f}"
    return f"{value.value:,.1f} ({value.low:,.1f}–{value.high:,.1f})"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _length(value: int | None) -> str:
    return "trace" if value is None else f"{value:,}"
