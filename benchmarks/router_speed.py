"""pdctl's router against others, with fake engines that tokenise and refuse bad handles.

usage: python benchmarks/router_speed.py [--example FILE [--example-python PYTHON]]
           [--vllm-router COMMAND] [--repeats N] [--quick] [--output FILE]

FILE is vLLM's `disagg_proxy_multiturn.py`, out of its source distribution; PYTHON has its fastapi,
httpx and uvicorn. COMMAND is `vllm-router` as it is installed somewhere. The routers take turns at
each load, and each figure is the median of its repeats: compare within one table only.
"""

import argparse
import json
import os
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent / "router"
_START_S = 60.0
_LOAD_S = 600.0


@dataclass(frozen=True)
class Phase:
    """One kind of load."""

    clients: int
    turns: int
    kilobytes: int
    gap: float = 0.0


PHASES = {
    "one": Phase(1, 240, 12),
    "one_long": Phase(1, 40, 400),
    "many": Phase(32, 1920, 12),
    "paced": Phase(64, 768, 12, gap=0.005),
}
QUICK = {
    "one": Phase(1, 8, 4),
    "one_long": Phase(1, 4, 40),
    "many": Phase(4, 16, 4),
    "paced": Phase(4, 16, 4, gap=0.001),
}


@dataclass(frozen=True)
class Column:
    """A figure of the table: of which phase, where in what was measured, and how it is shown."""

    title: str
    phase: str
    value: str
    digits: int


COLUMNS = (
    Column("TTFT p50, 1 client, 12 kB, ms", "one", "ttft_ms", 2),
    Column("the same, 400 kB", "one_long", "ttft_ms", 1),
    Column("requests/s, 32 clients", "many", "per_second", 0),
    Column("TTFT p50, 64 clients, 5 ms between chunks, ms", "paced", "ttft_ms", 1),
    Column("CPU ms a request, 12 kB", "one", "cpu_ms", 2),
    Column("the same, 400 kB", "one_long", "cpu_ms", 1),
    Column("the same, 12 kB, 32 clients", "many", "cpu_ms", 2),
)


@dataclass(frozen=True)
class Bar:
    """What pdctl is held to: its figure is at most, or at least, so many times another's."""

    other: str
    column: int
    factor: float
    at_most: bool


BARS = (
    Bar("example", 0, 0.6, at_most=True),
    Bar("example", 2, 4.0, at_most=False),
    Bar("vllm-router", 3, 1.5, at_most=True),
)

Measured = dict[str, dict[str, float]]


def routers(options: argparse.Namespace) -> dict[str, list[str]]:
    """Commands by name, with places for the port and for the engines' addresses."""
    engines = ["--prefill", "http://{prefill}", "--decode", "http://{decode}"]
    found = {"pdctl": [sys.executable, "-m", "pdctl", "router", "--port", "{port}", *engines]}
    if options.example:
        names = ["--prefiller-host", "{prefill_host}", "--prefiller-port", "{prefill_port}"]
        names += ["--decoder-host", "{decode_host}", "--decoder-port", "{decode_port}"]
        start = [options.example_python, options.example, "--host", "127.0.0.1"]
        found["example"] = [*start, "--port", "{port}", *names]
    if options.vllm_router:
        start = [*shlex.split(options.vllm_router), "--vllm-pd-disaggregation"]
        start += ["--policy", "round_robin", "--log-level", "warning"]
        found["vllm-router"] = [*start, "--host", "127.0.0.1", "--port", "{port}", *engines]
    return found


@contextmanager
def process(argv: list[str], log: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program in a group of its own, and end all of the group."""
    with log.open("w") as sink:
        started = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if argv[-1].endswith("fakes.py") else sink,
            stderr=sink,
            text=True,
            start_new_session=True,
        )
        try:
            yield started
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGTERM)
            try:
                started.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(started.pid, signal.SIGKILL)
                started.wait()
            for stream in (started.stdin, started.stdout):
                if stream is not None:
                    stream.close()


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def call(url: str, body: dict[str, Any] | None = None) -> Any:
    """GET, or POST a JSON body; the JSON answer, None when there is no good one."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            text = answer.read().decode()
    except OSError:
        return None
    return json.loads(text) if text.startswith("{") else text


def wait_for(url: str, running: subprocess.Popen[str], *, ready: bool) -> None:
    """Wait until a router answers a chat; pdctl also says when it has proven the pair."""
    chat = {"model": "m", "messages": [{"role": "user", "content": "ping"}], "max_tokens": 2}
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and running.poll() is None:
        answers = call(f"{url}/v1/chat/completions", chat) is not None
        if answers and (not ready or (call(f"{url}/ready") or {}).get("ready")):
            return
        time.sleep(0.05)
    raise RuntimeError(f"{running.args} does not answer")


def cpu_seconds(pid: int) -> float:
    """Seconds that a process and its descendants computed."""
    tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    times = [each.cpu_times() for each in tree]
    return sum(each.user + each.system for each in times)


def load(url: str, phase: Phase, *, turns: int | None = None) -> dict[str, Any]:
    """Run the load generator; what it measured."""
    argv = [sys.executable, str(HERE / "load.py"), url]
    argv += [str(value) for value in (phase.clients, turns or phase.turns, phase.kilobytes)]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=_LOAD_S)
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


