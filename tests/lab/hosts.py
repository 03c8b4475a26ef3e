"""Several hosts on one machine: namespaces with an address, files, processes and an sshd each.

    machine ── 10.77.N.1 ── veth ──┐
                                   ├── bridge, in a namespace of its own
    h1 ── eth0 10.77.N.11 ── veth ─┤
    h2 ── eth0 10.77.N.12 ── veth ─┘

The bridge is not in the machine's own namespace, so the machine's packet filter cannot get in the
way. A host has network, mount, pid, IPC and UTS namespaces: it sees the machine's programs, read
only, and has /etc, /home, /opt, /root, /run, /srv, /tmp, /var and its processes to itself. Its
first process (`init.py`) ends with it all, so ending a lab is ending those.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from pdctl.base.paths import cache_root

_PREFIX = "pdlab"
_INIT = Path(__file__).with_name("init.py")
_OWN = ("etc", "home", "opt", "root", "run", "srv", "tmp", "var")
"""Folders at the top that each host has to itself."""
_ETC = (
    "alternatives", "debian_version", "environment", "group", "host.conf", "hosts", "ld.so.cache",
    "ld.so.conf", "ld.so.conf.d", "localtime", "login.defs", "nsswitch.conf", "os-release",
    "passwd", "profile", "resolv.conf", "services", "ssl",
)  # fmt: skip
"""What a host gets of the machine's /etc: nothing that is secret."""
_STEP_S = 20.0
"""Limit of every command that sets a lab up or takes it down."""


_first: dict[str, subprocess.Popen[bytes]] = {}
"""What waits for a host's first process, by namespace."""


class LabError(RuntimeError):
    """A command of the lab failed; the text has its output."""


@dataclass(frozen=True)
class LabHost:
    """One host of a lab.

    Attributes:
        name: `h1`, also its host name.
        namespace: its network namespace.
        address: where its sshd listens, port 22, and other hosts reach it.
        directory: files of this host, there under the same name; `directory / "fs"` has its own
            folders, and outlives a `reboot`.
        plan: what its first process is told.
    """

    name: str
    namespace: str
    address: str
    directory: Path
    plan: Mapping[str, object]

    @property
    def pid(self) -> int:
        """Its first process, as the machine counts."""
        return int((self.directory / "pid").read_text())

    def path(self, there: str) -> Path:
        """Where the machine finds a file of the host's own folders."""
        return self.directory / "fs" / there.removeprefix("/")

    def command(self, *argv: str) -> list[str]:
        """The argv that runs `argv` inside the host."""
        spaces = ("--mount", "--net", "--pid", "--ipc", "--uts")
        return ["nsenter", "--target", str(self.pid), *spaces, "--", *argv]

    def run(self, *argv: str, timeout: float = _STEP_S) -> subprocess.CompletedProcess[str]:
        """Run inside the host, without ssh."""
        return subprocess.run(
            self.command(*argv), capture_output=True, text=True, timeout=timeout, check=False
        )

    def does(self, *argv: str) -> str:
        """Run inside the host what must succeed; gives its output."""
        return _run(*self.command(*argv))

    def pids(self, *words: str) -> list[int]:
        """Its processes whose command line or environment has all the words, as the machine
        counts."""
        return [pid for pid in _pids(self.namespace) if _says(pid, words)]

    def power_off(self) -> None:
        """End all its processes at once, as a power failure does."""
        os.kill(self.pid, signal.SIGKILL)
        _first.pop(self.namespace).wait(_STEP_S)

    def power_on(self) -> None:
        """Start it again; its files are as they were, but for those in memory."""
        for folder in ("run", "tmp"):
            _emptied(self.path(folder))
        _start(self)
        wait_for_sshd(self)


