"""The few numbers that the router looks up every second in an engine's /metrics. Pure.

A page can be half a megabyte, and parsing all of it takes tens of milliseconds in which no request
moves. So the lines that matter are looked for, and nothing else is read.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pdctl.base import metric_names as names

_LABEL = re.compile(rb'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Vitals:
    """What the page told; None where it did not.

    Attributes:
        start: changes when the process is another.
        block_size: tokens in a KV block.
        capacity_tokens: of all data-parallel ranks together.
        kv_usage: of the fullest rank, 0 to 1.
        waiting: requests that wait for room, or all that wait where the engine does not say why.
    """

    start: str | None = None
    block_size: int | None = None
    capacity_tokens: int | None = None
    kv_usage: float | None = None
    waiting: int | None = None


def read_vitals(page: bytes) -> Vitals:
    """Look for the lines; what is not as it should be tells nothing."""
    page = b"\n" + page  # so that each line begins alike
    configs = [labels for labels, _ in _samples(page, names.VLLM_CACHE_CONFIG)]
    usage = [value for _, value in _samples(page, names.VLLM_KV_USAGE)]
    waiting = [value for _, value in _samples(page, names.VLLM_WAITING)]
    # The others wait for blocks on their way, which is no lack of room.
    for_room = [
        value
        for labels, value in _samples(page, names.VLLM_WAITING_BY_REASON)
        if labels.get("reason") == "capacity"
    ]
    start = next((value for _, value in _samples(page, names.PROCESS_START_TIME)), None)
    return Vitals(
        start=None if start is None else str(start),
        block_size=next(filter(None, (_count(c.get("block_size")) for c in configs)), None),
        capacity_tokens=sum(map(_capacity, configs)) or None,
        kv_usage=max(usage, default=None),
        waiting=int(sum(for_room or waiting)) if for_room or waiting else None,
    )


def _samples(page: bytes, name: str) -> Iterator[tuple[dict[str, str], float]]:
    wanted = b"\n" + name.encode()
    at = page.find(wanted)
    while at >= 0:
        begin = at + len(wanted)
        end = page.find(b"\n", begin)
        line = page[begin : end if end >= 0 else len(page)]
        # Else the name goes on: it is another.
        if line[:1] in (b"{", b" "):
            labels, _, value = line.rpartition(b"}")
            if (number := _number(value)) is not None:
                yield _labels(labels), number
        at = page.find(wanted, begin)


def _labels(text: bytes) -> dict[str, str]:
    return {
        name.decode("utf-8", "replace"): value.decode("utf-8", "replace")
        for name, value in _LABEL.findall(text)
    }


def _number(text: bytes) -> float | None:
    try:
        value = float(text.split()[0])
    except (ValueError, IndexError):
        return None
    return value if 0 <= value < float("inf") else None


def _count(text: str | None) -> int:
    return int(text) if text is not None and re.fullmatch("[0-9]{1,15}", text) else 0


def _capacity(config: dict[str, str]) -> int:
    # Where layers differ, blocks times size says too much; the engine's own number does not.
    own = _count(config.get("kv_cache_size_tokens"))
    return own or _count(config.get("num_gpu_blocks")) * _count(config.get("block_size"))
