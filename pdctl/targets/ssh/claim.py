"""One at a time on a host: an address of the kernel's that one process holds at most.

A file would need a folder that every user may write and that is there before anything is made. An
abstract Unix socket needs none, tells who holds it, and is free as soon as its holder ends, however
that comes about.
"""

import socket
import threading

_ANSWER_S = 5.0
_LONGEST = 90  # bytes of a name; the kernel takes 107


class Claims:
    """What this process has claimed; it is free when the process ends."""

    def __init__(self) -> None:
        self._held: dict[str, socket.socket] = {}
        self._lock = threading.Lock()

    def take(self, name: str, who: str) -> str | None:
        """Claim a name.

        Args:
            who: told to others who ask for it.

        Returns:
            None when it is ours now, else what its holder says of itself.
        """
        with self._lock:
            if name in self._held:
                return None
            door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                door.bind(_address(name))
            except OSError:
                door.close()
                return _holder(name)
            door.listen()
            self._held[name] = door
        threading.Thread(target=_tell, args=(door, who.encode()), daemon=True).start()
        return None


def _address(name: str) -> bytes:
    return b"\0pdctl:" + name.encode()[-_LONGEST:]


def _tell(door: socket.socket, who: bytes) -> None:
    while True:
        try:
            asking, _ = door.accept()
            with asking:
                asking.sendall(who)
        except OSError:
            return


def _holder(name: str) -> str:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
            door.settimeout(_ANSWER_S)
            door.connect(_address(name))
            return door.recv(1000).decode(errors="replace") or "somebody"
    except OSError:
        return "somebody"
