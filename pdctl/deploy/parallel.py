"""The same work on several hosts at the same time."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pdctl.targets.base import Host

T = TypeVar("T")
H = TypeVar("H", bound=Host)
_MOST_AT_ONCE = 16


def on_all(hosts: Sequence[H], work: Callable[[H], T]) -> list[T]:
    """Do it, and wait for all; then the first host's error is raised, if there is one.

    Ctrl-C closes the connections to other machines, which ends what runs there for us.
    """
    if len(hosts) == 1:
        return [work(hosts[0])]
    if not hosts:
        return []
    with ThreadPoolExecutor(min(len(hosts), _MOST_AT_ONCE)) as pool:
        results = [pool.submit(work, host) for host in hosts]
        try:
            return [each.result() for each in results]
        except KeyboardInterrupt:
            for host in hosts:
                host.close()
            raise
