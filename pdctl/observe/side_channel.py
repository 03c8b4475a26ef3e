"""Whether NIXL's side channel answers to a peer: the port greets as ZeroMQ does.

A TCP connection alone would not tell: another program may have the port, and a packet filter or a
thread that ended may leave it silent.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pdctl.base.command import command
from pdctl.base.errors import PdctlError
from pdctl.base.runfacts import SideChannel
from pdctl.targets.base import Host

_ANSWER_S = 4
_GREETING = "ff"
"""ZMTP begins with this byte, sent by both sides as soon as they are connected."""

# One shell for all of them, each asked in the background; bash alone can connect without a tool.
_SCRIPT = """
while [ $# -gt 0 ]; do
    (
        said=$(timeout {limit} bash -c '
            exec 3<>"/dev/tcp/$1/$2" || exit 1
            head -c 1 <&3 | od -An -tx1' bash "$2" "$3" 2>/dev/null)
        status=$?
        echo "$1 $status ${said:-none}"
    ) &
    shift 3
done
wait
"""


@dataclass(frozen=True)
class SideAddress:
    """Where an engine's side channel listens."""

    engine: str
    address: str
    port: int


def ask_side_channels(host: Host, wanted: Sequence[SideAddress]) -> Iterator[SideChannel]:
    """Ask them all from one host; one that could not be tried gives nothing."""
    if not wanted:
        return
    words = [word for each in wanted for word in (each.engine, each.address, str(each.port))]
    script = _SCRIPT.replace("{limit}", str(_ANSWER_S))
    try:
        result = host.run(command("bash", "-c", script, "bash", *words), timeout=_ANSWER_S + 5.0)
    except PdctlError:
        return
    said = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()}
    for each in wanted:
        if each.engine in said:
            status, answer = said[each.engine][:2]
            error = _error(status, answer)
            yield SideChannel(each.engine, host.name, each.address, each.port, not error, error)


def _error(status: str, answer: str) -> str:
    if answer == _GREETING:
        return ""
    if status == "124":
        return f"it does not answer within {_ANSWER_S} s"
    if answer == "none":
        return "nobody listens there, or the connection was closed at once"
    return f"something else than a side channel answers there (its first byte is 0x{answer})"
