"""Several hosts on one machine: network namespaces with an address and an sshd each.

    machine ── 10.77.N.1 ── veth ──┐
                                   ├── bridge, in a namespace of its own
    h1 ── eth0 10.77.N.11 ── veth ─┤
    h2 ── eth0 10.77.N.12 ── veth ─┘

The bridge is not in the machine's own namespace, so the machine's packet filter cannot get in the
way. All hosts share the machine's file system; each has a `directory` of its own. Whatever lives
in the namespaces was started here, so ending a lab ends just that.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_PREFIX = "pdlab"
_RUN_SSHD = Path("/run/sshd")
_STEP_S = 20.0
"""Limit of every command that sets a lab up or takes it down."""


class LabError(RuntimeError):
    """A command of the lab failed; the text has its output."""


@dataclass(frozen=True)
class LabHost:
    """One host of a lab.

    Attributes:
        name: `h1`.
        namespace: its network namespace, for `ip netns exec`.
        address: where its sshd listens, port 22, and other hosts reach it.
        directory: files of this host; the only part of the file system that is its own.
    """

    name: str
    namespace: str
    address: str
    directory: Path

    def command(self, *argv: str) -> list[str]:
        """The argv that runs `argv` inside the host."""
        return ["ip", "netns", "exec", self.namespace, *argv]

    def run(self, *argv: str, timeout: float = _STEP_S) -> subprocess.CompletedProcess[str]:
        """Run inside the host, without ssh."""
        return subprocess.run(
            self.command(*argv), capture_output=True, text=True, timeout=timeout, check=False
        )


@dataclass(frozen=True)
class Lab:
    """A running lab.

    Attributes:
        hosts: in order, `h1` first.
        key_file: private key that every host lets in as root.
        known_hosts: the host keys of all hosts, so that clients can be strict.
        gateway: the machine's own address in the lab.
    """

    id: str
    hosts: tuple[LabHost, ...]
    key_file: Path
    known_hosts: Path
    gateway: str

    def ssh_argv(self, host: LabHost, *remote: str) -> list[str]:
        """The `ssh` command line that logs in to `host` with nothing of the user's own."""
        options = (
            "BatchMode=yes",
            "ConnectTimeout=5",
            "IdentitiesOnly=yes",
            "StrictHostKeyChecking=yes",
            f"UserKnownHostsFile={self.known_hosts}",
            "GlobalKnownHostsFile=/dev/null",
        )
        words = [word for option in options for word in ("-o", option)]
        return [
            "ssh", "-F", "none", "-i", str(self.key_file), *words, f"root@{host.address}", *remote,
        ]  # fmt: skip


def why_not() -> str | None:
    """Why there can be no lab here; None when there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program, package in (("ip", "iproute2"), ("ssh-keygen", "openssh-client")):
        if shutil.which(program) is None:
            return f"`{program}` is not installed (package {package})"
    if _sshd() is None:
        return "`sshd` is not installed (package openssh-server)"
    probe = f"{_PREFIX}{os.getpid()}-probe"
    tried = subprocess.run(
        ["ip", "netns", "add", probe], capture_output=True, text=True, check=False
    )
    if tried.returncode != 0:
        return f"this machine does not allow network namespaces: {tried.stderr.strip()}"
    _run("ip", "netns", "del", probe)
    return None


@contextlib.contextmanager
def make_lab(count: int, directory: Path) -> Iterator[Lab]:
    """A lab of `count` hosts with its files under `directory`; nothing is left afterwards."""
    _sweep()
    lab_id = f"{_PREFIX}{os.getpid()}-{os.urandom(2).hex()}"
    with contextlib.ExitStack() as undo:
        undo.callback(_take_down, lab_id)
        yield _set_up(lab_id, count, directory, undo)


def leftovers(lab_id: str) -> list[str]:
    """What is still there of a lab: namespaces, interfaces, processes."""
    found = [f"namespace {name}" for name in _namespaces() if name.startswith(lab_id)]
    links = _run("ip", "-o", "link", "show")
    found += [f"interface {_link(lab_id)}"] * (f" {_link(lab_id)}@" in links)
    for name in _namespaces():
        if name.startswith(lab_id):
            found += [f"process {pid} in {name}" for pid in _pids(name)]
    return found


def _set_up(lab_id: str, count: int, directory: Path, undo: contextlib.ExitStack) -> Lab:
    subnet = _free_subnet()
    switch = f"{lab_id}-net"
    _run("ip", "netns", "add", switch)
    _in(switch, "ip", "link", "add", "br0", "type", "bridge")
    _in(switch, "ip", "link", "set", "br0", "up")
    _run(
        "ip", "link", "add", _link(lab_id), "type", "veth", "peer", "name", "machine",
        "netns", switch,
    )  # fmt: skip
    _in(switch, "ip", "link", "set", "machine", "master", "br0", "up")
    _run("ip", "addr", "add", f"{subnet}.1/24", "dev", _link(lab_id))
    _run("ip", "link", "set", _link(lab_id), "up")
    _make_run_sshd(undo)
    key = directory / "key"
    _keygen(key)
    hosts = tuple(
        _host(f"h{number}", lab_id, switch, f"{subnet}.{10 + number}", directory)
        for number in range(1, count + 1)
    )
    for host in hosts:
        _start_sshd(host, key.with_suffix(".pub"), undo)
    known = directory / "known_hosts"
    known.write_text("".join(_known(host) for host in hosts))
    for host in hosts:
        _wait_for_sshd(host)
    return Lab(lab_id, hosts, key, known, f"{subnet}.1")


def _host(name: str, lab_id: str, switch: str, address: str, directory: Path) -> LabHost:
    host = LabHost(name, f"{lab_id}-{name}", address, directory / name)
    host.directory.mkdir()
    _run("ip", "netns", "add", host.namespace)
    _run(
        "ip", "link", "add", "eth0", "netns", host.namespace,
        "type", "veth", "peer", "name", name, "netns", switch,
    )  # fmt: skip
    _in(switch, "ip", "link", "set", name, "master", "br0", "up")
    _in(host.namespace, "ip", "link", "set", "lo", "up")
    _in(host.namespace, "ip", "addr", "add", f"{address}/24", "dev", "eth0")
    _in(host.namespace, "ip", "link", "set", "eth0", "up")
    return host


_CONFIG = """\
ListenAddress {address}
Port 22
HostKey {directory}/host_key
AuthorizedKeysFile {authorized}
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100
MaxSessions 100
Subsystem sftp internal-sftp
"""


def _start_sshd(host: LabHost, authorized: Path, undo: contextlib.ExitStack) -> None:
    _keygen(host.directory / "host_key")
    config = host.directory / "sshd_config"
    config.write_text(
        _CONFIG.format(address=host.address, directory=host.directory, authorized=authorized)
    )
    sshd = _sshd()
    assert sshd is not None
    log = undo.enter_context((host.directory / "sshd.log").open("wb"))
    # `ip netns exec` becomes sshd, so the child is sshd itself.
    child = subprocess.Popen(
        host.command(sshd, "-D", "-e", "-f", str(config)),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    undo.callback(_reap, child)


def _reap(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(timeout=5)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait(timeout=5)


def _wait_for_sshd(host: LabHost) -> None:
    deadline = time.monotonic() + _STEP_S
    while True:
        try:
            with socket.create_connection((host.address, 22), timeout=1) as connection:
                if connection.recv(4) == b"SSH-":
                    return
        except OSError as error:
            if time.monotonic() > deadline:
                log = (host.directory / "sshd.log").read_text(errors="replace")
                raise LabError(f"sshd of {host.name} does not answer: {error}\n{log}") from error
        time.sleep(0.02)


def _take_down(lab_id: str) -> None:
    """End what lives in the lab's namespaces, then remove those; the links go with them."""
    names = [name for name in _namespaces() if name.startswith(lab_id)]
    for name in names:
        _end_all(name)
    if f" {_link(lab_id)}@" in _run("ip", "-o", "link", "show"):
        _run("ip", "link", "del", _link(lab_id))
    for name in names:
        _run("ip", "netns", "del", name)


