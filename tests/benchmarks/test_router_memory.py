import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_retained_conversation_is_within_its_bar() -> None:
    argv = [sys.executable, "benchmarks/router_memory.py", "--quick"]
    run = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    _, _, figures, _, bar = run.stdout.splitlines()
    tokens, handles, allocated, _ = (float(cell) for cell in figures.strip("| ").split("|"))
    assert (tokens, handles) == (24_000, 40)
    # Four bytes a token at least, and not much more.
    assert 4 * 24_000 / 1024 < allocated < 128
    assert bar == "- bar: 128 KiB holds"
