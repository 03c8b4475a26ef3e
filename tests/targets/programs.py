"""Small real programs for tests of processes."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from pdctl.base.command import command
from pdctl.base.process import ProcessSpec

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('up', flush=True)
time.sleep(600)
"""
# A child in the same group, one in a group of its own, one in a session of its own; the parent
# ends at SIGTERM and they do not, as engine cores do when their server is killed.
FAMILY = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for leave in (lambda: None, lambda: os.setpgid(0, 0), os.setsid):
    if os.fork() == 0:
        leave()
        time.sleep(600)
        sys.exit()
signal.signal(signal.SIGTERM, signal.SIG_DFL)
time.sleep(0.1)
print('up', flush=True)
time.sleep(600)
"""
# Its first thread ends, which makes it a zombie, while another holds the port for a while longer:
# what a killed server of many gigabytes looks like.
ENDING = """
import ctypes, os, socket, threading, time
listener = socket.create_server(('127.0.0.1', 0))
threading.Thread(target=lambda: (time.sleep(1.5), os._exit(0))).start()
print(listener.getsockname()[1], flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def spec_of(code: str, *args: str, env: dict[str, str] | None = None) -> ProcessSpec:
    return ProcessSpec(
        role="prefill",
        index=0,
        host="localhost",
        address="127.0.0.1",
        port=0,
        side_channel_port=None,
        command=command(sys.executable, "-c", code, *args, env=env),
        log_name="p.log",
    )


def wait_until(condition: Callable[[], bool], *, limit: float = 10.0) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def wait_for_text(path: object, text: str) -> None:
    file = Path(str(path))
    wait_until(lambda: file.exists() and text in file.read_text())
