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
import random
import tracemalloc
from array import array

import orjson
import psutil

from pdctl.router.handle import Conversation, Handle, Scope
from pdctl.router.match import Retained
from pdctl.router.memory import MemoryStore

BAR_KIB = 128
BLOCK = 16
VOCABULARY = 150_000
SCOPE = Scope(tenant="", model="model", salt="")


def handle(number: int, tokens: int) -> Handle:
    """What is kept of a turn: its own tokens, and parameters as vLLM gives them."""
    chance = random.Random(number)
    ids = array("I", (chance.randrange(VOCABULARY) for _ in range(tokens)))
    first = chance.randrange(1_000_000)
    answer = {
        "do_remote_prefill": False,
        "do_remote_decode": True,
        "remote_block_ids": [list(range(first, first + -(-tokens // BLOCK)))],
        "remote_engine_id": "pair-decode-0-0123456789abcdef",
        "remote_request_id": f"chatcmpl-{chance.getrandbits(128):032x}",
        "remote_host": "10.0.0.2",
        "remote_port": 5600,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": tokens - 1,
        "remote_blocks_expiry_time": 12345.678,
        "transfer_mode": "pull",
    }
    name = f"{chance.getrandbits(128):032x}"
    return Handle.of(
        orjson.loads(orjson.dumps(answer)),
        scope=SCOPE,
        conversation=Conversation(name=name, anchor=name),
        decode="http://10.0.0.2:8200",
        prefill="http://10.0.0.1:8100",
        held=Retained(ids.tobytes(), tokens - 1),
        block_size=BLOCK,
        deadline=1e9,
    )


async def fill(store: MemoryStore, numbers: range, tokens: int) -> None:
    """Keep one handle for each number."""
    for number in numbers:
        if evicted := await store.put(handle(number, tokens)):
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
