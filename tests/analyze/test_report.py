"""The report stands by itself, and shows what was answered."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from pdctl.analyze import plots
from pdctl.analyze.plots import Series
from tests.cli.helpers import run_cli


@pytest.fixture
def html(tmp_path: Path) -> str:
    log = tmp_path / "log"
    rows = [
        {
            "conversation_id": f"<c{c}>",
            "ts": 1.76e9 + turn * 20 + c,
            "prompt_tokens": 900 * turn + 9,
        }
        for turn in range(10)
        for c in range(30)
    ]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "report.html"
    done = run_cli("analyze", str(log), "--out", str(out), "--capacity", "900000")
    assert done.exit_code == 0
    assert "report: " in done.stderr
    return out.read_text()


def test_it_needs_no_network(html: str) -> None:
    assert not re.search(r"(?:src|href)\s*=|https?://|@import|url\(", html)


def test_plots_are_whole_and_hold_what_they_say(html: str) -> None:
    pictures = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(pictures) == 3
    for picture in pictures:
        ElementTree.fromstring(picture)
        assert "nan" not in picture
    assert "recommended" in pictures[0]
    assert "room on decode" in pictures[1]


def test_it_says_the_verdict(html: str) -> None:
    assert re.search(r'class="verdict">\S', html)
    assert "&lt;" not in html, "no ids of conversations"


def test_nothing_to_report_is_a_page_too(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    out = tmp_path / "x.html"
    assert run_cli("analyze", str(tmp_path / "log"), "--out", str(out)).exit_code == 0
    assert "Measure first" in out.read_text()
    refused = run_cli("analyze", str(tmp_path / "log"), "--out", str(tmp_path / "no" / "x"))
    assert refused.exit_code == 66


def test_plots_of_nothing() -> None:
    assert plots.hits([], marks=[]) == ""
    assert plots.over_time([], unit="") == ""
    flat = plots.over_time([Series("<a>", [(0, 0), (0, 0)])], unit="")
    ElementTree.fromstring(flat)
    assert plots.short(1_234_567) == "1.23M"
