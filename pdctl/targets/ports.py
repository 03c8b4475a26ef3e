"""TCP ports of this machine: who holds one, and which is free."""

import errno
import socket
from ipaddress import ip_address

import psutil

from pdctl.base.errors import PermissionDeniedError, UsageError

UNKNOWN_HOLDER = "another process"
"""Said when the holder belongs to another user, or to another network namespace."""


def find_holder(address: str, port: int) -> str | None:
    """Who listens there, such as `pid 12 (python)`; None when the port can be bound.

    Raises:
        UsageError: when the address is not one of this machine.
        PermissionDeniedError: when this user may not bind the port at all.
    """
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
    """A port that is free now.

    Raises:
        UsageError: when the address is not one of this machine.
    """
    try:
        with _bound(address, 0) as listener:
            port: int = listener.getsockname()[1]
            return port
    except OSError as error:
        raise UsageError(
            f"`{address}` is not an address of this machine: {error.strerror}", where=address
        ) from error


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
    for connection in psutil.net_connections(kind="tcp"):
        if connection.status != psutil.CONN_LISTEN or connection.pid is None:
            continue
        at = connection.laddr
        if at and at.port == port and _meets(at.ip, address):
            return f"pid {connection.pid} ({_name(connection.pid)})"
    return None


def _meets(held: str, wanted: str) -> bool:
    if held == wanted:
        return True
    try:
        return ip_address(held).is_unspecified or ip_address(wanted).is_unspecified
    except ValueError:
        return True  # a host name; the port is taken, and this is who has it


def _name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "ended"
