"""TCP ports of this machine: who holds one, and which is free."""

import errno
import random
import socket
import time
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

from pdctl.base.errors import PermissionDeniedError, UsageError
from pdctl.targets import procfs

UNKNOWN_HOLDER = "another process"
"""Said when the holder belongs to another user, or to another network namespace."""


_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 20000  # above what services are usually given
_TRIES = 64
_ENDING_LIMIT_S = 30.0
_POLL_S = 0.02


def find_holder(address: str, port: int) -> str | None:
    """Who listens there, such as `pid 12 (python)`; None when the port can be bound.

    A port that nobody seems to hold, while some process is ending, is looked at again until it has
    ended: a killed server looks dead before it lets go of its port.

    Raises:
        UsageError: when the address is not one of this machine.
        PermissionDeniedError: when this user may not bind the port at all.
    """
    until = time.monotonic() + _ENDING_LIMIT_S
    while (holder := _holder(address, port)) == UNKNOWN_HOLDER and time.monotonic() < until:
        if not any(stat.ends for stat in procfs.read_table().values()):
            # It may have ended between the two looks.
            return _holder(address, port)
        time.sleep(_POLL_S)
    return holder


def _holder(address: str, port: int) -> str | None:
    try:
        with _bound(address, port):
            return None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return _listener(address, port) or UNKNOWN_HOLDER
        if error.errno == errno.EACCES:
            raise PermissionDeniedError(
                f"port {port} cannot be bound by this user",
                where=f"{address}:{port}",
                hints=["choose a port of 1024 or above"],
            ) from error
        raise UsageError(
            f"`{address}` is not an address of this machine: {error.strerror}",
            where=f"{address}:{port}",
        ) from error


def find_free(address: str) -> int:
    """A port that is free now, and that no outgoing connection is given by the kernel.

    An engine binds its ports half a minute after they were chosen; from the ephemeral range, any
    connection may have taken one by then (seen: a decode server that answered /health without its
    side channel).

    Raises:
        UsageError: when the address is not one of this machine.
    """
    try:
        for port in random.sample(_lasting_ports(), _TRIES):
            with suppress(OSError), _bound(address, port):
                return port
        with _bound(address, 0) as listener:
            found: int = listener.getsockname()[1]
            return found
    except OSError as error:
        raise UsageError(
            f"`{address}` is not an address of this machine: {error.strerror}", where=address
        ) from error


def _lasting_ports() -> range:
    """Ports below those that the kernel gives to outgoing connections."""
    try:
        first = int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = 32768
    return range(_LOWEST, max(first, _LOWEST + _TRIES))


def _bound(address: str, port: int) -> socket.socket:
    family, kind, proto, _, name = socket.getaddrinfo(
        address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    found = socket.socket(family, kind, proto)
    try:
        # As servers do it: a closed connection's TIME_WAIT does not make the port taken.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(name)
        found.listen(1)
    except OSError:
        found.close()
        raise
    return found


def _listener(address: str, port: int) -> str | None:
    for held, inode in procfs.read_listeners(port):
        pid = procfs.find_socket(inode) if _meets(held, address) else None
        if pid is not None:
            stat = procfs.read_stat(pid)
            return f"pid {pid} ({stat.name if stat else 'ended'})"
    return None


def _meets(held: str, wanted: str) -> bool:
    if held == wanted:
        return True
    try:
        return ip_address(held).is_unspecified or ip_address(wanted).is_unspecified
    except ValueError:
        return True  # a host name; the port is taken, and this is who has it
