"""What it costs the router to find a handle by its tokens; medians of one run.

usage: python benchmarks/router_match.py [HANDLES]

Keeps HANDLES conversations that share a system prompt, then asks for the next turn of some, and
for new conversations with that system prompt. Times are of everything between the prompt's ids and
the answer which handle to use: packing, the look-up, and the comparison of tokens.
"""

import asyncio
import statistics
import sys
import time
from array import array

from router.handles import SCOPE, conversation, handle, ids

from pdctl.router import match
from pdctl.router.memory import MemoryStore

SYSTEM = 4000
ROUNDS = 30


async def look(store: MemoryStore, prompt: bytes, place: int) -> tuple[float, int]:
    """Seconds, and the tokens that could be reused."""
    unpacked = array("I", prompt).tolist()
    began = time.perf_counter()
    packed = match.packed(unpacked)
    assert packed is not None
    found = await store.find(SCOPE, packed, conversation(place))
    best = max(found, key=lambda one: min(one.equal, one.certain))
    return time.perf_counter() - began, best.equal


async def measure(length: int, handles: int) -> None:
    system = ids(0, SYSTEM)
    store = MemoryStore(max_bytes=2**40)
    own = [system + ids(place + 1, length - SYSTEM) for place in range(ROUNDS)]
    for place, tokens in enumerate(own):
        await store.put(handle(place, tokens))
    for place in range(ROUNDS, handles):
        await store.put(handle(place, system + ids(place + 1, 200)))
    next_turns = [await look(store, own[p] + ids(10**7 + p, 50), p) for p in range(ROUNDS)]
    new = [
        await look(store, system + ids(2 * 10**7 + p, length - SYSTEM), handles + p)
        for p in range(ROUNDS)
    ]
    assert all(equal == length for _, equal in next_turns)
    assert all(SYSTEM <= equal < SYSTEM + 10 for _, equal in new)
    for name, taken in (("next turn", next_turns), ("new chat", new)):
        median = statistics.median(seconds for seconds, _ in taken) * 1000
        worst = max(seconds for seconds, _ in taken) * 1000
        print(f"{length:>8} tokens  {name:<10} {median:6.2f} ms  worst {worst:6.2f} ms")


def main() -> None:
    handles = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    print(f"{handles} conversations retained that share {SYSTEM} tokens")
    for length in (32_000, 128_000):
        asyncio.run(measure(length, handles))


if __name__ == "__main__":
    main()
