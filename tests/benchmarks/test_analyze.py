"""The benchmark runs and finds the same numbers; the bar itself is measured on 5 M lines."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_benchmark_of_analyze_runs() -> None:
    argv = [sys.executable, "benchmarks/analyze.py", "--lines", "20000", "--simulate", "2000"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "\nsame numbers\n" in done.stdout
    assert re.search(r"ratio: \d+\.\d+ of its time", done.stdout)
    assert re.search(r"2,000 sessions: [\d.]+ s", done.stdout)
