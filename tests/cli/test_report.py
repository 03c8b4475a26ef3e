"""`pdctl report`: the page in a real browser, its numbers, and what other tools have measured."""

import html
import json
import re
import statistics
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pdctl.bench import files, pictures
from pdctl.bench.others import read_other
from tests.bench import rows
from tests.cli.helpers import run_cli

REAL = Path(__file__).parent.parent / "data" / "bench"


class Tables(HTMLParser):
    """The rows of all tables of a page, by the table's class."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: dict[str, list[list[str]]] = {}
        self._at, self._cell = "", False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self._at = dict(attrs).get("class") or ""
        elif tag == "tr":
            self.rows.setdefault(self._at, []).append([])
        elif tag in ("td", "th"):
            self.rows[self._at][-1].append("")
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._cell = False

    def handle_data(self, data: str) -> None:
        if self._cell:
            self.rows[self._at][-1][-1] += data


@pytest.fixture
def program() -> str:
    found = pictures.browser()
    if found is None:
        pytest.skip("no Chromium here; .ci/run installs it")
    return found


def raw_medians(run: Path) -> dict[tuple[int, str], float]:
    """From the raw lines, by nothing of pdctl's."""
    values: dict[tuple[int, str], list[float]] = {}
    for line in (run / files.TURNS).read_text().splitlines():
        row = json.loads(line)
        leg, length, _ = row["cell"].split("/")
        if row["turn"] > 1 and not row["error"]:
            values.setdefault((int(length), leg), []).append(row["ttft_ms"])
    return {key: statistics.median(each) for key, each in values.items()}


def test_the_page_in_a_real_browser(tmp_path: Path, program: str) -> None:
    run = rows.write(tmp_path / "r")
    done = run_cli("report", str(run), "--no-pictures")
    assert done.exit_code == 0
    page = run / "report.html"
    shot = tmp_path / "page.png"
    said, dom = seen(program, page, shot)
    assert said == []
    assert shot.stat().st_size > 20_000
    # Both charts were drawn, with every series.
    assert len(re.findall(r'class="main-svg"', dom)) >= 2
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', dom, re.DOTALL)[1])  # type: ignore[index]
    for name, figure in figures.items():
        part = dom[dom.index(f'id="{name}"') :]
        part = part[: part.index("</figure>")]
        assert len(re.findall(r'class="trace scatter', part)) == len(figure["data"])
        assert 'role="img"' in dom[: dom.index(f'id="{name}"') + 60]
    # What it shows is what was measured.
    medians = raw_medians(run)
    shown = {
        (int(cells[0].replace(",", "")), cells[1]): float(cells[3].split()[0].replace(",", ""))
        for cells in Tables(dom).rows["ttft"][1:]
    }
    assert shown == {key: pytest.approx(value, abs=0.051) for key, value in medians.items()}
    drawn = {
        (x, trace["name"]): y
        for trace in figures["ttft"]["data"]
        for x, y in zip(trace["x"], trace["y"], strict=True)
        if not trace["name"].startswith("published")
    }
    assert drawn == {
        (length, f"reuse {leg.removesuffix('-cache')}"): pytest.approx(value, abs=0.001)
        for (length, leg), value in medians.items()
    }
    ratio = medians[(8000, "off-cache")] / medians[(8000, "on-cache")]
    assert f"{ratio:.1f} times as fast" in dom


def seen(program: str, page: Path, shot: Path) -> tuple[list[str], str]:
    """What the console said, and the page as it then was; its picture goes to `shot`."""
    logged = page.with_name("console.html")
    # Whatever is thrown or logged as an error ends up in the page itself.
    spy = (
        "<script>const said = []; const keep = text => { said.push(String(text)); "
        "document.documentElement.dataset.said = JSON.stringify(said); };"
        "addEventListener('error', event => keep(event.message || event.target.src), true);"
        "addEventListener('unhandledrejection', event => keep(event.reason));"
        "console.error = keep; console.warn = keep;</script>"
    )
    logged.write_text(page.read_text().replace("<head>", "<head>" + spy, 1))
    dom = pictures.browse(program, "--virtual-time-budget=8000", "--dump-dom", logged.as_uri())
    pictures.browse(
        program,
        "--virtual-time-budget=5000",
        "--window-size=1000,2400",
        f"--screenshot={shot}",
        page.as_uri(),
    )
    found = re.search(r'<html[^>]*data-said="([^"]*)"', dom)
    return json.loads(html.unescape(found[1])) if found else [], dom


def test_the_browser_test_can_fail(tmp_path: Path, program: str) -> None:
    page = tmp_path / "x.html"
    page.write_text("<html><head></head><body><script>nothing.there()</script></body></html>")
    said, _ = seen(program, page, tmp_path / "x.png")
    assert said == ["Uncaught ReferenceError: nothing is not defined"]


