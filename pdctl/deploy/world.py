"""Everything outside that deploying touches, in one value, so that tests can put theirs in."""

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from pdctl.base.events import Listener, ignore
from pdctl.base.process import Supervision
from pdctl.deploy.probe import Probe, probe
from pdctl.observe.endpoints import Served
from pdctl.targets.base import Host


def new_suffix() -> str:
    """Random and short: what makes an engine id new at every start."""
    return secrets.token_hex(4)


def own_url(process: Served) -> str:
    """Where it is reached by everybody."""
    return process.url


def nothing() -> None:
    """What there is to prepare on this machine."""


def by_nothing(host: str) -> Supervision:
    """On this machine nothing starts processes again; `up` does."""
    return "none"


@dataclass(frozen=True)
class World:
    """Hosts by their name in a deployment, the clock, and who is told.

    Attributes:
        hosts: all hosts that the deployment names.
        listen: gets events.
        probe: asks a URL for its health.
        now: wall clock, seconds since the epoch.
        monotonic, sleep: for limits.
        suffix: new at every call.
        prepare: makes the hosts such that folders can be made on them.
        trail: file on each host that gets a line for every change; None on this machine, which
            keeps its own.
        near: URL at which this machine reaches what a process serves, given its record.
        supervision: what is to keep the processes of a host running, given its name.
        leaving: hosts that the configuration has no more, and that still have processes of it.
    """

    hosts: Mapping[str, Host]
    listen: Listener = ignore
    probe: Probe = probe
    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    suffix: Callable[[], str] = field(default=new_suffix)
    prepare: Callable[[], None] = nothing
    trail: PurePosixPath | None = None
    near: Callable[[Served], str] = own_url
    supervision: Callable[[str], Supervision] = by_nothing
    leaving: frozenset[str] = frozenset()

    def close(self) -> None:
        """Give connections back."""
        for host in {id(host): host for host in self.hosts.values()}.values():
            host.close()
