"""Keeps one process running on a host without systemd: starts it again when it dies.

    python3 -I -S supervise.py --name NAME --report FILE [--new-id TEXT PREFIX] -- PROGRAM ARGUMENT…

It waits longer before each start, and gives up after too many in a short time. It ends with its
process when it gets SIGTERM or SIGINT, and its process ends when it is killed. Nothing of one start
is left when the next begins. The environment, secrets too, is passed on as it is.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time

MARK = "PDCTL_PROCESS"
MOST_STARTS = 5
WITHIN_S = 600.0
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0
STEADY_S = 120.0  # after so long the next death is met as if it were the first
SWEEP_S = 10.0
_LOOK_S = 0.1
_PR_SET_PDEATHSIG = 1


class Supervisor:
    """One process, started again and again."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._child: subprocess.Popen[bytes] | None = None
        self._ending = False
        self._starts: list[float] = []
        self._restarts = -1
        self._engine_id: str | None = None

    def run(self) -> int:
        """Until somebody wants it to end (0), or there is no use in another start (1)."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        raise_limits()
        wait = FIRST_WAIT_S
        while True:
            began = time.monotonic()
            status = self._run_once()
            sweep()
            if self._is_ended_within(0.0):
                return 0
            lasted = time.monotonic() - began
            wait = FIRST_WAIT_S if lasted > STEADY_S else wait
            how = f"ended with {in_words(status)} after {lasted:.0f} s"
            if self._has_started_too_often():
                self._say(
                    f"{how}; {MOST_STARTS} starts within {WITHIN_S:.0f} s did not last, so it is "
                    "not started again"
                )
                return 1
            self._say(f"{how}; it is started again in {wait:.0f} s")
            if self._is_ended_within(wait):
                return 0
            wait = min(2 * wait, LONGEST_WAIT_S)

    def _run_once(self) -> int:
        argv = self._arguments()
        self._starts.append(time.monotonic())
        self._restarts += 1
        try:
            # In a session of its own, so that all of it can be told from the supervisor.
            self._child = subprocess.Popen(
                argv, start_new_session=True, preexec_fn=_end_with_parent
            )
        except OSError as error:
            self._say(f"cannot be started: {error.strerror}: {argv[0]}")
            return 127
        self._report(self._child.pid)
        if self._ending:  # told before there was anything to tell it to
            self._child.terminate()
        return self._child.wait()

    def _arguments(self) -> list[str]:
        argv: list[str] = list(self._options.command)
        if self._options.new_id:
            text, prefix = self._options.new_id
            self._engine_id = prefix + os.urandom(4).hex()
            argv = [word.replace(text, self._engine_id) for word in argv]
        return argv

    def _has_started_too_often(self) -> bool:
        now = time.monotonic()
        self._starts = [when for when in self._starts if now - when < WITHIN_S]
        return len(self._starts) >= MOST_STARTS

    def _report(self, pid: int) -> None:
        said = {
            "pid": pid,
            "start_ticks": start_ticks(pid),
            "restarts": self._restarts,
            "engine_id": self._engine_id,
        }
        scratch = f"{self._options.report}.{os.getpid()}"
        try:
            with open(scratch, "w") as file:
                json.dump(said, file)
            os.replace(scratch, self._options.report)
        except OSError as error:  # it serves all the same
            self._say(f"runs as pid {pid}, which cannot be written down: {error}")

    def _end(self, number: int, frame: object) -> None:
        self._ending = True
        if self._child is not None and self._child.returncode is None:
            self._child.terminate()

    def _is_ended_within(self, seconds: float) -> bool:
        """Wait so long, unless somebody wants it to end."""
        deadline = time.monotonic() + seconds
        while not self._ending and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        return self._ending

    def _say(self, text: str) -> None:
        now = time.strftime("%m-%d %H:%M:%S")
        print(f"WARNING {now} [pdctl supervise] {self._options.name} {text}", flush=True)


def _end_with_parent() -> None:
    """Runs in the child: the kernel ends it when the supervisor is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def raise_limits() -> None:
    """As far as the user may: RDMA pins memory, and every request needs files."""
    for name in (resource.RLIMIT_MEMLOCK, resource.RLIMIT_NOFILE):
        _, hard = resource.getrlimit(name)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(name, (hard, hard))


def in_words(status: int) -> str:
    """`status 1` or `SIGKILL`."""
    if status >= 0:
        return f"status {status}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-status).name
    return f"signal {-status}"


def start_ticks(pid: int) -> int:
    """Field 22 of `/proc/PID/stat`; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[19])
    except OSError:
        return 0


def sweep() -> None:
    """End what a start left behind: children whose parent was killed hold ports and memory."""
    deadline = time.monotonic() + SWEEP_S
    while (left := others()) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_S)


def others() -> list[int]:
    """All other processes that carry this one's mark."""
    mark = os.environ.get(MARK)
    if not mark:
        return []
    own = f"{MARK}={mark}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if own in file.read().split(b"\0"):
                    found.append(int(entry))
        except OSError:
            continue  # it is gone, or another user's
    return found


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--report", required=True)
    parser.add_argument("--new-id", nargs=2)
    parser.add_argument("command", nargs="+")
    return Supervisor(parser.parse_args()).run()


if __name__ == "__main__":
    sys.exit(main())
