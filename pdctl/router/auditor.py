"""Runs audited turns again cold, when their prefill server has nothing else to do."""

import asyncio
import logging
import secrets
from collections.abc import Callable

from pdctl.router import audit
from pdctl.router.actions import Answer, Audit, Failure
from pdctl.router.engines import Engines
from pdctl.router.fleet import Fleet
from pdctl.router.metrics import RouterMetrics

log = logging.getLogger("pdctl.router")

LIMIT_S = 30.0
_POLL_S = 0.1


class Auditor:
    """One audit at a time; another that comes meanwhile is left out.

    Args:
        floor: nats below which a difference is never a breach.
        after_breach: is told the decode server whose blocks led to one.
        limit: seconds for an audit in all, the waiting included.
    """

    def __init__(
        self,
        engines: Engines,
        fleet: Fleet,
        metrics: RouterMetrics,
        *,
        floor: float,
        after_breach: Callable[[str], object],
        limit: float = LIMIT_S,
    ) -> None:
        self._engines, self._fleet, self._metrics = engines, fleet, metrics
        self._floor, self._limit = floor, limit
        self._after_breach = after_breach
        self._running: asyncio.Task[None] | None = None

    def begin(self, turn: Audit) -> None:
        """Run the prompt cold twice, later, and compare; a breach takes the pair out of use."""
        busy = self._running is not None and not self._running.done()
        if turn.said is None or busy:
            self._metrics.audits.labels("left_out" if busy else "unreadable").inc()
            return
        self._running = asyncio.get_running_loop().create_task(self._run(turn))

    def stop(self) -> None:
        """Give up the audit that runs: nobody waits for it."""
        if self._running is not None:
            self._running.cancel()

    async def _run(self, turn: Audit) -> None:
        try:
            async with asyncio.timeout(self._limit):
                cold, again = await self._cold(turn), await self._cold(turn)
        except TimeoutError:
            self._metrics.audits.labels("given_up").inc()
            return
        found = audit.compare(turn.said, cold, again, floor=self._floor)
        self._metrics.audits.labels(found.result).inc()
        if found.result == "breach":
            self._breach(turn, found)

    def _breach(self, turn: Audit, found: audit.Comparison) -> None:
        why = (
            f"an audit found a reused turn {found.distance:.2f} nats away from cold runs, "
            f"which are {found.noise:.2f} apart"
        )
        self._metrics.alarms.labels("audit_breach").inc()
        log.error(
            "ALARM audit_breach: [%s] %s × %s: %s", turn.request_id, turn.prefill, turn.decode, why
        )
        self._fleet.quarantine(turn.prefill, turn.decode, why)
        self._after_breach(turn.decode)

    async def _cold(self, turn: Audit) -> audit.Logprobs | None:
        """One cold run; begun again as often as somebody else wants the server."""
        while True:
            if self._others_wait(turn.prefill):
                await asyncio.sleep(_POLL_S)
                continue
            result = await self._unless_wanted(turn)
            if result is not None:
                return audit.first_logprobs(result.json) if isinstance(result, Answer) else None

    def _others_wait(self, prefill: str) -> bool:
        engine = self._fleet.prefill[prefill]
        return engine.outstanding > 0 or not engine.healthy

    async def _unless_wanted(self, turn: Audit) -> Answer | Failure | None:
        """None when it was stopped, which a run that carries no handle bears."""
        body = audit.cold_body(turn.endpoint, turn.body, f"pdctl-audit-{secrets.token_hex(16)}")
        url = f"{turn.prefill}{turn.endpoint}"
        run = asyncio.ensure_future(
            self._engines.post_json(url, body, limit=self._limit, headers={})
        )
        try:
            while not run.done():
                await asyncio.wait({run}, timeout=_POLL_S)
                if not run.done() and self._others_wait(turn.prefill):
                    return None
            return run.result()
        finally:
            run.cancel()
