"""How long `pdctl analyze` takes over a large log, beside the script that the project began with.

    nice python benchmarks/analyze.py [--lines 5000000] [--keep FILE] [--simulate 1000000]

The log is made: conversations that come and go, some thousands open at once, in order of time.
Prints seconds of both, their ratio, the greatest memory of each, and whether the numbers are equal.
The bar: the same numbers in a fifth of the time, and no more memory. With `--simulate` also how
long `pdctl size` takes to simulate that many sessions; the bar is a minute.
"""

import argparse
import heapq
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

SEED = """
import collections
import json
import sys

TTL_S = 480  # match decoder_kv_blocks_ttl

convs = collections.defaultdict(list)
for line in sys.stdin:
    r = json.loads(line)
    convs[r["conversation_id"]].append((r["ts"], r["prompt_tokens"]))

prompt_total = repeated = turns = late = 0
for rows in convs.values():
    rows.sort()
    for (prev_ts, prev_tok), (ts, tok) in zip(rows, rows[1:]):
        turns += 1
        prompt_total += tok
        repeated += min(prev_tok, tok)
        if ts - prev_ts > TTL_S:
            late += 1

print(f"follow-up turns:            {turns}")
print(f"repeated prompt share (>=): {repeated / prompt_total:.1%}")
print(f"turns after the TTL:        {late / turns:.1%}")
"""
"""The seed's script, word for word but for its comments."""


def make(path: Path, lines: int) -> None:
    """Write a log of that many lines."""
    chance = random.Random(1)

    def fresh(at: float) -> tuple[float, str, int, int]:
        id = f"{chance.getrandbits(128):032x}"
        return at, id, chance.randint(200, 4000), chance.randint(1, 40)

    open_ = [fresh(1.76e9 + chance.random() * 60) for _ in range(2000)]
    heapq.heapify(open_)
    with path.open("w", buffering=1 << 20) as file:
        for _ in range(lines):
            at, id, tokens, left = open_[0]
            file.write(
                f'{{"conversation_id": "{id}", "ts": {round(at, 3)}, "prompt_tokens": {tokens}}}\n'
            )
            if left > 1:
                later = at + chance.lognormvariate(3, 1.6)
                heapq.heapreplace(open_, (later, id, tokens + chance.randint(50, 800), left - 1))
            else:
                heapq.heapreplace(open_, fresh(at + chance.random() * 30))


@dataclass(frozen=True)
class Run:
    """A command that ran.

    Attributes:
        seconds: by the clock.
        cpu: seconds of all its processes.
        mib: the most memory that one of its processes had.
        said: its first three lines.
    """

    seconds: float
    cpu: float
    mib: float
    said: list[str]


def run(command: list[str], stdin: Path | None = None) -> Run:
    """Run a command by itself and take its time."""
    with tempfile.TemporaryFile("w+") as out, open(stdin or os.devnull, "rb") as given:
        began = time.monotonic()
        child = subprocess.Popen(command, stdin=given, stdout=out, cwd=ROOT)
        _, status, used = os.wait4(child.pid, 0)
        seconds = time.monotonic() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise SystemExit(f"{command} ended with {child.returncode}")
        out.seek(0)
        said = out.read().splitlines()
    return Run(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, said[:3])


def main() -> None:
    """Make the log, run both, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=5_000_000)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--simulate", type=int, default=0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = chosen.keep or Path(folder) / "requests.jsonl"
        if not log.exists():
            make(log, chosen.lines)
        print(f"{log.stat().st_size / 1e6:,.0f} MB, {chosen.lines:,} lines")
        seed = run([sys.executable, "-c", SEED], log)
        ours = run([sys.executable, "-m", "pdctl", "analyze", str(log)])
        for name, each in (("seed's script", seed), ("pdctl analyze", ours)):
            print(f"{name}: {each.seconds:6.2f} s, {each.cpu:6.2f} s CPU, {each.mib:5.0f} MB")
        print(
            f"ratio: {ours.seconds / seed.seconds:.3f} of its time (CPU {ours.cpu / seed.cpu:.3f})"
        )
        print(
            "same numbers" if ours.said == seed.said else f"NOT THE SAME: {seed.said}, {ours.said}"
        )
    if chosen.simulate:
        ask = ["--turn-gap", "30", "--context", "8000", "--simulate", str(chosen.simulate)]
        ask = ["size", "--sessions", str(chosen.simulate), *ask]
        done = run([sys.executable, "-m", "pdctl", *ask])
        print(f"{chosen.simulate:,} sessions: {done.seconds:.1f} s, {done.mib:,.0f} MB")
    if ours.said != seed.said:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
