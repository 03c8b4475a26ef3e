"""Connections: sockets, host keys, logging in, through as many servers as it takes.

Every wait has a limit of ours: paramiko's own are an hour for a channel, none for an agent, and at
the limit of a handshake it returns as if all were well.
"""

import logging
import os
import queue
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pdctl.base.errors import PdctlError, PermissionDeniedError, UnreachableError
from pdctl.targets.ssh import certificate, known_hosts
from pdctl.targets.ssh.access import Hop, Route
from pdctl.targets.ssh.forward import Stream
from pdctl.targets.ssh.keys import Offers, agent_keys, offers_of

if TYPE_CHECKING:
    import paramiko

KEEPALIVE_S = 15.0
_DEAD_MS = 45_000
"""A peer that acknowledges nothing for so long is gone (TCP_USER_TIMEOUT)."""
_TICK_S = 2.0
_SEND_LIMIT_S = 60.0
_END_S = 2.0
_SAID = 8192
_PROHIBITED = 1
"""SSH_OPEN_ADMINISTRATIVELY_PROHIBITED"""


class Deadline:
    """The moment by which everything must be done."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._end = time.monotonic() + limit

    @property
    def left(self) -> float:
        """Seconds that are left; never zero, which some waits take for `for ever`."""
        return max(self._end - time.monotonic(), 0.001)

    @property
    def passed(self) -> bool:
        """True when there is nothing left."""
        return time.monotonic() >= self._end


# --- one server ----------------------------------------------------------------------------------


class Link:
    """A connection that is logged in; closing it ends the servers on the way too, if it made them.

    Attributes:
        transport: paramiko's.
        hop: where it leads.
    """

    def __init__(
        self, transport: "paramiko.Transport", hop: Hop, close_way: Callable[[], None]
    ) -> None:
        self.transport, self.hop = transport, hop
        self._close_way = close_way
        self.users = 0

    @property
    def alive(self) -> bool:
        """False once it was lost or closed."""
        return bool(self.transport.is_active())

    def execute(self, line: str, limit: float) -> "ChannelPipe":
        """Run a command line in the login shell.

        Raises:
            UnreachableError: the connection is lost, or the server gives no channel.
        """
        import paramiko

        try:
            channel = self.transport.open_session(timeout=limit)
            channel.settimeout(limit)
            channel.exec_command(line)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise UnreachableError(
                f"the server opens no session: {_words(error)}",
                where=self.hop.where,
                hints=["`MaxSessions` of the server, or a full disk or process table, may be why"],
            ) from error
        return ChannelPipe(channel)

    def connect_to(self, address: str, port: int, limit: float) -> Stream:
        """Connect from the host to a server.

        Raises:
            PermissionDeniedError: the host's SSH server allows no forwarding.
            UnreachableError: nobody listens there, or the connection is lost.
        """
        import paramiko

        try:
            channel = self.transport.open_channel(
                "direct-tcpip", (address, port), ("127.0.0.1", 0), timeout=limit
            )
        except paramiko.ChannelException as error:
            kind = PermissionDeniedError if error.code == _PROHIBITED else UnreachableError
            raise kind(
                f"the host does not connect to {address}:{port}: {_words(error)}",
                where=self.hop.where,
            ) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise UnreachableError(
                f"the connection was lost: {_words(error)}", where=self.hop.where
            ) from error
        return cast("Stream", channel)

    def close(self) -> None:
        """Give everything back."""
        self.transport.close()
        self.transport.join(_END_S)
        self._close_way()


class ChannelPipe:
    """A command on the host as a pipe (`near.Pipe`)."""

    def __init__(self, channel: "paramiko.Channel") -> None:
        self._channel = channel
        self._said = b""
        channel.settimeout(_TICK_S)

    def receive(self, size: int) -> bytes:
        """What came; empty at the end. Raises TimeoutError after two seconds without any."""
        try:
            return self._channel.recv(size)
        finally:
            while self._channel.recv_stderr_ready():  # unread, it would fill the window
                self._said = (self._said + self._channel.recv_stderr(_SAID))[-_SAID:]

    def send(self, content: bytes) -> None:
        """Send all. Raises TimeoutError when the host takes nothing for a minute, or OSError."""
        left, since = memoryview(content), time.monotonic()
        while left:
            try:
                sent = self._channel.send(bytes(left[:32768]))
            except TimeoutError:
                if time.monotonic() - since > _SEND_LIMIT_S:
                    raise
                continue
            if sent == 0:
                raise OSError("the other side closed it")
            left, since = left[sent:], time.monotonic()

    def last_words(self) -> tuple[int | None, str]:
        """Exit status, None when the connection broke, and what it complained."""
        ended = self._channel.status_event.wait(_END_S)
        status = self._channel.exit_status if ended else -1
        with suppress(Exception):
            while self._channel.recv_stderr_ready():
                self._said = (self._said + self._channel.recv_stderr(_SAID))[-_SAID:]
        return (status if status >= 0 else None), self._said.decode(errors="replace")

    def close(self) -> None:
        """End the command, by ending what it reads."""
        with suppress(Exception):
            self._channel.close()


class Links:
    """Jump hosts that several connections go through: logged in to once, closed with the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[tuple[Hop, ...], threading.Lock] = {}
        self._shared: dict[tuple[Hop, ...], Link] = {}

    def open(self, route: Route) -> Link:
        """Connect to the host of a route.

        Raises:
            UnreachableError: it or a server on the way does not answer within the route's limit.
            PermissionDeniedError: no key is accepted, or a host key is not the known one.
        """
        _quiet()
        return self._open(route.hops, route, Deadline(route.limit))

    def _open(self, hops: Sequence[Hop], route: Route, deadline: Deadline) -> Link:
        if len(hops) == 1:
            wire, close_way = _first_wire(hops[0], deadline)
        else:
            way = self._borrow(tuple(hops[:-1]), route, deadline)
            wire, close_way = _through(way, hops[-1], deadline, lambda: self._give_back(way))
        return _log_in(wire, hops[-1], route, deadline, close_way)

    def _borrow(self, hops: tuple[Hop, ...], route: Route, deadline: Deadline) -> Link:
        with self._lock:
            lock = self._locks.setdefault(hops, threading.Lock())
        if not lock.acquire(timeout=deadline.left):
            raise _too_late("it", hops[-1], deadline)
        try:
            link = self._shared.get(hops)
            if link is None or not link.alive:
                link = self._open(hops, route, deadline)
                self._shared[hops] = link
            with self._lock:
                link.users += 1
            return link
        finally:
            lock.release()

    def _give_back(self, link: Link) -> None:
        with self._lock:
            link.users -= 1
            if link.users > 0:
                return
            for hops in [key for key, each in self._shared.items() if each is link]:
                del self._shared[hops]
        link.close()


