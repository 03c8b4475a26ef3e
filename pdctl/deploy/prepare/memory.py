"""Memory for RDMA: how much may be locked, and huge pages."""

from pathlib import PurePosixPath

from pdctl.base.command import command
from pdctl.base.errors import BadAnswerError
from pdctl.deploy.prepare.task import Task
from pdctl.targets.base import Host, OutputSink
from pdctl.targets.privilege import run_as_root, write_as_root

LIMITS = PurePosixPath("/etc/security/limits.d/90-pdctl.conf")
SYSCTL = PurePosixPath("/etc/sysctl.d/90-pdctl.conf")
HUGE_PAGES = 5128
"""Of 2 MiB, as AWS sets them up on hosts with EFA."""

_NUMBER = PurePosixPath("/proc/sys/vm/nr_hugepages")
_LIMIT_S = 30.0


def limits_task(hosts: tuple[str, ...], *, sudo: bool) -> Task:
    """Let the user lock memory and open files; counts from the next login on."""
    return Task(
        id="limits",
        what="let the user lock memory",
        done="the user may lock as much as is needed",
        hosts=hosts,
        look=_look_at_limits,
        apply=_set_limits,
        root=lambda host: f"printf '{_limits(host)}' | sudo tee {LIMITS}".replace("\n", r"\n"),
        sudo=sudo,
    )


def _limits(host: Host) -> str:
    user = host.run(command("id", "-un"), timeout=_LIMIT_S).stdout.strip()
    return f"{user} - memlock unlimited\n{user} - nofile 1048576\n"


def _look_at_limits(host: Host) -> str:
    now = host.run(command("sh", "-c", "ulimit -H -l"), timeout=_LIMIT_S).stdout.strip()
    if now == "unlimited" or host.read_file(LIMITS) == _limits(host).encode():
        return ""
    return f"it is {now} KiB, and RDMA locks all of the KV cache"


def _set_limits(host: Host, tell: OutputSink) -> None:
    write_as_root(host, LIMITS, _limits(host).encode(), mode=0o644)
    host.close()  # the next call logs in anew, and has them
    now = host.run(command("sh", "-c", "ulimit -H -l"), timeout=_LIMIT_S).stdout.strip()
    if now != "unlimited":
        tell(f"{LIMITS} is written; this login still has {now} KiB")


def huge_pages_task(hosts: tuple[str, ...], *, sudo: bool) -> Task:
    """Set huge pages aside, now and at every boot."""
    return Task(
        id="huge-pages",
        what=f"set {HUGE_PAGES} huge pages aside for EFA",
        done="they are set aside",
        hosts=hosts,
        look=_look_at_pages,
        apply=_set_pages,
        root=lambda host: (
            f"echo vm.nr_hugepages={HUGE_PAGES} | sudo tee {SYSCTL} && sudo sysctl -p {SYSCTL}"
        ),
        sudo=sudo,
    )


def _pages(host: Host) -> int:
    return int(host.read_file(_NUMBER) or 0)


def _look_at_pages(host: Host) -> str:
    now = _pages(host)
    return "" if now >= HUGE_PAGES else f"there are {now}"


def _set_pages(host: Host, tell: OutputSink) -> None:
    write_as_root(host, SYSCTL, f"vm.nr_hugepages={HUGE_PAGES}\n".encode(), mode=0o644)
    run_as_root(host, "sysctl", "-p", str(SYSCTL), on_line=tell)
    if (now := _pages(host)) < HUGE_PAGES:
        raise BadAnswerError(
            f"the kernel found memory for {now} of {HUGE_PAGES} huge pages only",
            where=host.name,
            hints=["reboot the host: they are set aside at boot, while memory is in one piece"],
        )
