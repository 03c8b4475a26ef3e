"""The benchmark itself: that it runs, and that it would see a router that breaks the rules."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_quick_run_hits_three_of_four_turns_and_breaks_no_rule(tmp_path: Path) -> None:
    raw, page = tmp_path / "raw.json", tmp_path / "table.md"
    argv = [sys.executable, "benchmarks/router_speed.py", "--quick", "--repeats", "1"]
    run = subprocess.run(
        [*argv, "--raw", str(raw), "--output", str(page)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr
    phases = json.loads(raw.read_text())["pdctl"][0]
    assert set(phases) == {"one", "one_long", "many", "paced"}
    for phase in phases.values():
        assert phase["errors"] == phase["bad"] == 0
        assert phase["requests"] == phase["turns"]
        assert 4 * phase["hits"] == 3 * phase["turns"]
        assert phase["ttft_ms"] > 0
    assert page.read_text() == run.stdout
    assert run.stdout.startswith("| router | TTFT p50")


def test_the_fakes_see_bad_handles() -> None:
    code = """
import fakes
pair = fakes.Pair()
text = fakes.text_of(list(range(40)))
pair._held["d0"] = text
kv = pair.handle("decode", "d0", 39)
other = fakes.text_of([0, 1, 3])
assert pair.pull(kv, other) is None            # other tokens
assert pair.pull(kv, text) is None             # used up by that
pair._held["d0"] = text
assert pair.pull(kv, text + other) == 39
pair._held["d0"] = text
assert pair.pull(kv | {"remote_num_tokens": 16}, text) is None   # too many blocks
pair._held["d0"] = text
assert pair.pull(kv | {"remote_num_tokens": 40}, text) is None   # more than there is
"""
    subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "benchmarks" / "router", check=True, timeout=30
    )
