"""What it costs the router to find a handle by its tokens; medians of one run.

usage: python benchmarks/router_match.py [HANDLES]

Keeps HANDLES conversations that share a system prompt, then asks for the next turn of some, and
for new conversations with that system prompt. Times are of everything between the prompt's ids and
the answer which handle to use: packing, the look-up, and the comparison of tokens.
"""

import asyncio
import random
import statistics
import sys
import time

from pdctl.router import match
from pdctl.router.handle import Conversation, Handle, Scope
from pdctl.router.memory import MemoryStore

SCOPE = Scope("", "m", "")
SYSTEM = 4000
ROUNDS = 30
BLOCK = 16


def ids(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(150_000), k=count)


def handle(place: int, tokens: list[int]) -> Handle:
    packed = match.packed(tokens)
    assert packed is not None
    params = {
        "do_remote_decode": True,
        "remote_block_ids": [list(range(len(tokens) // BLOCK + 1))],
        "remote_engine_id": "e",
        "remote_request_id": f"r{place}",
        "remote_host": "10.0.0.2",
        "remote_port": 5600,
    }
    return Handle.of(
        params,
        scope=SCOPE,
        conversation=Conversation("", f"a{place}"),
        decode="http://d:1",
        held=match.Retained(packed, len(tokens) - 1),
        block_size=BLOCK,
        deadline=1e12,
    )


async def look(store: MemoryStore, prompt: list[int], place: int) -> tuple[float, int]:
    """Seconds, and the tokens that could be reused."""
    began = time.perf_counter()
    packed = match.packed(prompt)
    assert packed is not None
    found = await store.find(SCOPE, packed, Conversation("", f"a{place}"))
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
        await look(store, system + ids(2 * 10**7 + p, length - SYSTEM), -1) for p in range(ROUNDS)
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
