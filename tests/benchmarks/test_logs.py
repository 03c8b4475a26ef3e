"""The benchmark runs, finds in the log it makes what grep finds, and needs little memory."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_benchmark_of_logs_runs() -> None:
    argv = [sys.executable, "benchmarks/logs.py", "--gb", "0.01"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    made = re.search(r"([\d,]+) of a signature", done.stdout)
    counted = re.search(r"grep -F -c: .* s, ([\d,]+) lines", done.stdout)
    memory = re.search(r"memory: (\d+) MB", done.stdout)
    assert made is not None
    assert counted is not None
    assert memory is not None
    assert made.group(1) == counted.group(1)
    assert int(memory.group(1)) < 200