def test_pictures(tmp_path: Path, program: str) -> None:
    run = rows.write(tmp_path / "r")
    done = run_cli("report", str(run), "--out", str(tmp_path / "out"))
    assert done.exit_code == 0, done.stderr
    names = [Path(line).name for line in done.stdout.splitlines()]
    assert names == ["report.html", "ttft.png", "ttft.svg", "prefill.png", "prefill.svg"]
    svg = (tmp_path / "out" / "ttft.svg").read_text()
    assert "published Qwen3-32B: reuse off" in svg
    assert (tmp_path / "out" / "ttft.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_needs_no_network_and_no_sight(tmp_path: Path) -> None:
    run = rows.write(tmp_path / "r")
    run_cli("report", str(run), "--no-pictures")
    page = (run / "report.html").read_text()
    own = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r'(?:src|href)="(?!data:)|@import|url\(', own)
    assert own.count('role="img" aria-label="Line chart') == 2
    assert all("<caption>" in table for table in re.findall(r"<table.*?</table>", own, re.DOTALL))
    assert "<html lang=" in own
    for sentence in (
        "At 8,000 tokens, the first token of a later turn came after",
        "Prefill&#39;s own prefix cache was off: the best case for reuse.",
        "KV went over UCX (tcp), not over EFA.",
        "With 2 conversations a cell, the intervals are rough.",
        "reused all they could",
    ):
        assert sentence in own
    assert "158 → 778" in own


def test_runs_are_compared(tmp_path: Path) -> None:
    first, second = rows.write(tmp_path / "before"), rows.write(tmp_path / "after", slow=2.0)
    done = run_cli("report", str(first), str(second), "--no-pictures", "--out", str(tmp_path))
    assert done.exit_code == 0
    page = (tmp_path / "report.html").read_text()
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    own = [t for t in figures["ttft"]["data"] if not t["name"].startswith("published")]
    assert [trace["name"] for trace in own] == [
        *(f"{run}: reuse {leg}" for run in ("before", "after") for leg in ("off", "on"))
    ]
    looks = {(t["marker"]["symbol"], t["line"]["dash"]) for t in own}
    assert len(looks) == 4, "told apart without colour"


def test_what_other_tools_measured(tmp_path: Path) -> None:
    multi = tmp_path / "multi.json"
    turns = [
        {"ttft_ms": float(n), "tpot_ms": 5.0, "latency_ms": 100.0, "conversation_id": "c"}
        for n in (10, 20, 90)
    ]
    multi.write_text(json.dumps(turns))
    brief = tmp_path / "brief.json"
    brief.write_text(
        json.dumps({"completed": 3, "median_ttft_ms": 21.5, "median_tpot_ms": 4.0, "ttfts": []})
    )
    detailed = tmp_path / "detailed.json"
    detailed.write_text(json.dumps({"completed": 3, "ttfts": [0.01, 0.02, 0.03]}))
    old = tmp_path / "profile_export_aiperf.json"
    block = {"unit": "s", "p50": 0.031, "p95": 0.05}
    old.write_text(json.dumps({"time_to_first_token": block, "request_count": {"avg": 7.0}}))
    assert (read_other(multi).ttft, read_other(multi).total) == (20.0, 100.0)
    assert (read_other(brief).ttft, read_other(brief).ttft_p95) == (21.5, None)
    assert (read_other(detailed).ttft, read_other(detailed).requests) == (20.0, 3)
    assert (read_other(old).ttft, read_other(old).requests) == (31.0, 7)
    run = rows.write(tmp_path / "r")
    done = run_cli("report", str(run), str(multi), str(REAL / "aiperf-0.13.json"), "--no-pictures")
    assert done.exit_code == 0
    page = (run / "report.html").read_text()
    assert "Measured by other tools" in page
    assert "vLLM&#39;s multi-turn benchmark" in page


def test_real_files_of_other_tools() -> None:
    """Written by both tools for six requests through the router to the real local pair."""
    serve, aiperf = read_other(REAL / "serve-0.32.json"), read_other(REAL / "aiperf-0.13.json")
    assert (serve.tool, serve.requests, aiperf.tool, aiperf.requests) == (
        "vllm bench serve", 6, "aiperf", 6,
    )  # fmt: skip
    said = [serve.ttft, serve.ttft_p95, serve.tpot, serve.total]
    assert said == pytest.approx([87.9, 105.8, 10.3, 243.1], abs=0.1)
    said = [aiperf.ttft, aiperf.ttft_p95, aiperf.tpot, aiperf.total]
    assert said == pytest.approx([83.2, 94.3, 5.7, 207.2], abs=0.1)


def test_the_report_as_json(tmp_path: Path) -> None:
    run = rows.write(tmp_path / "r")
    done = run_cli("report", str(run), str(REAL / "serve-0.32.json"), "--no-pictures", "--json")
    assert done.exit_code == 0
    said = json.loads(done.stdout)
    assert said["files"] == [str(run / "report.html")]
    (told,) = said["runs"]
    assert {line["reuse"] for line in told["lines"]} == {"on", "off"}
    assert said["others"][0] == {
        "file": "serve-0.32.json", "tool": "vllm bench serve", "requests": 6,
        "ttft": pytest.approx(87.9, abs=0.1), "ttft_p95": pytest.approx(105.8, abs=0.1),
        "tpot": pytest.approx(10.3, abs=0.1), "total": pytest.approx(243.1, abs=0.1),
    }  # fmt: skip


def test_what_is_no_run(tmp_path: Path) -> None:
    other = tmp_path / "x.json"
    other.write_text("{}")
    assert run_cli("report", str(other)).exit_code == 1
    assert "the results of no tool that is known" in run_cli("report", str(other)).stderr
    assert run_cli("report", str(tmp_path / "none")).exit_code == 66


def test_a_run_without_a_turn_is_a_page_too(tmp_path: Path) -> None:
    files.create(tmp_path / "r", rows.ABOUT)
    done = run_cli("report", str(tmp_path / "r"))
    assert done.exit_code == 0
    assert "nothing to compare" in (tmp_path / "r" / "report.html").read_text()
