"""Memory that one retained conversation costs the router.

usage: python benchmarks/router_memory.py [--handles N] [--tokens N] [--quick]

Fills a memory store with handles of conversations that share nothing, as they come out of decode's
answers, and divides what the process grew by their number. Two figures: what Python allocated,
and what the system gave to the process.
"""

import argparse
import asyncio
import gc
import os
import tracemalloc

import psutil
from router.handles import handle, ids

from pdctl.router.memory import MemoryStore

BAR_KIB = 128


async def fill(store: MemoryStore, numbers: range, tokens: int) -> None:
    """Keep one handle for each number."""
    for number in numbers:
        if evicted := await store.put(handle(number, ids(number, tokens))):
            raise SystemExit(f"the store let {len(evicted)} handles go: there are too many")


def measure(handles: int, tokens: int) -> tuple[float, float]:
    """KiB for each handle: allocated by Python, and resident."""
    store = MemoryStore()
    process = psutil.Process(os.getpid())
    # The first ones bring what all share.
    asyncio.run(fill(store, range(10), tokens))
    gc.collect()
    before = process.memory_info().rss
    asyncio.run(fill(store, range(10, 10 + handles), tokens))
    gc.collect()
    resident = (process.memory_info().rss - before) / handles / 1024
    tracemalloc.start()
    asyncio.run(fill(store, range(10 + handles, 10 + handles + handles // 4), tokens))
    gc.collect()
    allocated = tracemalloc.get_traced_memory()[0] / (handles // 4) / 1024
    tracemalloc.stop()
    return allocated, resident


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--handles", type=int, default=1000, metavar="N")
    parser.add_argument("--tokens", type=int, default=24_000, metavar="N")
    parser.add_argument("--quick", action="store_true", help="few handles")
    options = parser.parse_args()
    handles = 40 if options.quick else options.handles
    allocated, resident = measure(handles, options.tokens)
    holds = max(allocated, resident) <= BAR_KIB
    print("| tokens | handles | KiB a handle, allocated | resident |")
    print("| --- | --- | --- | --- |")
    print(f"| {options.tokens} | {handles} | {allocated:.1f} | {resident:.1f} |")
    print(f"\n- bar: {BAR_KIB} KiB {'holds' if holds else 'DOES NOT HOLD'}")


if __name__ == "__main__":
    main()
