"""Alert rules for Prometheus: what somebody should look at, with the check that tells more.

Every rule is on metrics that routers and engines really export. A metric that an older engine
lacks has no series, and its rule stays silent.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pdctl.base import metric_names as names
from pdctl.base.facts import STARVED_USAGE
from pdctl.base.misses import EXCLUDED, MAY_MISS

FEW = 3
"""Turns that might have been reused, from which on it is said that none was."""
MANY_LEASES = 5
"""Requests that decode never took up, from which on that is no client that left."""
PINNED_SHARE = 0.3
"""Share of decode's room, from which on what is retained is called much."""
LATE_TURNS = 10
"""Turns after the TTL, from which on it matters that they are more than those that were reused."""


@dataclass(frozen=True)
class Alert:
    """One rule.

    Attributes:
        expr: PromQL; every series of its result is an alert.
        lasts: for how long it must hold, as Prometheus writes durations.
        check: id of the check of `pdctl doctor` that looks at the same.
        page: page under docs/ that explains it.
        reuse: only of a deployment that is to reuse.
    """

    name: str
    expr: str
    lasts: str
    severity: Literal["critical", "warning"]
    summary: str
    description: str
    check: str
    page: str
    reuse: bool = False


def alert_rules(name: str, *, reuses: bool = True) -> dict[str, Any]:
    """A rule file for one deployment.

    Args:
        reuses: `kv.bidirectional`; without it nothing is said of turns that are not reused.
    """
    rules = [_rule(alert) for alert in alerts(name) if reuses or not alert.reuse]
    return {"groups": [{"name": f"pdctl-{name}", "rules": rules}]}


def alerts(name: str) -> tuple[Alert, ...]:
    """All rules of a deployment."""
    return (*_down(name), *_reuse(name), *_transfers(name), *_room(name), *_wrong(name))


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.lasts,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "check": f"pdctl doctor --only {alert.check}; pdctl explain {alert.check}",
            "docs": f"docs/{alert.page}",
        },
    }


# --- the parts of expressions ----------------------------------------------------------------


def _of(metric: str, name: str, *labels: str) -> str:
    return metric + "{" + ",".join((f'deployment="{name}"', *labels)) + "}"


def _grown(metric: str, name: str, *labels: str, within: str, by: str = "deployment") -> str:
    selected = _of(f"{metric}_total", name, *labels)
    return f"sum by ({by}) (increase({selected}[{within}]))"


def _happened(metric: str, name: str, *labels: str, within: str) -> str:
    """Whether a counter grew, also one whose series began with the first thing it counted.

    What was counted before Prometheus looked at all is no news.
    """
    selected = _of(f"{metric}_total", name, *labels)
    watched = f"and on (deployment, process) ({_of('up', name)} offset {within})"
    fresh = f"({selected} > 0 unless {selected} offset {within}) {watched}"
    return f"(increase({selected}[{within}]) > 0) or ({fresh})"


# --- the rules -------------------------------------------------------------------------------


def _down(name: str) -> Iterator[Alert]:
    routers, engines = _of("up", name, 'role="router"'), _of("up", name, 'role=~"prefill|decode"')
    yield Alert(
        "PdctlRouterDown",
        f"{routers} == 0",
        "1m",
        "critical",
        f"{name}: {{{{ $labels.process }}}} does not answer",
        "Clients of this router get no answers.",
        check="router.reach",
        page="router.md",
    )
    yield Alert(
        "PdctlEngineDown",
        f"{engines} == 0",
        "1m",
        "critical",
        f"{name}: {{{{ $labels.process }}}} does not answer",
        "Its work goes to others of its role. Without any prefill, decode does all by itself; "
        "without any decode, requests fail.",
        check="engine.health",
        page="router.md",
    )