def _end_all(namespace: str) -> None:
    deadline = time.monotonic() + 5
    while pids := _pids(namespace):
        last = time.monotonic() > deadline
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if last else signal.SIGTERM)
        if time.monotonic() > deadline + 5:
            raise LabError(f"processes {pids} in {namespace} do not end")
        time.sleep(0.02)


def _pids(namespace: str) -> list[int]:
    """Processes in a namespace, but for those that ended and wait for their parent."""
    pids = [int(word) for word in _run("ip", "netns", "pids", namespace).split()]
    return [pid for pid in pids if is_running(pid)]


def is_running(pid: int) -> bool:
    """False for a process that is gone, or that has ended and waits for its parent."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def _sweep() -> None:
    """Remove labs whose test run was killed: the number in a lab's name is its process."""
    labs = {name.rpartition("-")[0] for name in _namespaces() if name.startswith(_PREFIX)}
    for lab_id in labs:
        owner = lab_id.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            _take_down(lab_id)


def _make_run_sshd(undo: contextlib.ExitStack) -> None:
    """The folder that sshd insists on; packages make it when they start their own service."""
    if _RUN_SSHD.is_dir():
        return
    _RUN_SSHD.mkdir(mode=0o755)

    def remove() -> None:
        with contextlib.suppress(OSError):
            _RUN_SSHD.rmdir()

    undo.callback(remove)


def _free_subnet() -> str:
    taken = _run("ip", "-o", "-4", "addr", "show")
    start = os.getpid() % 250
    for step in range(250):
        subnet = f"10.77.{(start + step) % 250 + 1}"
        if f" {subnet}." not in taken:
            return subnet
    raise LabError("all of 10.77.0.0/16 is taken")


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line.strip()]


def _link(lab_id: str) -> str:
    """The machine's interface; at most 15 characters."""
    return f"pl{lab_id.removeprefix(_PREFIX)}"[:15]


def _sshd() -> str | None:
    # By its absolute path, as sshd wants it, and with the folder that users' paths leave out.
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _keygen(path: Path) -> None:
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "pdctl-lab", "-f", str(path))


def _known(host: LabHost) -> str:
    kind, key, *_ = (host.directory / "host_key.pub").read_text().split()
    return f"{host.address} {kind} {key}\n"


def _in(namespace: str, *argv: str) -> str:
    return _run("ip", "netns", "exec", namespace, *argv)


def _run(*argv: str) -> str:
    done: subprocess.CompletedProcess[str] = subprocess.run(
        argv, capture_output=True, text=True, timeout=_STEP_S, check=False
    )
    if done.returncode != 0:
        raise LabError(f"{_line(argv)}: {done.stderr.strip()}")
    return done.stdout


def _line(argv: Sequence[str]) -> str:
    return " ".join(argv)
