"""A deployment for tests of commands: the real renderer and the real commands, tiny servers.

The engines' interpreter is a script that runs `tests/deploy/server.py` whatever it is asked for,
and so does the router's, which is declared to be upstream's example.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from pdctl.base.paths import deployment_dir, temp_dir
from pdctl.base.process import RunningProcess
from pdctl.state.model import DeploymentState
from pdctl.state.store import StateStore
from pdctl.targets.local import LocalHost

NAME = "demo"
SERVER = Path(__file__).parents[1] / "deploy" / "server.py"


ENGINE = {"schema_version": 1, "vllm": "0.32.0", "nixl": "1.5.1", "device": "cpu"}
"""What the interpreter says of itself."""


class Deployed:
    """A configuration file in a folder of its own, and what became of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "pd.yaml"
        self.python = folder / "python"
        script = f"""#!/bin/sh
if [ "$*" = "-I -" ]; then echo '{json.dumps(ENGINE)}'; exit; fi
if [ "$1 $2" = "-I -c" ]; then echo; exit; fi  # it has every module
if [ "$1" = -m ]; then shift 2; set -- {SERVER} "$@"; fi
exec {sys.executable} -I -S "$@"
"""
        self.python.write_text(script)
        self.python.chmod(0o755)
        (folder / "model").mkdir()
        shutil.copy(SERVER, folder / "router.py")
        self.write()

    def write(
        self,
        *,
        prefill: Mapping[str, str] | None = None,
        decode: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        """Write the file; `prefill` and `decode` are variables of those processes."""
        value = {
            "name": NAME,
            "model": {"id": str(self.folder / "model"), "dtype": "float32"},
            "prefill": {"env": dict(prefill or {})},
            "decode": {"env": dict(decode or {})},
            "engine": {
                "install": "existing",
                "python": str(self.python),
                "vllm": "0.32.0",
                "plugin": "off",
            },
            "kv": {"buffer_device": "cpu"},
            "target": {
                "kind": "local",
                "prefill": {"port": 0, "side_channel_port": 0},
                "decode": {"port": 0, "side_channel_port": 0},
                "stop_timeout": 2,
            },
            "router": {
                "kind": "vllm-example",
                "source": str(self.folder / "router.py"),
                "port": 0,
            },
            **more,
        }
        self.file.write_text(yaml.safe_dump(value))

    def args(self, command: str, *more: str) -> list[str]:
        return [command, "-f", str(self.file), *more]

    def spawn(self, command: str, *more: str) -> "subprocess.Popen[str]":
        """The command as a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "pdctl", *self.args(command, *more)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    # --- seeing -------------------------------------------------------------------------

    def state(self) -> DeploymentState:
        state = StateStore(NAME).load()
        assert state is not None
        return state

    def pids(self) -> dict[str, int]:
        state = StateStore(NAME).load()
        records = state.processes if state else {}
        return {name: r.ref.pid for name, r in records.items() if r.ref is not None}

    def running(self) -> list[RunningProcess]:
        return LocalHost().find(f"{deployment_dir(NAME)}/")

    def wait_for(self, *names: str) -> None:
        """Until these are recorded as started."""
        deadline = time.monotonic() + 30
        while not set(names) <= set(self.pids()):
            assert time.monotonic() < deadline, "never started"
            time.sleep(0.01)

    def kill(self, name: str) -> None:
        os.kill(self.pids()[name], signal.SIGKILL)

    def end_everything(self) -> None:
        host = LocalHost()
        for each in self.running():
            host.stop(each.ref, timeout=0)
        assert self.running() == []
        # Outside tmp_path, whose paths are too long for sockets; `down` was not always run.
        host.remove_tree(PurePosixPath(temp_dir(NAME)))
