"""`pdctl report`: runs of `pdctl bench` as a page, and as pictures."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.base.errors import NotFoundError, UsageError
from pdctl.cli import options, ui

if TYPE_CHECKING:
    from pdctl.bench.charts import Shown
    from pdctl.bench.others import Other


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN…",
            help="Folders of `pdctl bench`; result files of `vllm bench serve`, of vLLM's "
            "multi-turn benchmark and of aiperf are shown beside them.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to; default is the first run's.")
    ] = None,
    pictures: Annotated[
        bool, typer.Option(help="Also write PNG and SVG, if there is a Chromium.")
    ] = True,
    json: options.Json = False,
) -> None:
    """Draw what `bench` has measured: one page that needs no network, and pictures of its charts.

    Several runs are compared in one page. Runs that were cut short can be drawn too.
    """
    from pdctl.bench.page import page

    shown, others = _read(runs)
    folder = out or next((run for run in runs if run.is_dir()), None) or Path()
    text = page(shown, others)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.html").write_text(text)
    except OSError as error:
        raise NotFoundError(
            f"cannot write the report: {error.strerror}", where=str(folder)
        ) from error
    written = [folder / "report.html", *(_draw(shown, folder) if pictures else ())]
    if json:
        ui.json(
            {
                "files": [str(path) for path in written],
                "runs": [{"name": run.name} | run.summary.as_dict() for run in shown],
                "others": [asdict(other) for other in others],
            }
        )
    else:
        for path in written:
            ui.data(str(path))


def _read(runs: list[Path]) -> "tuple[list[Shown], list[Other]]":
    from pdctl.bench import files
    from pdctl.bench.charts import Shown
    from pdctl.bench.others import read_other
    from pdctl.bench.summary import summarise

    found = [files.read(run) for run in runs if not run.is_file()]
    names = [run.name for run in found]
    if len(set(names)) != len(names):
        raise UsageError("two runs have the same name", expected="folders of different names")
    alone = len(found) == 1
    shown = [Shown("" if alone else run.name, summarise(run)) for run in found]
    return shown, [read_other(run) for run in runs if run.is_file()]


def _draw(shown: "list[Shown]", folder: Path) -> list[Path]:
    from pdctl.bench import page, pictures

    program = pictures.browser()
    if program is None:
        ui.say(
            "no PNG and SVG: they need Chromium (`apt-get install chromium`); the page has a "
            "camera button at each chart",
            "warn",
        )
        return []
    figures = page.figures(shown).items()
    return [
        path for name, figure in figures for path in pictures.take(figure, name, folder, program)
    ]
