"""A real sshd for tests: a free port of loopback, its own configuration, keys made on the fly."""

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pdctl.targets import procfs
from pdctl.targets.ssh.access import Login, OpenSsh
from pdctl.targets.ssh.host import SshHost

_LIMIT_S = 20.0
_RUN_SSHD = Path("/run/sshd")

_CONFIG = """\
ListenAddress {address}
Port {port}
HostKey {host_key}
AuthorizedKeysFile {authorized}
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100
{more}
"""


def why_not() -> str | None:
    """Why no sshd can be started here; None when it can."""
    for program, package in (("sshd", "openssh-server"), ("ssh-keygen", "openssh-client")):
        if _which(program) is None:
            return f"`{program}` is not installed (package {package})"
    return None


def _which(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@dataclass
class Sshd:
    """A running server and what a client needs for it.

    Attributes:
        key: private key that it lets in.
        known_hosts: file with its host key.
    """

    directory: Path
    port: int
    key: Path
    known_hosts: Path
    process: "subprocess.Popen[bytes]" = field(repr=False)
    address: str = "127.0.0.1"

    @property
    def host_key(self) -> str:
        """`ssh-ed25519 AAAA…`."""
        return " ".join((self.directory / "host_key.pub").read_text().split()[:2])

    def login(self, **changes: object) -> Login:
        """How to log in, with nothing of the user's own."""
        return Login(
            **{
                "address": self.address,
                "port": self.port,
                "key_file": self.key,
                "connect_timeout": 10.0,
                "pinned": self.known_hosts,
                **changes,
            }  # type: ignore[arg-type]
        )

    def host(self, name: str = "h1", **changes: object) -> SshHost:
        """The machine behind it."""
        return SshHost(name, self.login(**changes), ssh=nobodys_ssh(self.directory))

    def sessions(self) -> set[int]:
        """Pids of the processes that serve connections, and of all below them."""
        table = procfs.read_table()
        return {
            pid
            for pid in table
            if pid != self.process.pid and self.process.pid in procfs.ancestors(pid, table)
        }

    def stop(self, *, sessions: bool = True) -> None:
        """End it; with `sessions` at once and with all connections."""
        serving = {pid for pid in self.sessions() if _name(pid).startswith("sshd")}
        for pid in (self.process.pid, *(serving if sessions else ())):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(_LIMIT_S)


def _name(pid: int) -> str:
    stat = procfs.read_stat(pid)
    return stat.name if stat else ""


def with_path(path: str) -> str:
    """Configuration by which commands find their programs there, whatever login scripts do."""
    return f'ForceCommand env PATH={path} /bin/sh -c "$SSH_ORIGINAL_COMMAND"'


def nobodys_ssh(home: Path, text: str | None = None) -> OpenSsh:
    """OpenSSH's configuration of a user who has none, or this one."""
    if text is not None:
        (home / ".ssh").mkdir(exist_ok=True)
        (home / ".ssh" / "config").write_text(text)
    return OpenSsh(environ={"HOME": str(home)})


def keygen(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    """Make a key."""
    bits = ["-b", "2048"] if kind == "rsa" else []
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, *bits, "-N", passphrase, "-C", path.name, "-f", str(path)],
        check=True,
        timeout=_LIMIT_S,
    )
    return path


@contextlib.contextmanager
def running_sshd(
    directory: Path, *, more: str = "", host_key: Path | None = None, port: int = 0
) -> Iterator[Sshd]:
    """Start one; it is gone, with its connections, afterwards."""
    directory.mkdir(parents=True, exist_ok=True)
    key = directory / "key"
    if not key.exists():
        keygen(key)
        keygen(directory / "host_key")
    port = port or _free_port()
    config = directory / "sshd_config"
    config.write_text(
        _CONFIG.format(
            address="127.0.0.1",
            port=port,
            host_key=host_key or directory / "host_key",
            authorized=directory / "key.pub",
            more=more,
        )
    )
    program = _which("sshd")
    assert program is not None
    with _run_sshd(), (directory / "sshd.log").open("ab") as log:
        process = subprocess.Popen(
            [program, "-D", "-e", "-f", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        known = directory / "known_hosts"
        server = Sshd(directory, port, key, known, process)
        known.write_text(f"[127.0.0.1]:{port} {server.host_key}\n")
        try:
            _wait_for(server)
            yield server
        finally:
            server.stop()


def _wait_for(server: Sshd) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while True:
        try:
            with socket.create_connection((server.address, server.port), timeout=1) as connection:
                if connection.recv(4) == b"SSH-":
                    return
        except OSError:
            pass
        log = (server.directory / "sshd.log").read_text(errors="replace")
        assert time.monotonic() < deadline, f"sshd does not answer: {log}"
        assert server.process.poll() is None, log
        time.sleep(0.02)


@contextlib.contextmanager
def _run_sshd() -> Iterator[None]:
    """The folder that sshd insists on when root runs it."""
    made = False
    if os.geteuid() == 0 and not _RUN_SSHD.is_dir():
        with contextlib.suppress(FileExistsError):
            _RUN_SSHD.mkdir(mode=0o755)
            made = True
    try:
        yield
    finally:
        if made:
            with contextlib.suppress(OSError):
                _RUN_SSHD.rmdir()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def user() -> str:
    """Who runs the tests, and is logged in as."""
    return getpass.getuser()