def _reuse(name: str) -> Iterator[Alert]:
    meant = "|".join((*sorted(reason for reason in MAY_MISS if reason), f"{EXCLUDED}.*", ""))
    turns = names.ROUTER_TURNS
    lost = _grown(turns, name, 'outcome="MISS"', f'reason!~"{meant}"', within="15m")
    reused = _grown(names.ROUTER_REUSED_TOKENS, name, within="15m")
    late = _grown(turns, name, 'outcome="MISS"', 'reason="expired"', within="30m")
    hits = _grown(turns, name, 'outcome=~"HIT|PARTIAL"', within="30m")
    yield Alert(
        "PdctlNeverReuses",
        f"({lost} >= {FEW}) and on (deployment) ({reused} == 0)",
        "5m",
        "critical",
        f"{name}: MISS rate 100 %, nothing is reused",
        "Turns that go on are all computed from the beginning, as without reuse. The reasons are "
        "in the router's log and in its metric of turns.",
        check="runtime.misses",
        page="router.md",
        reuse=True,
    )
    yield Alert(
        "PdctlTurnsTooLate",
        f"({late} >= {LATE_TURNS}) unless on (deployment) ({hits} >= {late})",
        "10m",
        "warning",
        f"{name}: most follow-up turns come after the TTL",
        "What decode kept of them is gone. `pdctl analyze` says what a longer TTL would reuse and "
        "what it would pin; `pdctl set-ttl` changes it while all runs.",
        check="router.ttl",
        page="tuning.md",
        reuse=True,
    )
    yield Alert(
        "PdctlPairNotProven",
        f"{_of(names.ROUTER_PAIR_OK, name)} == 0",
        "5m",
        "warning",
        f"{name}: {{{{ $labels.prefill }}}} × {{{{ $labels.decode }}}} is quarantined",
        "The router's probe did not see blocks move both ways, or an audit found another answer. "
        "It sends no handle between the two; GET /pdctl/v1/state says why.",
        check="router.pair",
        page="router.md",
        reuse=True,
    )
    yield Alert(
        "PdctlReadsFail",
        _happened(names.ROUTER_RETRIES, name, 'cause=~"reuse_.*"', within="10m"),
        "0m",
        "warning",
        f"{name}: prefill failed on a handle ({{{{ $labels.cause }}}})",
        "The turn was answered after it was computed anew. Once after a restart is normal.",
        check="runtime.transfers",
        page="router.md",
        reuse=True,
    )


def _transfers(name: str) -> Iterator[Alert]:
    by = "deployment, process"
    fetched = f"sum by (deployment) (increase({_fetched(name)}[15m]))"
    lost = _grown(names.NIXL_EXPIRED, name, 'role="prefill"', within="15m")
    yield Alert(
        "PdctlExpiredReads",
        _grown(names.NIXL_AFTER_EXPIRY, name, 'role="decode"', within="10m", by=by) + " > 0",
        "0m",
        "warning",
        f"{name}: reads came after {{{{ $labels.process }}}} gave the blocks up",
        "Handles are offered for longer than decode keeps the blocks. The router's TTL must end "
        "before decode's does.",
        check="runtime.late_reads",
        page="tuning.md",
    )
    yield Alert(
        "PdctlFailedTransfers",
        _grown(names.NIXL_FAILED_TRANSFERS, name, within="10m", by=by) + " > 0",
        "0m",
        "warning",
        f"{name}: NIXL transfers of {{{{ $labels.process }}}} fail",
        "KV could not be read from the other engine. Those turns fail or are computed again.",
        check="runtime.transfers",
        page="signatures.md",
    )
    yield Alert(
        "PdctlLeasesExpire",
        f"({lost} > {MANY_LEASES}) unless on (deployment) ({fetched} >= 2 * {lost})",
        "5m",
        "warning",
        f"{name}: decode does not fetch what prefill computes",
        "Prefill gives up blocks that nobody read, or declines reads that come too late; its "
        "memory is held for nothing meanwhile.",
        check="runtime.leases",
        page="signatures.md",
    )


def _fetched(name: str) -> str:
    return _of(f"{names.NIXL_BYTES}_count", name, 'role="decode"')


def _room(name: str) -> Iterator[Alert]:
    role = 'role="decode"'
    by = "sum by (deployment, process)"
    waiting = f"{by} ({_of(names.VLLM_WAITING, name, role)})"
    usage = f"max by (deployment, process) ({_of(names.VLLM_KV_USAGE, name, role)})"
    running = f"{by} ({_of(names.VLLM_RUNNING, name, role)})"
    retained = _of(names.ROUTER_RETAINED_TOKENS, name)
    share = f"max by (deployment) ({retained} / {_of(names.ROUTER_CAPACITY_TOKENS, name)})"
    yield Alert(
        "PdctlDecodeStarved",
        f"({waiting} > 0) and ({usage} >= {STARVED_USAGE}) and "
        f"(({running} == 0) or ({waiting} and on (deployment) ({share} > {PINNED_SHARE})))",
        "30s",
        "critical",
        f"{name}: requests wait while {{{{ $labels.process }}}} is full of finished turns",
        "Blocks that are kept for turns that may come back take the room of turns that are there. "
        "Lower the TTL (`pdctl set-ttl`), or add decode servers.",
        check="engine.room",
        page="tuning.md",
    )


def _wrong(name: str) -> Iterator[Alert]:
    yield Alert(
        "PdctlRouterAlarm",
        _happened(names.ROUTER_ALARMS, name, within="15m"),
        "0m",
        "critical",
        f"{name}: the router raised the alarm {{{{ $labels.kind }}}}",
        "What must not happen did: prefill computed with other ids than it had said, or a reused "
        "turn differs from its cold run. Reuse is off for that shape or pair; report it.",
        check="router.pair",
        page="router.md",
    )
    yield Alert(
        "PdctlStoreFails",
        _happened(names.ROUTER_STORE_ERRORS, name, within="10m"),
        "1m",
        "warning",
        f"{name}: the routers' shared store fails ({{{{ $labels.operation }}}})",
        "Turns run cold while it does.",
        check="router.store",
        page="router.md",
    )