# --- getting there -------------------------------------------------------------------------------


@dataclass
class _Wire:
    """What a connection goes over."""

    socket: "socket.socket | paramiko.Channel"


def _first_wire(hop: Hop, deadline: Deadline) -> tuple[_Wire, Callable[[], None]]:
    if hop.proxy is not None:
        return _proxy(hop)
    try:
        wire = _dial(hop, deadline)
    except socket.gaierror as error:
        raise UnreachableError(
            f"the name `{hop.host}` is not known: {error.strerror}", where=hop.where
        ) from error
    except TimeoutError as error:
        raise _too_late(f"port {hop.port}", hop, deadline) from error
    except OSError as error:
        raise UnreachableError(
            f"port {hop.port} cannot be connected to: {error.strerror or error}",
            where=hop.where,
            hints=[f"see whether sshd runs there: `ssh{_options(hop)} {_target(hop)} true`"],
        ) from error
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_MS)
    return _Wire(wire), wire.close


def _dial(hop: Hop, deadline: Deadline) -> socket.socket:
    """Connect to the first address that answers. The limit holds for all of them together."""
    failure: OSError | None = None
    for family, kind, protocol, _, address in _resolve(hop, deadline):
        wire = socket.socket(family, kind, protocol)
        wire.settimeout(deadline.left)
        try:
            wire.connect(address)
        except OSError as error:
            wire.close()
            failure = error
        else:
            return wire
    raise failure or OSError("the name has no address")


_Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]


