"""What a process to run is, and how a running one is named so that no other is ever hit."""

from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Literal

from pdctl.base.command import Command

RoleName = Literal["prefill", "decode", "router"]
ROLES: tuple[RoleName, ...] = ("prefill", "decode", "router")

Supervision = Literal["none", "process", "systemd"]
"""What starts a process again when it dies: nothing, pdctl's own supervisor, or systemd."""

MARK_ENV = "PDCTL_PROCESS"
"""Set in the environment of every process of a deployment and inherited by its children, so that
one that was started but never recorded is found and known to be ours."""


KEEP_ENVIRON = {"SPT_NOENV": "1"}
"""Tells `setproctitle`, by which vLLM names its children, not to write over `/proc/PID/environ`,
where the mark is read."""


def process_mark(deployment_dir: PurePath, name: str) -> str:
    """The value of `PDCTL_PROCESS`: the folder tells deployments apart, also of the same name."""
    return f"{deployment_dir}/{name}"


@dataclass(frozen=True)
class ProcessSpec:
    """One process of a deployment, as rendered: what `up` runs and `render` shows.

    Attributes:
        role, index: which engine or router, counted from 0 within the role.
        host: where it runs, as the target names it.
        address: the address the other processes reach it at.
        port: HTTP port; 0 until chosen.
        side_channel_port: NIXL's handshake port; None for the router, 0 until chosen.
        command: argv and environment.
        log_name: file name of its log in the deployment's directory.
        health_path: what to GET until it answers 200.
        binds: the address it listens on, where that is not the one it is reached at.
        cell: engines of different cells never work together.
    """

    role: RoleName
    index: int
    host: str
    address: str
    port: int
    side_channel_port: int | None
    command: Command
    log_name: str
    health_path: str = "/health"
    binds: str | None = None
    cell: str = ""

    @property
    def name(self) -> str:
        """`prefill-0`: the name in state, logs and messages."""
        return f"{self.role}-{self.index}"

    @property
    def url(self) -> str:
        """Base URL of its HTTP port."""
        return url_of(self.address, self.port)


def url_of(address: str, port: int) -> str:
    """Base URL of a server, an IPv6 address in brackets."""
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}"


def marked(spec: ProcessSpec, deployment_dir: PurePath) -> ProcessSpec:
    """The same process with the mark in its environment."""
    mark = {**KEEP_ENVIRON, MARK_ENV: process_mark(deployment_dir, spec.name)}
    env = dict(sorted({**spec.command.env, **mark}.items()))
    return replace(spec, command=replace(spec.command, env=env))


@dataclass(frozen=True)
class ProcessRef:
    """A started process. A pid alone may be recycled; with its start time it cannot be mistaken.

    Attributes:
        pid: process id, also the id of its process group.
        start_ticks: field 22 of `/proc/PID/stat`, clock ticks since boot.
        boot_id: `/proc/sys/kernel/random/boot_id`; ticks mean nothing after a reboot.
        mark: its `PDCTL_PROCESS`, empty when it has none. Children that outlive it are known by it.
        unit: systemd unit that keeps it running; the pid is then that of its first start.
        report: file in which its supervisor says what it keeps running; the pid is then the
            supervisor's.
    """

    pid: int
    start_ticks: int
    boot_id: str
    mark: str = ""
    unit: str = ""
    report: str = ""


@dataclass(frozen=True)
class Kept:
    """What a started process is now, which something may have started again since.

    Attributes:
        ref: the process itself, never its supervisor; None while it is down.
        restarts: how often it was started again.
        engine_id: of this start, where the supervisor chose it.
    """

    ref: ProcessRef | None
    restarts: int = 0
    engine_id: str | None = None


@dataclass(frozen=True)
class RunningProcess:
    """A process as it was found on a machine, rather than as it was started."""

    ref: ProcessRef
    argv: tuple[str, ...]
