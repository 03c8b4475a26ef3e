"""Packages of the distribution: looked for by what they bring, not by their names."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pdctl.base.command import command
from pdctl.base.errors import BadAnswerError
from pdctl.deploy.prepare.task import Task
from pdctl.targets.base import Host, OutputSink
from pdctl.targets.privilege import run_as_root

_LIMIT_S = 30.0
_INSTALL_LIMIT_S = 1800.0


@dataclass(frozen=True)
class Need:
    """Something that a package brings.

    Attributes:
        name: in messages.
        test: `sh` that exits 0 where it is there.
        packages: by package manager.
    """

    name: str
    test: str
    packages: Mapping[str, str]


def venv_for(python: str) -> Need:
    """What it takes to make an environment, until it is made."""
    return Need(
        "python3-venv",
        f'test -x {shlex.quote(python)} || python3 -I -c "import ensurepip, venv"',
        {"apt-get": "python3-venv", "dnf": "python3-pip"},
    )


HWLOC = Need(
    "libhwloc",
    "ldconfig -p | grep -q 'libhwloc[.]so[.]15'",
    {"apt-get": "libhwloc15", "dnf": "hwloc-libs"},
)
NUMACTL = Need("numactl", "command -v numactl", {"apt-get": "numactl", "dnf": "numactl"})
MDADM = Need("mdadm", "command -v mdadm", {"apt-get": "mdadm", "dnf": "mdadm"})

_PATH = "PATH=$PATH:/usr/sbin:/sbin; "
_MANAGER = f"{_PATH}for m in apt-get dnf; do command -v $m >/dev/null && echo $m && break; done"


def packages_task(needs: Mapping[str, Sequence[Need]], *, sudo: bool) -> Task:
    """Install what is missing.

    Args:
        needs: by host.
    """
    return Task(
        id="packages",
        what="install packages of the distribution",
        done="all that is needed is there",
        hosts=tuple(needs),
        look=lambda host: _why(_missing(host, needs[host.name])),
        apply=lambda host, tell: _install(host, needs[host.name], tell),
        root=lambda host: _by_hand(host, needs[host.name]),
        sudo=sudo,
    )


def _why(missing: Sequence[Need]) -> str:
    return f"{', '.join(need.name for need in missing)} missing" if missing else ""


def _missing(host: Host, needs: Sequence[Need]) -> list[Need]:
    script = "".join(
        f"({_PATH}{need.test}) >/dev/null 2>&1 || echo {number}\n"
        for number, need in enumerate(needs)
    )
    said = host.run(command("sh", "-c", script), timeout=_LIMIT_S).stdout.split()
    found = {needs[int(number)].name: needs[int(number)] for number in said}
    return list(found.values())


def _manager(host: Host) -> str:
    return host.run(command("sh", "-c", _MANAGER), timeout=_LIMIT_S).stdout.strip()


def _commands(manager: str, names: Sequence[str]) -> list[tuple[str, ...]]:
    if manager == "apt-get":
        quiet = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q")
        wait = ("-o", "DPkg::Lock::Timeout=300")  # a new machine updates itself first
        return [
            (*quiet, "update"),
            (*quiet, *wait, "install", "-y", "--no-install-recommends", *names),
        ]
    return [("dnf", "-q", "-y", "install", *names)]


def _by_hand(host: Host, needs: Sequence[Need]) -> str:
    manager = _manager(host) or "apt-get"
    names = [need.packages[manager] for need in _missing(host, needs)]
    return " && ".join(f"sudo {shlex.join(words)}" for words in _commands(manager, names))


def _install(host: Host, needs: Sequence[Need], tell: OutputSink) -> None:
    manager = _manager(host)
    missing = _missing(host, needs)
    if not manager:
        raise BadAnswerError(
            f"{_why(missing)}, and the host has neither apt-get nor dnf",
            where=host.name,
            hints=["install them by what the host has, then `pdctl up` again"],
        )
    for words in _commands(manager, [need.packages[manager] for need in missing]):
        run_as_root(host, *words, timeout=_INSTALL_LIMIT_S, on_line=tell)
    if left := _missing(host, needs):
        raise BadAnswerError(
            f"{manager} installed its packages, and {_why(left)} still", where=host.name
        )