def _resolve(hop: Hop, deadline: Deadline) -> list[_Address]:
    """Ask for the addresses in a thread of its own: the system's call knows no limit."""
    answer: queue.SimpleQueue[list[_Address] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answer.put(list(socket.getaddrinfo(hop.host, hop.port, type=socket.SOCK_STREAM)))
        except OSError as error:
            answer.put(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        found = answer.get(timeout=deadline.left)
    except queue.Empty:
        raise UnreachableError(
            f"the name `{hop.host}` could not be looked up within {deadline.limit:g} s",
            where=hop.where,
        ) from None
    if isinstance(found, OSError):
        raise found
    return found


def _proxy(hop: Hop) -> tuple[_Wire, Callable[[], None]]:
    """A proxy command on one end of a pair of sockets, which has limits; pipes have none."""
    ours, its = socket.socketpair()
    with its:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {hop.proxy_line()}"],
            stdin=its.fileno(),
            stdout=its.fileno(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close() -> None:
        ours.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
                return

    return _Wire(ours), close


def _through(
    way: Link, hop: Hop, deadline: Deadline, give_back: Callable[[], None]
) -> tuple[_Wire, Callable[[], None]]:
    import paramiko

    try:
        channel = way.transport.open_channel(
            "direct-tcpip", (hop.host, hop.port), ("127.0.0.1", 0), timeout=deadline.left
        )
    except (paramiko.SSHException, OSError, EOFError) as error:
        give_back()
        if deadline.passed:
            raise _too_late(f"port {hop.port}", hop, deadline, via=way.hop) from error
        raise UnreachableError(
            f"the jump host cannot connect to {hop.host}:{hop.port}: {_words(error)}",
            where=f"{hop.where} by way of {way.hop.where}",
        ) from error
    except BaseException:
        give_back()
        raise

    def close() -> None:
        channel.close()
        give_back()

    return _Wire(channel), close


# --- logging in ----------------------------------------------------------------------------------


def _log_in(
    wire: _Wire, hop: Hop, route: Route, deadline: Deadline, close_way: Callable[[], None]
) -> Link:
    import paramiko

    entries = _entries(hop, route)
    transport: paramiko.Transport | None = None
    try:
        transport = paramiko.Transport(wire.socket)
        types = known_hosts.known_types(entries, hop.checked_name, hop.port)
        if known_hosts.authorities(entries, hop.checked_name, hop.port):
            types = [*certificate.OFFERED, *types]
        _prefer(transport, types)
        _shake_hands(transport, hop, deadline)
        _check_host_key(transport, hop, route, entries)
        _authenticate(transport, hop, deadline)
        transport.set_keepalive(int(KEEPALIVE_S))
        return Link(transport, hop, close_way)
    except BaseException:
        if transport is not None:
            transport.close()
            transport.join(_END_S)
        close_way()
        raise


def _prefer(transport: "paramiko.Transport", types: Sequence[str]) -> None:
    """Ask for a key of a type that is known, or a host that has several looks like another."""
    signatures = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}
    known = [name for each in types for name in signatures.get(each, (each,))]
    options = transport.get_security_options()
    all_types = list(options.key_types)
    can = (*all_types, *certificate.OFFERED)
    first = [name for name in known if name in can]
    options.key_types = (*first, *(name for name in all_types if name not in first))


def _shake_hands(transport: "paramiko.Transport", hop: Hop, deadline: Deadline) -> None:
    # Ours comes first, so that what is told is which part was late.
    transport.banner_timeout = transport.handshake_timeout = deadline.left + _END_S
    done = threading.Event()
    transport.start_client(event=done)
    finished = done.wait(deadline.left)
    if not finished and not transport.remote_version:
        raise UnreachableError(
            f"it accepts connections, and no SSH server answered within {deadline.limit:g} s",
            where=hop.where,
            hints=["see whether the port is right, and whether the host is overloaded"],
        )
    if not finished:
        raise _too_late("the SSH server", hop, deadline)
    if not transport.is_active():
        error = transport.get_exception()
        raise UnreachableError(
            f"no SSH connection came to be: {_words(error)}",
            where=hop.where,
            hints=[f"see what OpenSSH says: `ssh -v{_options(hop)} {_target(hop)} true`"],
        ) from error


def _entries(hop: Hop, route: Route) -> list[known_hosts.Entry]:
    files = [*hop.known_hosts, *([route.pinned] if route.pinned else [])]
    found: list[known_hosts.Entry] = []
    for file in dict.fromkeys(files):
        try:
            found += known_hosts.parse(str(file), file.read_text(errors="replace"))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise PermissionDeniedError(
                f"the known host keys cannot be read: {error.strerror}", where=str(file)
            ) from error
    return found


def _check_host_key(
    transport: "paramiko.Transport", hop: Hop, route: Route, entries: list[known_hosts.Entry]
) -> None:
    shown = transport.get_remote_server_key()
    kind, key = shown.get_name(), shown.get_base64()
    verdict = known_hosts.judge(entries, hop.checked_name, hop.port, kind, key)
    if verdict.meaning == "known":
        return
    certified, but = _is_certified(shown, hop, entries)
    if certified and verdict.meaning != "revoked":
        return
    if verdict.meaning == "unknown":
        if not route.pin or route.pinned is None:
            raise unknown_key(hop, kind, key, but)
        _pin(route.pinned, f"{known_hosts.name_of(hop.checked_name, hop.port)} {kind} {key}\n")
        return
    raise refused_key(hop, kind, key, verdict)


def _is_certified(
    shown: "paramiko.PKey", hop: Hop, entries: list[known_hosts.Entry]
) -> tuple[bool, str]:
    """Whether an authority vouches for the key, and why not, where a certificate was shown."""
    blob = getattr(shown.public_blob, "key_blob", None)
    if blob is None:
        return False, ""
    name, port = hop.checked_name, hop.port
    try:
        why = certificate.why_not(
            certificate.parse(blob),
            name,
            known_hosts.authorities(entries, name, port),
            known_hosts.revoked(entries, name, port),
            _made_by,
        )
    except certificate.BrokenCertificateError as error:
        why = str(error)
    return not why, why


def _made_by(key: bytes, content: bytes, signature: bytes) -> bool:
    import paramiko

    kind = paramiko.Message(key).get_text()
    try:
        authority = paramiko.PKey.from_type_string(kind, key)
        return bool(authority.verify_ssh_sig(content, paramiko.Message(signature)))
    except Exception:  # whatever is wrong with it, it proves nothing
        return False


_PINNING = threading.Lock()


def _pin(file: Path, line: str) -> None:
    with _PINNING:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)


def unknown_key(hop: Hop, kind: str, key: str, but: str = "") -> PermissionDeniedError:
    """What is said of a host that nobody has seen yet.

    Args:
        but: why the certificate that it showed is not good.
    """
    file = hop.known_hosts[0] if hop.known_hosts else Path("~/.ssh/known_hosts")
    port = "" if hop.port == known_hosts.DEFAULT_PORT else f" -p {hop.port}"
    hints = ["compare the fingerprint with what the host's console or its owner says, then:"]
    if hop.known_as is None and hop.proxy is None:
        hints.append(f"`ssh-keyscan{port} {shlex.quote(hop.host)} >> {shlex.quote(str(file))}`")
    hints += [
        f"or log in once and answer the question: `ssh{_options(hop)} {_target(hop)} true`",
        "or set `target.access.host_keys: pin-first-use`, and the first key is kept",
    ]
    return PermissionDeniedError(
        f"the host's key is not known: {kind} {known_hosts.fingerprint(key)}",
        where=hop.where,
        expected=f"a line for `{known_hosts.name_of(hop.checked_name, hop.port)}` in {file}",
        detail=[f"it shows a certificate: {but}"] if but else [],
        hints=hints,
    )


def refused_key(
    hop: Hop, kind: str, key: str, verdict: known_hosts.Verdict
) -> PermissionDeniedError:
    """What is said of a host whose key is another one now, or was revoked."""
    lines = [
        f"{each.where}: {each.key_type} {known_hosts.fingerprint(each.key)}"
        for each in verdict.entries
    ]
    if verdict.meaning == "revoked":
        return PermissionDeniedError(
            f"the host shows a key that was revoked: {kind} {known_hosts.fingerprint(key)}",
            where=hop.where,
            detail=lines,
        )
    name = shlex.quote(known_hosts.name_of(hop.checked_name, hop.port))
    files = dict.fromkeys(each.file for each in verdict.entries)
    return PermissionDeniedError(
        "the host's key CHANGED: somebody may be in between, or the host was installed anew; it "
        f"shows {kind} {known_hosts.fingerprint(key)}",
        where=hop.where,
        expected=f"the key of {verdict.entries[0].where}",
        detail=lines,
        hints=[
            "only when you know why it changed, forget the old key:",
            *(f"`ssh-keygen -R {name} -f {shlex.quote(file)}`" for file in files),
        ],
    )


def _authenticate(transport: "paramiko.Transport", hop: Hop, deadline: Deadline) -> None:
    import paramiko

    with agent_keys(hop.agent, deadline.left) as agent:
        offers = offers_of(hop, agent)
        tried: list[str] = []
        for offer in offers.keys:
            transport.auth_timeout = deadline.left
            tried.append(offer.name)
            try:
                further = transport.auth_publickey(hop.user, offer.key)
            except paramiko.BadAuthenticationType as error:
                raise _wants_other(hop, error.allowed_types) from error
            except (paramiko.SSHException, OSError, EOFError) as error:
                if deadline.passed:
                    raise _too_late("logging in", hop, deadline) from error
                if not transport.is_active():
                    raise _dropped(hop, tried, error) from error
                continue
            if further:
                raise _wants_other(hop, further)
            return
    raise _no_key(hop, tried, offers)


def _no_key(hop: Hop, tried: Sequence[str], offers: Offers) -> PermissionDeniedError:
    hints = [f"`ssh-add {shlex.quote(str(file))}` gives it to the agent" for file in offers.locked]
    hints.append(f"see what OpenSSH does: `ssh -v{_options(hop)} {_target(hop)} true`")
    if not tried and not offers.locked:
        hints.insert(0, "name the private key in `target.access.key_file`, or `ssh-add` it")
    return PermissionDeniedError(
        f"the server accepts no key for user `{hop.user}`"
        if tried
        else f"there is no key to log in as `{hop.user}` with",
        where=hop.where,
        detail=[*(f"refused: {name}" for name in tried), *offers.passed_over],
        hints=hints,
    )


def _dropped(hop: Hop, tried: Sequence[str], error: BaseException) -> PermissionDeniedError:
    return PermissionDeniedError(
        f"the server ended the connection after {len(tried)} keys: {_words(error)}",
        where=hop.where,
        detail=[f"refused: {name}" for name in tried],
        hints=["servers count every key: name the right one in `target.access.key_file`"],
    )


def _wants_other(hop: Hop, allowed: Sequence[str]) -> PermissionDeniedError:
    return PermissionDeniedError(
        f"the server wants more than a key: {', '.join(allowed)}",
        where=hop.where,
        expected="logging in with a key alone",
    )


# --- words ---------------------------------------------------------------------------------------


def _too_late(what: str, hop: Hop, deadline: Deadline, via: Hop | None = None) -> UnreachableError:
    way = f" by way of {via.where}" if via else ""
    return UnreachableError(
        f"{what} did not answer within {deadline.limit:g} s",
        where=hop.where + way,
        hints=[
            "see whether the host is up, and whether a firewall or security group is in between",
            "`target.access.connect_timeout` is the limit",
        ],
    )


def _target(hop: Hop) -> str:
    return shlex.quote(f"{hop.user}@{hop.asked}")


def _options(hop: Hop) -> str:
    port = "" if hop.port == known_hosts.DEFAULT_PORT else f" -p {hop.port}"
    return f"{port} -i {shlex.quote(str(hop.first_key))}" if hop.first_key else port


def _words(error: BaseException | None) -> str:
    if error is None or isinstance(error, EOFError):
        return "the server closed the connection"
    return " ".join(str(error).split()) or type(error).__name__


def _quiet() -> None:
    """Without a handler, paramiko's thread prints its traces to the screen."""
    logger = logging.getLogger("paramiko")
    if not any(isinstance(each, logging.NullHandler) for each in logger.handlers):
        logger.addHandler(logging.NullHandler())


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Whatever else paramiko raises is a connection that failed."""
    import paramiko

    try:
        yield
    except PdctlError:
        raise
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise UnreachableError(f"the connection failed: {_words(error)}", where=where) from error
