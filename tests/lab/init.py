"""The first process of a host of the lab: gives it a file system of its own, then an sshd.

Run in new mount, pid, IPC and UTS namespaces, in the host's network namespace. It reaps what is
left to it, and the host ends with it. Standard library only.
"""

import ctypes
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

# Of linux/mount.h
READ_ONLY, REMOUNT, BIND = 1, 32, 4096
_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str = "", flags: int = 0) -> None:
    """mount(2): unlike the program, it takes `/proc/self/fd/N` for what it is."""
    words = [word.encode() for word in (source, target, kind)]
    if _libc.mount(*words, ctypes.c_ulong(flags), None) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"mount {source} at {target}: {os.strerror(error)}")


def main(plan: dict) -> None:
    """Set up and reap.

    Args:
        plan: `own`: source by target, folders that are the host's own; `shared`: source by target,
            read-only; `name`: its host name; `argv`: what to start.
    """
    wanted = [(target, source, BIND) for target, source in plan["own"].items()]
    wanted += [(t, source, BIND | READ_ONLY) for t, source in plan["shared"].items()]
    # Held open, since what is mounted over a folder hides what it had.
    held = [(target, os.open(source, os.O_PATH), how) for target, source, how in sorted(wanted)]
    for target, handle, how in held:
        Path(target).mkdir(parents=True, exist_ok=True)
        mount(f"/proc/self/fd/{handle}", target, flags=BIND)
        if how & READ_ONLY:
            mount("", target, flags=REMOUNT | how)
        os.close(handle)
    mount("", "/", flags=REMOUNT | BIND | READ_ONLY)
    mount("tmpfs", "/dev/shm", "tmpfs")
    mount("sysfs", "/sys", "sysfs")
    mount("proc", "/proc", "proc")
    socket.sethostname(plan["name"])
    subprocess.Popen(plan["argv"], start_new_session=True)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