@dataclass(frozen=True)
class Running:
    """A router with a pair of engines of its own."""

    url: str
    pid: int
    fakes: str


@contextmanager
def started(name: str, argv: list[str], scratch: Path) -> Iterator[Running]:
    """Start fresh engines and one router."""
    fakes = [sys.executable, str(HERE / "fakes.py")]
    with process(fakes, scratch / f"{name}-fakes.log") as engines:
        assert engines.stdout is not None
        urls = json.loads(engines.stdout.readline())
        places = {"port": str(free_port())}
        for role, url in urls.items():
            places[role] = url.removeprefix("http://")
            places[f"{role}_host"], _, places[f"{role}_port"] = places[role].partition(":")
        command = [part.format(**places) for part in argv]
        with process(command, scratch / f"{name}.log") as running:
            url = f"http://127.0.0.1:{places['port']}"
            wait_for(url, running, ready=name == "pdctl")
            yield Running(url, running.pid, urls["prefill"])


def measure(commands: dict[str, list[str]], phases: dict[str, Phase]) -> dict[str, Measured]:
    """Start every router, and put each load on one after the other, close in time."""
    found: dict[str, Measured] = {name: {} for name in commands}
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        all_running = {
            name: stack.enter_context(started(name, argv, scratch))
            for name, argv in commands.items()
        }
        for name, phase in phases.items():
            for router, running in all_running.items():
                found[router][name] = _measure_phase(running, phase)
    return found


def _measure_phase(running: Running, phase: Phase) -> dict[str, float]:
    switch = f"{running.fakes}/fake"
    call(switch, {"gap": phase.gap})
    # Connections and caches come to be.
    load(running.url, phase, turns=4 * min(phase.clients, 4))
    call(switch, {})
    before = cpu_seconds(running.pid)
    measured = load(running.url, phase)
    measured["cpu_ms"] = 1000 * (cpu_seconds(running.pid) - before) / measured["turns"]
    return measured | call(switch)


def median(runs: list[Measured], phase: str, value: str) -> float:
    """Of one figure over the repeats."""
    return statistics.median(run[phase][value] for run in runs)


def table(results: dict[str, list[Measured]]) -> str:
    """Markdown: a line a router, then how pdctl stands to the bars."""
    titles = ["router", *(column.title for column in COLUMNS), "hits of turns", "bad handles"]
    lines = [" | ".join(titles), " | ".join(["---"] * len(titles))]
    for name, runs in results.items():
        cells = [name]
        cells += [f"{median(runs, c.phase, c.value):.{c.digits}f}" for c in COLUMNS]
        total = {key: _total(runs, key) for key in ("hits", "turns", "bad")}
        cells += [f"{total['hits']} of {total['turns']}", str(total["bad"])]
        lines.append(" | ".join(cells))
    said = [f"| {line} |" for line in lines] + [""]
    for bar in BARS:
        if bar.other in results:
            said.append(_stands(bar, results))
    return "\n".join(said) + "\n"


def _total(runs: list[Measured], key: str) -> int:
    return int(sum(phase[key] for run in runs for phase in run.values()))


def _stands(bar: Bar, results: dict[str, list[Measured]]) -> str:
    column = COLUMNS[bar.column]
    pairs = zip(results["pdctl"], results[bar.other], strict=True)
    ratios = [
        ours[column.phase][column.value] / theirs[column.phase][column.value]
        for ours, theirs in pairs
    ]
    ratio = statistics.median(ratios)
    holds = ratio <= bar.factor if bar.at_most else ratio >= bar.factor
    sign = "≤" if bar.at_most else "≥"
    return (
        f"- {column.title}: {ratio:.2f} × {bar.other}'s (bar: {sign} {bar.factor:g}; repeats: "
        f"{', '.join(f'{each:.2f}' for each in ratios)}) {'holds' if holds else 'DOES NOT HOLD'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--example", metavar="FILE")
    parser.add_argument("--example-python", metavar="PYTHON", default=sys.executable)
    parser.add_argument("--vllm-router", metavar="COMMAND")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parser.add_argument("--quick", action="store_true", help="tiny loads, to see that it works")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the table there too")
    parser.add_argument("--raw", type=Path, metavar="FILE", help="write all figures as JSON")
    options = parser.parse_args()
    phases = QUICK if options.quick else PHASES
    commands = routers(options)
    results: dict[str, list[Measured]] = {name: [] for name in commands}
    for repeat in range(options.repeats):
        print(f"repeat {repeat + 1} of {options.repeats}", file=sys.stderr)
        for name, measured in measure(commands, phases).items():
            results[name].append(measured)
    text = table(results)
    print(text, end="")
    if options.output:
        options.output.write_text(text)
    if options.raw:
        options.raw.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
