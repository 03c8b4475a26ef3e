"""Starting processes such that something starts them again when they die."""

from dataclasses import replace
from pathlib import PurePosixPath

from pdctl.base.command import command
from pdctl.base.errors import PdctlError, UnreachableError, UsageError
from pdctl.base.process import MARK_ENV, ProcessRef, ProcessSpec, Supervision
from pdctl.config.model import Config, Ec2Target, SshTarget
from pdctl.render.formats import SETTINGS_FOLDER, UNIT_FOLDER, installed_unit, unit_name
from pdctl.render.model import Deployment, Place
from pdctl.render.supervise import report_path, supervised
from pdctl.targets.base import Host
from pdctl.targets.hostlog import JOURNAL
from pdctl.targets.privilege import can_be_root, run_as_root, write_as_root

_RUNS_SYSTEMD = PurePosixPath("/run/systemd/system")
_LIMIT_S = 20.0
_START_LIMIT_S = 60.0


def choose(host: Host, target: SshTarget | Ec2Target) -> Supervision:
    """What is to keep a host's processes running.

    Raises:
        UsageError: the configuration wants systemd, and it does not run there or root cannot be
            had.
    """
    if target.supervision == "process":
        return "process"
    if not host.exists(_RUNS_SYSTEMD):
        missing = "systemd does not run on the host"
    elif not can_be_root(host, sudo=target.access.sudo):
        missing = "root is needed for units, and cannot be had"
    else:
        return "systemd"
    if target.supervision == "systemd":
        raise UsageError(
            missing,
            where=f"{host.name}, key `target.supervision`",
            hints=["with `process` pdctl's own supervisor keeps them running"],
        )
    return "process"


def log_of(spec: ProcessSpec, deployment: str, place: Place, supervision: Supervision) -> str:
    """Where its output goes: the journal, or a file on its host."""
    if supervision == "systemd":
        return f"{JOURNAL}{unit_name(deployment, spec.name)}.service"
    return str(place.state / "logs" / spec.log_name)


def start(
    host: Host,
    spec: ProcessSpec,
    log: str,
    *,
    supervision: Supervision,
    deployment: Deployment,
    config: Config,
    place: Place,
) -> ProcessRef:
    """Start one process and what keeps it running; returns at once.

    Raises:
        PdctlError: it could not be started; whatever could be has ended again.
    """
    if supervision == "systemd":
        return _start_unit(host, spec, deployment, config)
    if supervision == "none":
        return host.start(spec, PurePosixPath(log))
    report = report_path(place, spec.name)
    host.remove_tree(report)  # of an earlier supervisor
    wrapped = supervised(spec, place, deployment.name)
    return replace(host.start(wrapped, PurePosixPath(log)), report=str(report))


def _start_unit(
    host: Host, spec: ProcessSpec, deployment: Deployment, config: Config
) -> ProcessRef:
    unit = f"{unit_name(deployment.name, spec.name)}.service"
    mark = spec.command.environ().get(MARK_ENV, "")
    user = host.run(command("id", "-un"), timeout=_LIMIT_S).stdout.strip()
    for text in installed_unit(deployment, config, spec, user=user):
        folder = UNIT_FOLDER if text.name.endswith(".service") else SETTINGS_FOLDER
        write_as_root(
            host, PurePosixPath(folder) / text.name, text.content.encode(), mode=text.mode
        )
    ref = ProcessRef(0, 0, "", mark, unit=unit)
    try:
        run_as_root(host, "systemctl", "daemon-reload")
        run_as_root(host, "systemctl", "enable", "--quiet", unit)
        run_as_root(host, "systemctl", "restart", unit, timeout=_START_LIMIT_S)
    except PdctlError as error:
        host.stop(ref, timeout=_LIMIT_S)
        raise UnreachableError(
            f"the unit of {spec.name} could not be started: {error.message}",
            where=host.name,
            detail=error.detail,
            hints=[f"`journalctl -u {unit}` on the host says more"],
        ) from error
    kept = host.kept(ref)
    return replace(kept.ref, unit=unit) if kept and kept.ref else ref
