"""Ports of this host, and connections to those of others."""

import errno
from typing import get_args

from pdctl.base.hostfacts import PeerFacts, PortFacts, Reach, WantedPeer, WantedPort
from pdctl.observe.host.raw import items, mapping, seconds, text, whole

_REACHES: tuple[Reach, ...] = get_args(Reach)


def read_ports(raw: object, wanted: tuple[WantedPort, ...]) -> tuple[PortFacts, ...]:
    """From the script's `ports`, which are in the order they were asked for."""
    return tuple(
        _port(port, mapping(answer)) for port, answer in zip(wanted, items(raw), strict=False)
    )


def _port(port: WantedPort, answer: dict[str, object]) -> PortFacts:
    number = whole(answer.get("errno"))
    if number == 0:
        return PortFacts(port, free=True)
    if number != errno.EADDRINUSE:
        return PortFacts(port, error=text(answer.get("error")) or "it was not tried")
    holders = [mapping(each) for each in items(answer.get("holders"))]
    if not holders:
        return PortFacts(port, free=False)
    # Others may have the same port on other addresses of the host.
    own = [each for each in holders if text(each.get("mark")).endswith(f"/{port.process}")]
    first = (own or holders)[0]
    name = text(first.get("name")) or "?"
    return PortFacts(
        port,
        free=False,
        holder=f"pid {whole(first.get('pid'))} ({name})",
        mark=text(first.get("mark")),
    )


def read_peers(raw: object, wanted: tuple[WantedPeer, ...]) -> tuple[PeerFacts, ...]:
    """From the script's `peers`, which are in the order they were asked for."""
    return tuple(
        _peer(peer, mapping(answer)) for peer, answer in zip(wanted, items(raw), strict=False)
    )


def _peer(peer: WantedPeer, answer: dict[str, object]) -> PeerFacts:
    reach: Reach = next((each for each in _REACHES if each == answer.get("reach")), "unreachable")
    return PeerFacts(peer, reach, seconds(answer.get("seconds")), text(answer.get("error")))
