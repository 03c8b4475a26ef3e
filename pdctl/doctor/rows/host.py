"""Checks of each host."""

from pdctl.base.facts import PairFacts
from pdctl.doctor.table import Check, Fix, Verdict, failed, passed, skipped


def _host_reach(facts: PairFacts, target: str) -> Verdict:
    if why := facts.not_asked.get(target):
        return skipped(why)
    host = next(host for host in facts.hosts if host.name == target)
    return failed(host.error) if host.error else passed("it answers")


CHECKS: tuple[Check, ...] = (
    Check(
        id="host.reach",
        title="the host can be reached",
        scope="host",
        severity="block",
        judge=_host_reach,
        meaning="Nothing on this host can be looked at or changed.",
        fix=Fix("check the address, the network and the login"),
    ),
)
