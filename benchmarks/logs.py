"""How long `pdctl logs` takes over a large log, beside `grep -F -c` with the same literals.

    nice python benchmarks/logs.py [--gb 1] [--hits 25] [--keep FILE]

The log is made: lines as the three processes write them while all is well, and every `--hits`-th
line one of a signature, all of them in turn. Prints seconds of both, their ratio, and the greatest
memory of pdctl. The bar: six times grep, 200 MB.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from pdctl.observe.logs.scan import Scanner  # noqa: E402
from pdctl.observe.signatures import BY_ID, SIGNATURES  # noqa: E402
from tests.observe.logs.lines import POSITIVE  # noqa: E402

ORDINARY = (
    'INFO:     10.0.0.9:{n} - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    'INFO:     10.0.0.9:{n} - "GET /health HTTP/1.1" 200 OK',
    "2026-11-29 15:29:11 [INFO] httpx: HTTP Request: POST http://10.0.0.1:8100/v1/chat/completions "
    '"HTTP/1.1 200 OK"',
    "(EngineCore pid=12188) DEBUG 11-29 15:29:10 [core.py:402] EngineCore loop active, step {n}.",
    "(Worker_TP{r} pid=12209) DEBUG 11-29 15:29:11 [base_worker.py:2921] get_finished for request "
    "chatcmpl-23240644-ff84-4942-8a91-{n:012d}",
    "(APIServer pid=12147) INFO 11-29 15:29:11 [logger.py:41] Received request chatcmpl-{n:012d}: "
    "params: SamplingParams(n=1, temperature=0.0, top_p=1.0, seed=None, max_tokens=300)",
)
_ROUTINE = ("router.cache.hit", "router.prefill.done", "router.handle.kept", "kv.transfer.metrics")


def make(path: Path, size: int, every: int) -> tuple[int, int]:
    """Write the log; how many lines, and how many of them of a signature."""
    rare = [line for lines in POSITIVE.values() for line in lines]
    routine = [line for id in _ROUTINE for line in POSITIVE[id]]
    # As in life, what is well stands there some eighty times for each thing that is not.
    flagged = cycle(each for odd in rare for each in (*routine * 10, odd))
    ordinary = cycle(ORDINARY)
    written = number = hits = 0
    with path.open("w", buffering=1 << 20) as file:
        while written < size:
            number += 1
            if number % every:
                line = next(ordinary).format(n=number, r=number % 8)
            else:
                line = next(flagged)
                hits += 1
            file.write(line + "\n")
            written += len(line) + 1
    return number, hits


def timed(command: list[str]) -> tuple[float, str]:
    """Seconds, and the output or, where it is long, its size.

    Exit status 1 of pdctl says that something bad was found, of grep that nothing was.
    """
    with tempfile.TemporaryFile("w+") as out:
        began = time.monotonic()
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        seconds = time.monotonic() - began
        if done.returncode > 1:
            raise SystemExit(done.stderr)
        size = out.tell()
        out.seek(0)
        return seconds, out.read(200) if size < 200 else f"{size}"


def main() -> None:
    """Make the file, run both, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--hits", type=int, default=25)
    parser.add_argument("--keep", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = chosen.keep or Path(folder) / "mixed.log"
        lines, hits = make(log, int(chosen.gb * 1e9), chosen.hits)
        literals = Path(folder) / "literals"
        literals.write_bytes(b"\n".join(Scanner(SIGNATURES).literals) + b"\n")
        print(f"{log.stat().st_size / 1e9:.2f} GB, {lines:,} lines, {hits:,} of a signature")
        grep, counted = timed(["grep", "-F", "-c", "-f", str(literals), str(log)])
        print(f"grep -F -c:  {grep:6.1f} s, {int(counted):,} lines")
        for name, options in (("pdctl logs", []), ("… --json", ["--json"])):
            ours, said = timed([sys.executable, "-m", "pdctl", "logs", *options, str(log)])
            print(f"{name}:  {ours:6.1f} s, {ours / grep:.1f} × grep, {int(said) / 1e6:.1f} MB out")
        most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"memory: {most:.0f} MB at most")
        spoken = sum(not signature.derived for signature in BY_ID.values())
        print(f"signatures in the file: {spoken}")


if __name__ == "__main__":
    main()
