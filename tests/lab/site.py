"""The lab of `examples/lab.yaml`: its hosts, and who types pdctl commands about them."""

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdctl.base.paths import cache_root
from pdctl.render.check import load_checked
from pdctl.render.deployment import render
from pdctl.render.place import place_of
from tests.e2e.harness import EXAMPLE as LOCAL_EXAMPLE
from tests.e2e.harness import PYTHON_ENV
from tests.lab.hosts import Lab, LabHost, make_lab

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "lab.yaml"
SUBNET = "10.77.254"
"""The example's addresses, so there is one such lab on a machine at a time."""
NAME = "lab"
ENGINE = "/opt/engine"
BASE = "/opt/pdctl"
MARK = f"{BASE}/deployments/{NAME}/"
_LIMIT_S = 900.0
"""For a command: an upgrade of four real engines on two cores loads two of them, twice."""
TOOLS = "/opt/lab"
AHEAD_S = 600
_NUMBERS = {"x86_64": (228, 96), "aarch64": (113, 169)}
"""Of the system calls clock_gettime and gettimeofday."""


def engine_python() -> str:
    """An environment with vLLM and NIXL: the one that is named, or that earlier tests installed."""
    if python := os.environ.get(PYTHON_ENV):
        return python
    config = load_checked(LOCAL_EXAMPLE).config
    recipe = render(config, place_of(config)).recipe
    assert recipe is not None
    if not Path(recipe.layout.complete).exists():
        pytest.skip(f"no engine is installed in {cache_root()}; {PYTHON_ENV} names one elsewhere")
    return str(recipe.layout.python)


@dataclass(frozen=True)
class Said:
    """What a command left."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its output as JSON."""
        return json.loads(self.out)

    @property
    def last(self) -> Any:
        """The last line of its output as JSON."""
        return json.loads(self.out.splitlines()[-1])


