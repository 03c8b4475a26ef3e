"""The real command on the logs of a deployment, until Ctrl-C."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pdctl.base.exits import ExitCode
from pdctl.state.store import StateStore
from tests.cli.deployed import NAME, Deployed
from tests.cli.helpers import run_cli
from tests.observe.logs.lines import EXAMPLE, POSITIVE

DECLINED = POSITIVE["kv.read.declined"][0]


def watched(
    folder: Path, act: Callable[[], None], until: str, *command: str
) -> tuple[int, str, str]:
    """Run a command, act when it follows, interrupt it when it has said `until`."""
    out, err = folder / "out", folder / "err"
    with out.open("w") as stdout, err.open("w") as stderr:
        running = subprocess.Popen(
            [sys.executable, "-m", "pdctl", *command], stdout=stdout, stderr=stderr
        )
        try:
            said = lambda text: text in out.read_text() + err.read_text()  # noqa: E731
            if "--json" in command:  # it says nothing when it begins, so until it says something
                _wait(lambda: act() or said(until), pause=0.3)
            else:
                _wait(lambda: said("last minute"))
                act()
                _wait(lambda: said(until))
            running.send_signal(signal.SIGINT)
            code = running.wait(10)
        finally:
            running.kill()
            running.wait()
    return code, out.read_text(), err.read_text()


def _wait(so: Callable[[], bool], pause: float = 0.02) -> None:
    deadline = time.monotonic() + 30
    while not so():
        assert time.monotonic() < deadline
        time.sleep(pause)


def append(log: Path, *lines: str) -> None:
    with log.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def log_of(name: str) -> Path:
    state = StateStore(NAME).load()
    assert state is not None
    return Path(state.processes[name].log)


def test_all_logs_at_once_with_alerts_once_and_a_summary(
    deployed: Deployed, tmp_path: Path
) -> None:
    run_cli(*deployed.args("up", "--no-verify"))
    append(log_of("router-0"), f"{EXAMPLE}[r0] conv=old: cache MISS", DECLINED)

    def act() -> None:
        append(log_of("prefill-0"), DECLINED, DECLINED)
        append(log_of("router-0"), f"{EXAMPLE}[r1] conv=old: cache MISS", "an ordinary line")

    code, out, err = watched(tmp_path, act, "an ordinary line", "tail-logs", "--name", NAME)
    assert code == ExitCode.INTERRUPTED
    assert out.count("Declining expired") == 2  # not what stood there before
    assert "an ordinary line" in out
    assert err.count("alert kv.read.declined: ") == 1
    assert err.count("alert router.cache.lost: ") == 1  # `old` was seen before
    assert "last minute: no turns | expired reads 0 | failed loads 0 | waiting 0" in err
    assert "turns: 0 HIT, 1 MISS (100%): 1 that should have been HITs" in out
    assert "! 2 × kv.read.declined (degrade)" in out
    assert "Traceback" not in err


def test_json_is_events_then_the_summary(deployed: Deployed, tmp_path: Path) -> None:
    run_cli(*deployed.args("up", "--no-verify"))
    code, out, _ = watched(
        tmp_path, lambda: append(log_of("prefill-0"), DECLINED), "kv.read.declined",
        "logs", "-f", "--json", "--name", NAME,
    )  # fmt: skip
    assert code == ExitCode.INTERRUPTED
    *events, last = [json.loads(line) for line in out.splitlines()]
    seen = [event["signature"] for event in events].count("kv.read.declined")
    assert seen > 0
    assert last["summary"]["signatures"]["kv.read.declined"] == seen