@dataclass(frozen=True)
class Lab:
    """A running lab.

    Attributes:
        hosts: in order, `h1` first.
        key_file: private key that every host lets in as root; hosts see it too.
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
    needed = {
        "ip": "iproute2", "iptables": "iptables", "ssh-keygen": "openssh-client",
        "nsenter": "util-linux",
    }  # fmt: skip
    for program, package in needed.items():
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
    own = ("unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--mount-proc", "true")
    tried = subprocess.run(own, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        return f"this machine does not allow mount and pid namespaces: {tried.stderr.strip()}"
    return None


@contextlib.contextmanager
def make_lab(
    count: int,
    directory: Path,
    *,
    subnet: str | None = None,
    shared: Mapping[str, str] | None = None,
) -> Iterator[Lab]:
    """A lab of `count` hosts with its files under `directory`; nothing is left afterwards.

    Args:
        subnet: such as `10.77.1`; by default one that is free.
        shared: folders of the machine by where the hosts see them, read-only. The programs of
            tests and of pdctl's cache are there anyway.
    """
    _sweep()
    lab_id = f"{_PREFIX}{os.getpid()}-{os.urandom(2).hex()}"
    with contextlib.ExitStack() as undo:
        undo.callback(_take_down, lab_id)
        yield _set_up(lab_id, count, directory, subnet or _free_subnet(), _visible(shared or {}))


def leftovers(lab_id: str) -> list[str]:
    """What is still there of a lab: namespaces, interfaces, processes."""
    found = [f"namespace {name}" for name in _namespaces() if name.startswith(lab_id)]
    links = _run("ip", "-o", "link", "show")
    found += [f"interface {_link(lab_id)}"] * (f" {_link(lab_id)}@" in links)
    for name in _namespaces():
        if name.startswith(lab_id):
            found += [f"process {pid} in {name}" for pid in _pids(name)]
    return found


def _set_up(
    lab_id: str, count: int, directory: Path, subnet: str, shared: Mapping[str, str]
) -> Lab:
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
    keys = directory / "keys"
    keys.mkdir()
    key, known = keys / "key", keys / "known_hosts"
    _keygen(key)
    shared = {**shared, str(keys): str(keys)}
    hosts = tuple(
        _host(f"h{number}", lab_id, switch, f"{subnet}.{10 + number}", directory, shared)
        for number in range(1, count + 1)
    )
    for host in hosts:
        shutil.copy(key.with_suffix(".pub"), host.directory / "authorized_keys")
        _keygen(host.directory / "host_key")
        _start(host)
    known.write_text("".join(_known(host) for host in hosts))
    for host in hosts:
        wait_for_sshd(host)
    return Lab(lab_id, hosts, key, known, f"{subnet}.1")


def _host(
    name: str, lab_id: str, switch: str, address: str, directory: Path, shared: Mapping[str, str]
) -> LabHost:
    plan = _plan(name, address, directory / name, shared)
    host = LabHost(name, f"{lab_id}-{name}", address, directory / name, plan)
    _fill(host)
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


def _visible(shared: Mapping[str, str]) -> Mapping[str, str]:
    """The machine's folders that hosts see, by where: what the tests run, and pdctl's cache."""
    root = Path(__file__).parents[2]
    always = [Path(sys.prefix), Path(sys.base_prefix), root, cache_root()]
    return {**{str(path): str(path) for path in always if path.is_dir()}, **shared}


def _plan(
    name: str, address: str, directory: Path, shared: Mapping[str, str]
) -> Mapping[str, object]:
    own = {f"/{folder}": str(directory / "fs" / folder) for folder in _OWN}
    sshd = _sshd()
    assert sshd is not None
    return {
        "name": name,
        "own": {**own, str(directory): str(directory)},
        "shared": dict(shared),
        "argv": [sshd, "-D", "-E", str(directory / "sshd.log"), "-f", str(directory / "sshd.conf")],
    }


def _fill(host: LabHost) -> None:
    """The host's own folders, as those of a small new machine."""
    for folder in ("home", "opt", "root", "run/sshd", "srv", "tmp", "var/lib", "var/log", "etc"):
        (host.directory / "fs" / folder).mkdir(parents=True)
    (host.path("var/tmp")).mkdir(mode=0o1777)
    host.path("tmp").chmod(0o1777)
    host.path("root").chmod(0o700)
    host.path("var/run").symlink_to("/run")
    for name in _ETC:
        source, target = Path("/etc") / name, host.path("etc") / name
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        elif source.exists():
            shutil.copy(source, target)
    (host.path("etc/shadow")).write_text("root:*:19000::::::\n")
    config = host.directory / "sshd.conf"
    config.write_text(_CONFIG.format(address=host.address, directory=host.directory))


def _emptied(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    if folder.name == "tmp":
        folder.chmod(0o1777)
    else:
        (folder / "sshd").mkdir()


def _start(host: LabHost) -> None:
    """Its first process, and with it its sshd."""
    argv = (
        "nsenter", f"--net=/run/netns/{host.namespace}", "unshare", "--mount", "--pid", "--ipc",
        "--uts", "--fork", "--kill-child", "--propagation", "private", "--",
        sys.executable, "-I", "-S", str(_INIT), json.dumps(host.plan),
    )  # fmt: skip
    with (host.directory / "init.log").open("ab") as log:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    deadline = time.monotonic() + _STEP_S
    while not (found := psutil.Process(child.pid).children()):
        if child.poll() is not None or time.monotonic() > deadline:
            text = (host.directory / "init.log").read_text(errors="replace")
            raise LabError(f"{host.name} does not start: {text}")
        time.sleep(0.01)
    (host.directory / "pid").write_text(str(found[0].pid))
    _first[host.namespace] = child


def _says(pid: int, words: Sequence[str]) -> bool:
    try:
        text = b"".join(Path(f"/proc/{pid}/{each}").read_bytes() for each in ("cmdline", "environ"))
    except OSError:
        return False
    return all(word.encode() in text for word in words)


_CONFIG = """\
ListenAddress {address}
Port 22
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/authorized_keys
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


def wait_for_sshd(host: LabHost) -> None:
    """Until the host lets in."""
    deadline = time.monotonic() + _STEP_S
    while True:
        try:
            with socket.create_connection((host.address, 22), timeout=1) as connection:
                if connection.recv(4) == b"SSH-":
                    return
        except OSError as error:
            if time.monotonic() > deadline:
                logs = [host.directory / name for name in ("init.log", "sshd.log")]
                said = "".join(each.read_text(errors="replace") for each in logs if each.exists())
                raise LabError(f"sshd of {host.name} does not answer: {error}\n{said}") from error
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
    """The first process of a host takes all others with it."""
    deadline = time.monotonic() + 10
    while pids := _pids(namespace):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise LabError(f"processes {pids} in {namespace} do not end")
        time.sleep(0.02)
    if namespace in _first:
        _first.pop(namespace).wait(_STEP_S)


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