@dataclass(frozen=True)
class Operator:
    """Somebody with pdctl, a key and a state directory of their own.

    Attributes:
        folder: their home and state.
        file: the configuration they use.
        more: variables that their commands get besides.
    """

    folder: Path
    file: Path
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        """What their commands get."""
        given = {key: value for key, value in os.environ.items() if key != "SSH_AUTH_SOCK"}
        return {
            **given,
            "HOME": str(self.folder),
            "PDCTL_STATE_DIR": str(self.folder / "state"),
            "PYTHONPATH": str(ROOT),
            "NO_COLOR": "1",
            **self.more,
        }

    @property
    def engine_key(self) -> str | None:
        """What engines on other hosts want to be shown; None before `up` made it."""
        found = list((self.folder / "state").glob("*/keys/engine"))
        return found[0].read_text().strip() if found else None

    @property
    def ssh(self) -> Path:
        """Where their key and the hosts' keys are."""
        return self.folder / ".ssh"

    def begins(self, *args: str) -> "subprocess.Popen[str]":
        """Start a command and do not wait."""
        return subprocess.Popen(
            [sys.executable, "-m", "pdctl", *args, "-f", str(self.file)],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def tries(self, *args: str) -> Said:
        """Run a command to its end."""
        with self.begins(*args) as child:
            try:
                out, err = child.communicate(timeout=_LIMIT_S)
            except BaseException:
                child.kill()
                raise
        return Said(child.returncode, out, err)

    def types(self, *args: str, expect: int = 0) -> Said:
        """Run a command that has to end with this status."""
        said = self.tries(*args)
        assert said.status == expect, f"{args} ended with {said.status}\n{said.out}{said.err}"
        return said

    def asks(self, *args: str, expect: int = 0) -> Any:
        """The same for `--json`."""
        return self.types(*args, "--json", expect=expect).json


@dataclass(frozen=True)
class Site:
    """The hosts and their operator.

    Attributes:
        edited: the operator's own copy of the example, for tests that change it.
        no_clock: why no host can have another clock; empty when one can.
        real: engines are vLLM.
    """

    lab: Lab
    operator: Operator
    edited: Path
    no_clock: str
    real: bool

    @property
    def prefill(self) -> LabHost:
        """The example's prefill host."""
        return self.lab.hosts[0]

    @property
    def decode(self) -> LabHost:
        """The example's decode host."""
        return self.lab.hosts[1]

    @property
    def router(self) -> LabHost:
        """The example's router host."""
        return self.lab.hosts[2]

    @property
    def url(self) -> str:
        """Where the router's clients go."""
        return f"http://{self.router.address}:8000"

    def another(self, name: str) -> Operator:
        """A colleague: the same keys and file, another state directory."""
        return replace(self.operator, folder=home(self.operator.folder.parent / name, self.lab))

    def edit(self, changes: Mapping[str, Any]) -> Operator:
        """The operator with a file of their own: the example, and values by dotted key."""
        document = yaml.safe_load(EXAMPLE.read_text())
        for key, value in changes.items():
            *path, last = key.split(".")
            section = document
            for part in path:
                section = section.setdefault(part, {})
            section[last] = value
        self.edited.write_text(yaml.safe_dump(document, sort_keys=False))
        return replace(self.operator, file=self.edited)

    def left(self) -> list[str]:
        """What of the deployment is still on its hosts: processes, ports, sockets, units."""
        found = []
        for host in self.lab.hosts:
            found += [f"{host.name}: pid {pid}" for pid in host.pids(f"PDCTL_PROCESS={MARK}")]
            ports = [line.split()[3] for line in host.does("ss", "-ltnH").splitlines()]
            found += [f"{host.name}: {port}" for port in ports if not port.endswith(":22")]
            units = host.path("etc/systemd/system").glob("*pdctl*")
            sockets = host.path(f"run/pdctl/{NAME}").glob("*")
            found += [f"{host.name}: {path}" for path in (*units, *sockets)]
        return found


def make_clock(folder: Path) -> str:
    """Make what `put_clock_ahead` loads; gives why it cannot be made, or nothing."""
    compiler = shutil.which("tcc") or shutil.which("cc")
    numbers = _NUMBERS.get(platform.machine())
    if compiler is None or numbers is None:
        return "a clock that is ahead takes a C compiler (package tcc) and x86-64 or arm64"
    named = zip(("CLOCK_GETTIME", "GETTIMEOFDAY", "AHEAD_S"), (*numbers, AHEAD_S), strict=True)
    defined = [f"-D{name}={value}" for name, value in named]
    source, made = Path(__file__).with_name("ahead.c"), folder / "ahead.so"
    how = ("-shared", "-nostdlib", "-fPIC", "-o", str(made), str(source))
    subprocess.run([compiler, *defined, *how], check=True)
    return ""


def put_clock_ahead(host: LabHost) -> None:
    """Another time of day for every program that starts on a host from now on."""
    host.path("etc/ld.so.preload").write_text(f"{TOOLS}/ahead.so\n")


def home(folder: Path, lab: Lab) -> Path:
    """A user's folder, with the key that opens the lab and the hosts' keys."""
    ssh = folder / ".ssh"
    ssh.mkdir(parents=True, mode=0o700)
    shutil.copy(lab.key_file, ssh / "id_ed25519")
    shutil.copy(lab.known_hosts, ssh / "known_hosts")
    return folder


def received(host: LabHost) -> int:
    """Bytes that came over the host's wire."""
    return int(host.does("cat", "/sys/class/net/eth0/statistics/rx_bytes"))


@contextmanager
def made(hosts: int, folder: Path, *, real: bool = True) -> Iterator[Site]:
    """The lab of the example. Whatever was started in it has ended afterwards.

    Args:
        real: engines are vLLM; else `stand_in.py`, and vLLM's environment only for what it tells.
    """
    tools = folder / "tools"
    tools.mkdir()
    no_clock = make_clock(tools)
    shared = {**engine_folders(folder, real=real), TOOLS: str(tools)}
    with ExitStack() as undo:
        lock = undo.enter_context((Path(tempfile.gettempdir()) / "pdctl-lab.lock").open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / "hosts").mkdir()
        lab = undo.enter_context(make_lab(hosts, folder / "hosts", subnet=SUBNET, shared=shared))
        put_pdctl(lab.hosts[2])
        operator = Operator(home(folder / "operator", lab), EXAMPLE)
        yield Site(lab, operator, folder / "pd.yaml", no_clock, real)


def engine_folders(folder: Path, *, real: bool) -> dict[str, str]:
    """What hosts see of this machine to have an engine at `ENGINE`; `real` as for `made`."""
    python = Path(engine_python())
    shared = {ENGINE: str(python.parents[1])}
    if not real:
        shared[ENGINE] = str(stand_in(folder / "engine", python))
        shared[str(python.parents[1])] = str(python.parents[1])
    base = python.resolve().parents[1]
    if base != Path("/usr"):
        shared[str(base)] = str(base)
    return shared


def stand_in(folder: Path, python: Path) -> Path:
    """An environment whose Python runs `stand_in.py` in place of vLLM's server."""
    script = folder / "bin" / "python"
    script.parent.mkdir(parents=True)
    script.write_text(
        "#!/bin/sh\n"
        '[ "$2" != vllm.entrypoints.openai.api_server ] || '
        f'PYTHONPATH={ROOT} exec {sys.executable} -m tests.lab.stand_in "$@"\n'
        f'exec {python} "$@"\n'
    )
    script.chmod(0o755)
    return folder


def put_pdctl(host: LabHost) -> None:
    """The pdctl of this checkout, where routers want it."""
    python = host.path(f"{BASE}/pdctl/bin/python")
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
