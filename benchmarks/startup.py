"""`pdctl --help` against the least that any typer program pays; medians of one run.

usage: python benchmarks/startup.py [RUNS]
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

PDCTL = Path(sys.executable).with_name("pdctl")
COMMANDS = {
    "import typer, rich": [sys.executable, "-c", "import typer, rich"],
    "pdctl --help": [str(PDCTL), "--help"],
}


def seconds(argv: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(runs + 1):  # the first run of each only warms the file cache
        for name, argv in COMMANDS.items():
            taken[name].append(seconds(argv))
    medians = {name: statistics.median(values[1:]) for name, values in taken.items()}
    for name, median in medians.items():
        print(f"{name:<20} {median * 1000:7.1f} ms")
    base, ours = medians.values()
    print(f"ratio {ours / base:.2f} (bar: 1.50)")


if __name__ == "__main__":
    main()
