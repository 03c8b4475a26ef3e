"""Charts as PNG and SVG, taken by a Chromium that is installed anyway; no other library draws."""

import html
import os
import re
import shutil
import tempfile
from pathlib import Path
from urllib.parse import unquote

from pdctl.base.command import command
from pdctl.base.errors import BadAnswerError
from pdctl.bench.charts import Figure
from pdctl.bench.page import picture_page
from pdctl.targets.local import LocalHost

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# It shows a page of our own and nothing else, so it has nobody to talk to.
FLAGS = (
    *("--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
)
WIDTH, HEIGHT = 900, 520
_LIMIT_S = 120.0


def browser() -> str | None:
    """A Chromium on this machine; None when there is none."""
    found = (shutil.which(name) for name in _NAMES)
    return next((path for path in found if path), None)


def browse(program: str, *arguments: str) -> str:
    """What it writes to stdout for some arguments, with a profile of its own that is then gone.

    Raises:
        BadAnswerError: it failed.
    """
    with tempfile.TemporaryDirectory(prefix="pdctl-chromium-") as profile:
        # Root has no sandbox there, and the page is ours.
        sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()
        line = command(program, *FLAGS, *sandbox, f"--user-data-dir={profile}", *arguments)
        done = LocalHost().run(line, timeout=_LIMIT_S)
    if not done.ok:
        raise BadAnswerError(
            "Chromium could not draw the charts",
            where=program,
            detail=done.stderr.strip().splitlines()[-5:],
        )
    return done.stdout


def take(figure: Figure, name: str, folder: Path, program: str) -> list[Path]:
    """`NAME.png` and `NAME.svg` of one chart.

    Raises:
        BadAnswerError: the browser failed, or drew nothing.
    """
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    with tempfile.TemporaryDirectory(prefix="pdctl-chart-") as scratch:
        file = Path(scratch) / "chart.html"
        file.write_text(picture_page(figure, width=WIDTH, height=HEIGHT, svg=False))
        browse(
            program,
            f"--window-size={WIDTH},{HEIGHT}",
            "--force-device-scale-factor=2",
            "--virtual-time-budget=5000",
            f"--screenshot={png.absolute()}",
            file.as_uri(),
        )
        file.write_text(picture_page(figure, width=WIDTH, height=HEIGHT, svg=True))
        shown = browse(program, "--virtual-time-budget=5000", "--dump-dom", file.as_uri())
    found = re.search(r"data:image/svg\+xml,([^<]+)", shown)
    if found is None or not png.exists():
        raise BadAnswerError("Chromium drew no chart", where=program)
    svg.write_text(unquote(html.unescape(found.group(1))))
    return [png, svg]
