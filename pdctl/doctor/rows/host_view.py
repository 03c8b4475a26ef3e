"""How judges of hosts look at one host: what they need of it, or a skip that says why not."""

from collections.abc import Callable
from typing import Any, TypeVar

from pdctl.base.facts import PairFacts
from pdctl.base.hostfacts import HostFacts, HostWant
from pdctl.doctor.table import Fix, Judge, Verdict, skipped

T = TypeVar("T")
HostJudge = Callable[[HostFacts, HostWant], Verdict]
PartJudge = Callable[[HostFacts, HostWant, T], Verdict]

GIB = 2**30

EFA_INSTALLER = "1.50.0"
"""The newest installer that was read of; it brings libfabric 2.6.0amzn1.0 and efa 3.3.0."""
INSTALL_EFA = (
    f"curl -O https://efa-installer.amazonaws.com/aws-efa-installer-{EFA_INSTALLER}.tar.gz",
    f"tar -xf aws-efa-installer-{EFA_INSTALLER}.tar.gz",
    "cd aws-efa-installer && sudo ./efa_installer.sh -y",
)


def of_host(judge: HostJudge) -> Judge:
    """A judge of one host that was looked at."""

    def judged(facts: PairFacts, target: str) -> Verdict:
        host = find(facts, target)
        if host.want is None:
            return skipped("it was not looked at: only its address is known")
        return judge(host, host.want)

    return judged


def of_part(part: str, judge: PartJudge[Any]) -> Judge:
    """A judge of one part of a host's facts; skips where that part could not be read."""

    def judged(host: HostFacts, want: HostWant) -> Verdict:
        value = getattr(host, part)
        if value is None:
            return skipped(host.problems.get(part) or "it was not looked at")
        return judge(host, want, value)

    return of_host(judged)


def over_efa(judge: HostJudge) -> HostJudge:
    """Skips where KV does not go over EFA."""

    def judged(host: HostFacts, want: HostWant) -> Verdict:
        return skipped(reason) if (reason := no_efa(want)) else judge(host, want)

    return judged


def of_efa_part(part: str, judge: PartJudge[Any]) -> Judge:
    """As `of_part`, for what matters only where KV goes over EFA."""
    inner = of_part(part, judge)

    def judged(facts: PairFacts, target: str) -> Verdict:
        want = find(facts, target).want
        if want is not None and (reason := no_efa(want)):
            return skipped(reason)
        return inner(facts, target)

    return judged


def no_efa(want: HostWant) -> str | None:
    """Why EFA does not matter on this host; None when it does."""
    if not want.engine:
        return "no engine runs on this host"
    if not want.over_efa:
        return f"this target does not use EFA: backends {', '.join(want.backends)}"
    return None


def find(facts: PairFacts, target: str) -> HostFacts:
    """A host by its name."""
    return next(host for host in facts.hosts if host.name == target)


def gib(count: int | None) -> str:
    """Bytes for people."""
    return "unknown" if count is None else f"{count / GIB:.1f} GiB"


def install_efa(text: str) -> Fix:
    """The EFA installer, with a first sentence of its own."""
    return Fix(f"{text}; log in again afterwards, and reboot if it says so", INSTALL_EFA)
