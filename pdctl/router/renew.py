"""Has decode keep a conversation that is at work, so that the TTL can be short.

Decode is asked to keep the blocks until a given moment by its own clock, and only what its answer
says is believed; without one the old deadline holds. So whatever is lost, late or said twice, no
handle is ever offered for longer than decode said that it keeps the blocks. Only the router that
served a turn renews it, and only while its handle is FREE.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from pdctl.base.transfer import renewed
from pdctl.router import legs
from pdctl.router.actions import Answer
from pdctl.router.giving import Shared
from pdctl.router.handle import rank
from pdctl.router.leases import Lease

log = logging.getLogger("pdctl.router")

# An answer that has not come by then is not waited for; the next round asks again.
_ANSWER_S = 5.0
_AT_ONCE = 64

# Deadlines that hold, by request id and decode's clock; None when decode did not say.
_Told = Mapping[str, float] | None


class Renewer:
    """Asks decode to keep what `shared.leases` says, and takes its word."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._leases = shared.leases

    async def round(self, clock: Callable[[], float], ttl: float) -> None:
        """Renew what is due now. What fails is tried again in the next round."""
        due = self._leases.due(clock(), ttl)
        if not due:
            return
        free = await self._shared.store.free([lease.id for lease in due])
        by_engine: dict[tuple[str, str, str], list[Lease]] = defaultdict(list)
        for lease in due:
            if lease.id in free:
                by_engine[lease.decode, lease.engine_id, lease.model].append(lease)
            else:  # in use, used up or given back
                self._leases.drop(lease)
        await asyncio.gather(
            *(
                self._renew(batch, clock, ttl)
                for leases in by_engine.values()
                for batch in _batches(leases)
            )
        )

    async def _renew(self, leases: list[Lease], clock: Callable[[], float], ttl: float) -> None:
        now = clock()
        first = leases[0]
        engine = self._shared.fleet.decode.get(first.decode)
        told: _Told = None
        # Who waits there waits for the room that this would keep.
        if engine is not None and engine.serves and not engine.waiting:
            told = await self._ask(
                first, {each.request_id: each.expiry_at(each.wanted(now, ttl)) for each in leases}
            )
        for lease in leases:
            await self._settle(lease, told, clock, ttl)

    async def _settle(
        self, lease: Lease, told: _Told, clock: Callable[[], float], ttl: float
    ) -> None:
        result = "failed"
        if told is not None:
            expiry = told.get(lease.request_id)
            kept = expiry is not None and await self._extend(lease, expiry)
            result = "renewed" if kept else "gone"
            if not kept:  # decode has let it go, or somebody has taken it meanwhile
                self._leases.drop(lease)
        self._shared.metrics.renewals.labels(result).inc()
        self._leases.keep(lease, clock(), ttl)

    async def _extend(self, lease: Lease, expiry: float) -> bool:
        if expiry <= lease.expiry:
            return True
        deadline = lease.deadline_at(expiry)
        if not await self._shared.store.extend(lease.id, deadline, expiry):
            return False
        lease.deadline, lease.expiry = deadline, expiry
        return True

    async def _ask(self, lease: Lease, until: Mapping[str, float]) -> _Told:
        of_rank = rank(lease.engine_id)
        headers = {} if of_rank is None else {"X-data-parallel-rank": str(of_rank)}
        answer = await self._shared.engines.post_json(
            f"{lease.decode}/v1/completions",
            legs.renewal(lease.model, lease.engine_id, until),
            limit=_ANSWER_S,
            headers=headers,
        )
        if isinstance(answer, Answer):
            told = renewed(answer.json.get("kv_transfer_params"))
            if told is None:
                log.warning(
                    "%s does not know what a renewal is; it is not asked again", lease.decode
                )
            # What it does not name, it does not keep.
            return told or {}
        log.warning(
            "%s did not renew %d turns: %s %s",
            lease.decode, len(until), answer.kind, answer.status or "",
        )  # fmt: skip
        return None


def _batches(leases: Iterable[Lease]) -> Iterable[list[Lease]]:
    rest = iter(leases)
    while batch := list(islice(rest, _AT_ONCE)):
        yield batch
