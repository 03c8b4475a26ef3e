"""A stand-in for `systemctl`: units are read as systemd reads them, and run as real processes.

The folder in $FAKE_SYSTEMD has `units` (where units are), `calls` (what was asked), and for each
unit that runs a file with its pid and its count of restarts.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.render import systemd

ROOT = Path(os.environ["FAKE_SYSTEMD"])
LOG = ROOT / "journal"


def run_of(unit: str) -> Path:
    return ROOT / f"{unit}.run"


def read(unit: str) -> dict[str, int]:
    file = run_of(unit)
    found: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}
    return found


def runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def start(unit: str, restarts: int = 0) -> None:
    service = systemd.sections((ROOT / "units" / unit).read_text())["Service"]
    env = {"PATH": os.environ["PATH"], "FAKE_SYSTEMD": str(ROOT)}
    for key, value in service:
        if key == "EnvironmentFile":
            env |= systemd.env_file(Path(value).read_text())
    options = dict(service)
    with LOG.open("ab") as log:
        child = subprocess.Popen(
            systemd.exec_words(options["ExecStart"]),
            env=env,
            cwd=options.get("WorkingDirectory"),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    run_of(unit).write_text(json.dumps({"pid": child.pid, "restarts": restarts}))


def stop(unit: str) -> None:
    pid = read(unit).get("pid", 0)
    if pid and runs(pid):
        os.kill(pid, signal.SIGTERM)
        while runs(pid):
            time.sleep(0.01)
    run_of(unit).unlink(missing_ok=True)


def show(unit: str) -> None:
    """As it is; one whose process died is started again first, as systemd would."""
    found = read(unit)
    if found and not runs(found["pid"]):
        start(unit, found["restarts"] + 1)
        found = read(unit)
    print(f"ActiveState={'active' if found else 'inactive'}")
    print(f"MainPID={found.get('pid', 0)}")
    print(f"NRestarts={found.get('restarts', 0)}")


def main(words: list[str]) -> int:
    with (ROOT / "calls").open("a") as calls:
        calls.write(" ".join(words) + "\n")
    verb, unit = words[0], words[-1]
    if verb == "show":
        show(unit)
    elif verb == "restart":
        if (ROOT / "refuses").exists():
            print("Job for it failed because the control process exited.", file=sys.stderr)
            return 1
        stop(unit)
        start(unit)
    elif verb == "disable":
        stop(unit)
    elif verb not in ("daemon-reload", "enable", "reset-failed"):
        return 64
    return 0


sys.exit(main(sys.argv[1:]))
