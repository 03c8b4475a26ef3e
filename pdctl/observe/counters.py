"""What engines count while somebody watches: prefill's work, transfers, pinned blocks."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from pdctl.base import metric_names as names
from pdctl.observe.endpoints import Endpoints
from pdctl.observe.metrics import Samples, scrape


@dataclass(frozen=True)
class Counted:
    """One role's counters since its engines started, or how much they grew; None: not exported.

    Attributes:
        ttft_s: arrival to first token, summed over requests; on prefill that is the whole leg.
        compute_s: scheduled to first token, summed; waiting for a transfer is not in it.
        transfer_s: time of transfers that these engines pulled, summed.
        transfers, bytes: their number and size.
        computed, cached, pulled: prompt tokens by where they came from: computed, found in the
            engine's own prefix cache, pulled from the other role.
    """

    ttft_s: float | None = None
    compute_s: float | None = None
    transfer_s: float | None = None
    transfers: float | None = None
    bytes: float | None = None
    computed: float | None = None
    cached: float | None = None
    pulled: float | None = None

    def as_dict(self) -> dict[str, float | None]:
        """For JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class Look:
    """All engines at one moment.

    Attributes:
        pinned_tokens: room of decode's blocks in use; None where they do not tell.
        room_tokens: room of all blocks of decode.
        usage: share of decode's blocks in use, the greatest of its engines.
        busy: requests that run or wait.
    """

    prefill: Counted
    decode: Counted
    pinned_tokens: int | None
    room_tokens: int | None
    usage: float
    busy: int


async def look(session: aiohttp.ClientSession, endpoints: Endpoints) -> Look:
    """Ask all engines at the same time.

    Raises:
        UnreachableError: one does not answer.
    """
    prefill, decode = [
        await asyncio.gather(
            *(scrape(session, each.url, key=endpoints.engine_key) for each in engines)
        )
        for engines in (endpoints.role("prefill"), endpoints.role("decode"))
    ]
    rooms = [_room(each) for each in decode]
    pinned = [
        None if room is None else room * (each.worst(names.VLLM_KV_USAGE) or 0.0)
        for room, each in zip(rooms, decode, strict=True)
    ]
    both = [*prefill, *decode]
    return Look(
        prefill=counted(prefill),
        decode=counted(decode),
        pinned_tokens=_whole(pinned),
        room_tokens=_whole(rooms),
        usage=max((each.worst(names.VLLM_KV_USAGE) or 0.0 for each in decode), default=0.0),
        busy=int(
            sum(
                each.total(name) or 0
                for each in both
                for name in (names.VLLM_RUNNING, names.VLLM_WAITING)
            )
        ),
    )


def counted(engines: Sequence[Samples]) -> Counted:
    """The counters of one role's engines, summed."""
    by_source = names.VLLM_PROMPT_TOKENS_BY_SOURCE
    return Counted(
        ttft_s=_sum(engines, f"{names.VLLM_TTFT}_sum"),
        compute_s=_sum(engines, f"{names.VLLM_PREFILL_TIME}_sum"),
        transfer_s=_sum(engines, f"{names.NIXL_TRANSFER_TIME}_sum"),
        transfers=_sum(engines, f"{names.NIXL_BYTES}_count"),
        bytes=_sum(engines, f"{names.NIXL_BYTES}_sum"),
        computed=_sum(engines, by_source, source="local_compute"),
        cached=_sum(engines, by_source, source="local_cache_hit"),
        pulled=_sum(engines, by_source, source="external_kv_transfer"),
    )


def grown(before: Counted, after: Counted) -> Counted:
    """How much each counter grew; None where an engine restarted in between.

    A histogram without observations may be absent before: that is zero.
    """
    changes: dict[str, float | None] = {}
    for name, now in vars(after).items():
        change = None if now is None else now - (getattr(before, name) or 0.0)
        changes[name] = None if change is None or change < 0 else change
    return Counted(**changes)


def _sum(engines: Sequence[Samples], name: str, **labels: str) -> float | None:
    found = [value for each in engines if (value := each.total(name, **labels)) is not None]
    return sum(found) if found else None


def _room(samples: Samples) -> float | None:
    size = samples.label(names.VLLM_CACHE_CONFIG, "block_size")
    blocks = samples.label(names.VLLM_CACHE_CONFIG, "num_gpu_blocks")
    if size is None or blocks is None or not (size.isdigit() and blocks.isdigit()):
        return None
    return float(int(size) * int(blocks))


def _whole(values: Sequence[float | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(sum(known)) if known else None
