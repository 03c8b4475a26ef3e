"""A machine over SSH as a host: connects when first asked, and again after it was lost."""

import hashlib
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Any

from pdctl.base.command import Command
from pdctl.base.errors import PdctlError, TemporaryError, UnreachableError
from pdctl.base.process import Kept, ProcessRef, ProcessSpec, RunningProcess
from pdctl.targets.base import OutputSink, Result
from pdctl.targets.local import KILL_LIMIT_S, limit_passed
from pdctl.targets.piped import Collected
from pdctl.targets.ssh import bundle
from pdctl.targets.ssh.access import Login, OpenSsh, Route, route_of
from pdctl.targets.ssh.connect import Link, Links, explained
from pdctl.targets.ssh.far import wire_of
from pdctl.targets.ssh.forward import Forward, Stream
from pdctl.targets.ssh.near import ANSWER_S, Near

_GRACE_S = 20.0  # beyond a limit that the host itself keeps
_REMEMBERED_S = 5.0
"""So long a host that could not be reached is not tried again: a command asks it many things."""
_SLOWEST = 1e6  # bytes a second, for limits of transfers
_CONNECTING = 64


class SshHost:
    """Implements `targets.base.Host`. Safe to use from several threads at once."""

    def __init__(
        self,
        name: str,
        login: Login,
        *,
        links: Links | None = None,
        ssh: OpenSsh | None = None,
        sudo: bool = False,
    ) -> None:
        """Nothing is connected to yet.

        Args:
            name: how messages name the machine.
            login: how to get there.
            links: shared by hosts, so that a jump host is logged in to once.
            ssh: OpenSSH's configuration.
            sudo: do everything as root, by `sudo -n`.
        """
        self._name, self._login = name, login
        self._ssh, self._links = ssh or OpenSsh(), links or Links()
        self._sudo = sudo
        self._lock = threading.Lock()
        self._route: Route | None = None
        self._link: Link | None = None
        self._near: Near | None = None
        self._failure: tuple[float, PdctlError] | None = None
        self._forwarding = threading.Lock()
        self._forwards: dict[tuple[str, int], Forward] = {}

    @property
    def name(self) -> str:
        """How messages name the machine."""
        return self._name

    def as_root(self) -> "SshHost":
        """The same machine, everything done by root. Has to be closed by itself."""
        return SshHost(self._name, self._login, links=self._links, ssh=self._ssh, sudo=True)

    def connect(self) -> None:
        """Connect now, if not connected.

        Raises:
            UnreachableError: it does not answer.
            PermissionDeniedError: it refuses, or its key is not the known one.
        """
        self._connected()

    def run(
        self,
        command: Command,
        *,
        timeout: float,
        on_line: OutputSink | None = None,
        stdin: bytes | None = None,
    ) -> Result:
        """Run to the end. Whatever ends the wait early also ends all that the command started.

        Raises:
            NotFoundError: there is no such program.
            TemporaryError: the limit passed.
            UnreachableError: the connection was lost, and the command ended with it.
        """
        began = time.monotonic()
        out, err = Collected(on_line), Collected(on_line)
        answer = self._call(
            "run",
            limit=timeout + KILL_LIMIT_S + _GRACE_S,
            content=stdin,
            out=out.feed,
            err=err.feed,
            command=wire_of(command),
            timeout=timeout,
            stdin=stdin is not None,
        )
        if answer["status"] is None:
            lines = [line for each in (out, err) for line in each.text.splitlines()]
            raise limit_passed(command, timeout, self._name, lines)
        for each in (out, err):
            each.finish()
        return Result(answer["status"], out.text, err.text, time.monotonic() - began)

    def write_file(self, path: PurePosixPath, content: bytes, *, mode: int = 0o644) -> None:
        """Replace a file atomically, creating its directories; what arrived is compared first.

        Raises:
            PermissionDeniedError, TemporaryError: not allowed; no space left.
        """
        digest = hashlib.sha256(content).hexdigest()
        limit = ANSWER_S + len(content) / _SLOWEST
        self._call("write", limit=limit, content=content, path=str(path), mode=mode, digest=digest)

    def read_file(self, path: PurePosixPath, *, limit: int | None = None) -> bytes | None:
        """A file's bytes, the last `limit` of them if given; None when there is no such file."""
        chunks: list[bytes] = []
        digest = self._call("read", out=chunks.append, path=str(path), limit_bytes=limit)
        if digest is None:
            return None
        content = b"".join(chunks)
        if hashlib.sha256(content).hexdigest() != digest:
            raise TemporaryError(f"`{path}` arrived damaged", where=self._name)
        return content

    def exists(self, path: PurePosixPath) -> bool:
        """True for a file or directory."""
        return bool(self._call("exists", path=str(path)))

    def remove_tree(self, path: PurePosixPath) -> None:
        """Remove a file or directory; a link is removed, not what it leads to."""
        self._call("remove", limit=10 * ANSWER_S, path=str(path))

    def free_bytes(self, path: PurePosixPath) -> int:
        """Free space of the file system that holds `path` or its nearest existing parent."""
        return int(self._call("free", path=str(path)))

    def start(self, spec: ProcessSpec, log: PurePosixPath) -> ProcessRef:
        """Start in a session of its own, output appended to `log`, and return at once.

        It outlives the connection.

        Raises:
            NotFoundError: there is no such program or working directory.
        """
        answer = self._call("launch", command=wire_of(spec.command), log=str(log))
        return ProcessRef(**answer)

    def alive(self, ref: ProcessRef) -> bool:
        """True only for that very process, not for another that got its pid."""
        return bool(self._call("alive", ref=asdict(ref)))

    def kept(self, ref: ProcessRef) -> Kept | None:
        """What it is now, started again or not; None when it and what kept it running are gone."""
        answer = self._call("kept", ref=asdict(ref))
        if answer is None:
            return None
        its = answer.pop("ref")
        return Kept(None if its is None else ProcessRef(**its), **answer)

    def stop(self, ref: ProcessRef, *, timeout: float) -> bool:
        """SIGTERM to everything that belongs to the process, SIGKILL at the limit."""
        limit = timeout + KILL_LIMIT_S + _GRACE_S
        return bool(self._call("stop", limit=limit, ref=asdict(ref), timeout=timeout))

    def find(self, mark: str) -> list[RunningProcess]:
        """The user's processes whose `PDCTL_PROCESS` is `mark` or, for `dir/`, begins with it."""
        return [
            RunningProcess(ProcessRef(**each["ref"]), tuple(each["argv"]))
            for each in self._call("find", mark=mark)
        ]

    def port_holder(self, address: str, port: int) -> str | None:
        """Who listens on the port (`pid 12 (python)` or `another process`), None when free."""
        holder = self._call("port_holder", address=address, port=port)
        return None if holder is None else str(holder)

    def choose_port(self, address: str) -> int:
        """A port that is free now."""
        return int(self._call("choose_port", address=address))

    def inherited_env(self) -> Mapping[str, str]:
        """The variables a started process gets besides those its command names."""
        return dict(self._call("inherited_env"))

    def claim(self, name: str, who: str) -> str | None:
        """Claim a name on the host, for as long as the connection lasts.

        Args:
            who: told to others who ask for it.

        Returns:
            None when it is ours now, else what its holder says of itself.
        """
        holder = self._call("claim", claimed=name, who=who)
        return None if holder is None else str(holder)

    def forward(self, address: str, port: int) -> int:
        """A port of this machine's loopback that leads to a server which the host can reach.

        It is there until `close`, through connections that are lost and made again.

        Raises:
            PermissionDeniedError: the host's SSH server allows no forwarding.
            UnreachableError: the host cannot be reached. That nobody listens on the port yet is no
                error here, but whoever connects is turned away.
        """
        with self._forwarding:
            found = self._forwards.get((address, port))
            if found is None:
                with suppress(UnreachableError):
                    self._way_to(address, port).close()  # whether it is allowed at all
                self._connected()
                found = Forward(lambda: self._way_to(address, port))
                self._forwards[address, port] = found
            return found.port

    def _way_to(self, address: str, port: int) -> Stream:
        self._connected()
        link, route = self._link, self._route
        if link is None or route is None:
            raise UnreachableError("the connection was closed", where=self._name)
        return link.connect_to(address, port, route.limit)

    def close(self) -> None:
        """Give the connection back; commands that are waited for end, started processes stay."""
        with self._forwarding:
            for forward in self._forwards.values():
                forward.close()
            self._forwards.clear()
        with self._lock:
            self._drop()

    # --- the connection -----------------------------------------------------------------

    def _call(self, what: str, **options: Any) -> Any:
        return self._connected().call(what, **options)

    def _connected(self) -> Near:
        with self._lock:
            if self._near is not None and not self._near.lost:
                return self._near
            self._drop()
            if self._failure is not None:
                when, failure = self._failure
                if time.monotonic() - when < _REMEMBERED_S:
                    raise failure
            try:
                self._near = self._connect()
            except PdctlError as failure:
                self._drop()
                self._failure = (time.monotonic(), failure)
                raise
            except BaseException:
                self._drop()
                raise
            self._failure = None
            return self._near

    def _connect(self) -> Near:
        with explained(self._name):
            if self._route is None:
                self._route = route_of(self._login, self._ssh)
            self._link = self._links.open(self._route)
            line = bundle.command_line("sudo -n" if self._sudo else "")
            pipe = self._link.execute(line, self._route.limit)
            return Near(pipe, self._name, limit=self._route.limit)

    def _drop(self) -> None:
        if self._near is not None:
            self._near.close()
        if self._link is not None:
            self._link.close()
        self._near = self._link = None


def connect_all(hosts: Sequence[SshHost]) -> dict[str, PdctlError]:
    """Connect to all at the same time; the errors of those that cannot be reached, by name."""

    def connect(host: SshHost) -> PdctlError | None:
        try:
            host.connect()
        except PdctlError as error:
            return error
        return None

    if not hosts:
        return {}
    with ThreadPoolExecutor(min(len(hosts), _CONNECTING)) as pool:
        errors = list(pool.map(connect, hosts))
    return {host.name: error for host, error in zip(hosts, errors, strict=True) if error}
