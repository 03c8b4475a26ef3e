"""The router's Prometheus metrics, in a registry of their own."""

from collections.abc import Iterable
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pdctl.base import metric_names as names
from pdctl.router.actions import Report

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

ALARMS = ("prompt_mismatch", "audit_breach")
"""The kinds of alarms."""


class RouterMetrics:
    """Counts what turns were; labels are from small closed sets."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        add = self.registry
        requests = Counter(
            names.ROUTER_REQUESTS, "Requests by path and status", ["path", "status"], registry=add
        )
        turns = Counter(
            names.ROUTER_TURNS, "Turns by outcome and reason", ["outcome", "reason"], registry=add
        )
        self._reused = Counter(
            names.ROUTER_REUSED_TOKENS, "Prompt tokens pulled from decode", registry=add
        )
        self._prompt = Counter(names.ROUTER_PROMPT_TOKENS, "Prompt tokens", registry=add)
        self._ttft = Histogram(
            names.ROUTER_TTFT, "Arrival to first content byte", registry=add, buckets=_SECONDS
        )
        prefill = Histogram(
            names.ROUTER_PREFILL,
            "Prefill leg",
            ["outcome"],
            registry=add,
            buckets=_SECONDS,
        )
        self._retries = Counter(names.ROUTER_RETRIES, "Legs run again", ["cause"], registry=add)
        self.releases = Counter(
            names.ROUTER_RELEASES, "Handles given back", ["reason"], registry=add
        )
        self.renewals = Counter(
            names.ROUTER_RENEWALS, "Handles to be renewed, by result", ["result"], registry=add
        )
        self._dropped = Counter(
            names.ROUTER_DROPPED_FIELDS,
            "Forbidden fields taken out of client requests",
            ["field"],
            registry=add,
        )
        self.in_flight = Gauge(names.ROUTER_IN_FLIGHT, "Requests in flight", registry=add)
        self.handles = Gauge(names.ROUTER_HANDLES, "Handles kept", ["decode"], registry=add)
        self.retained = Gauge(
            names.ROUTER_RETAINED_TOKENS, "Tokens that decode retains", ["decode"], registry=add
        )
        self.capacity = Gauge(
            names.ROUTER_CAPACITY_TOKENS,
            "Tokens that decode has room for",
            ["decode"],
            registry=add,
        )
        self.pair_ok = Gauge(
            names.ROUTER_PAIR_OK, "1 when reuse was proven", ["prefill", "decode"], registry=add
        )
        self.store_errors = Counter(
            names.ROUTER_STORE_ERRORS, "Failures of the shared store", ["operation"], registry=add
        )
        self.alarms = Counter(
            names.ROUTER_ALARMS, "What must not happen, by kind", ["kind"], registry=add
        )
        for kind in ALARMS:
            # A counter that first appears at 1 has not grown, for who watches its growth.
            self.alarms.labels(kind)
        self.audits = Counter(
            names.ROUTER_AUDITS, "Turns run again cold, by result", ["result"], registry=add
        )
        # Every request looks these up; their labels are few.
        self._request = cache(requests.labels)
        self._turn = cache(turns.labels)
        self._prefill = cache(prefill.labels)

    def count_request(self, path: str, status: int) -> None:
        """A request of any path was answered."""
        self._request(path, str(status)).inc()

    def count_turn(self, report: Report, ttft_s: float | None) -> None:
        """A chat or completion turn ended."""
        self._turn(report.outcome, report.reason).inc()
        self._reused.inc(report.reused_tokens)
        self._prompt.inc(report.prompt_tokens or 0)
        if ttft_s is not None:
            self._ttft.observe(ttft_s)
        if report.prefill_s is not None:
            self._prefill(report.outcome).observe(report.prefill_s)
        for cause in report.retries:
            self._retries.labels(cause).inc()
        self.count_dropped(report.dropped)

    def count_dropped(self, fields: Iterable[str]) -> None:
        """Forbidden fields were taken out of a request."""
        for field in fields:
            self._dropped.labels(field).inc()

    def exposition(self) -> bytes:
        """The text that a scrape gets."""
        return generate_latest(self.registry)
