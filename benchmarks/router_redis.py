"""What handles cost that routers share: memory, and time by operation; medians of one run.

usage: python benchmarks/router_redis.py [HANDLES]

Starts a redis-server of its own on a socket in a temporary folder, without persistence. HANDLES
short conversations and some long ones share a system prompt. Times are what a router waits, from
the prompt's packed ids to an answer, so with the client library and the digests of the prompt;
what the server itself needs is its own count, over all operations.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

import redis
from router.handles import SCOPE, conversation, handle, ids

from pdctl.router.handle import Conversation
from pdctl.router.redis_store import RedisStore, digests

SYSTEM = 4000
ROUNDS = 30


class Timed:
    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    async def __call__(self, name: str, work: Awaitable[Any]) -> Any:
        began = time.perf_counter()
        result = await work
        self.seconds.setdefault(name, []).append(time.perf_counter() - began)
        return result

    def show(self, length: int) -> None:
        for name, taken in self.seconds.items():
            ms = statistics.median(taken) * 1000
            print(f"{length:>8} tokens  {name:<10} {ms:6.2f} ms  worst {max(taken) * 1000:6.2f} ms")


async def measure(url: str, server: redis.Redis, length: int, handles: int) -> None:
    server.flushall()
    store = RedisStore.open(url, limit=60)
    system = ids(0, SYSTEM)
    for place in range(ROUNDS, handles):
        await store.put(handle(place, system + ids(place + 1, 200)))
    own = [system + ids(place + 1, length - SYSTEM) for place in range(ROUNDS)]
    before = server.info("memory")["used_memory"]
    for place, tokens in enumerate(own):
        await store.put(handle(place, tokens))
    memory = (server.info("memory")["used_memory"] - before) / ROUNDS / 1024
    server.config_resetstat()
    timed, cpu = Timed(), time.process_time()
    for place, tokens in enumerate(own):
        own_one = conversation(place)
        await timed("knows", store.knows(SCOPE, own_one))
        digests.cache_clear()
        prompt = tokens + ids(10**7 + place, 50)
        found = await timed("next turn", store.find(SCOPE, prompt, own_one))
        best = max(found, key=lambda one: one.equal)
        assert best.equal == length
        taken = await timed("take", store.take(best.id))
        digests.cache_clear()
        await timed("put", store.put(taken))
    cpu = (time.process_time() - cpu) / ROUNDS
    calls = server.info("commandstats")["cmdstat_evalsha"]["usec_per_call"]
    for place in range(ROUNDS):
        prompt = system + ids(2 * 10**7 + place, length - SYSTEM)
        found = await timed("new chat", store.find(SCOPE, prompt, Conversation()))
        assert all(SYSTEM <= one.equal < SYSTEM + 10 for one in found)
    timed.show(length)
    print(f"{length:>8} tokens  {memory:.0f} KiB of memory a handle, {cpu * 1000:.1f} ms of the")
    print(f"{'':>16} router's CPU a turn, {calls:.0f} µs of the server an operation")
    await store.close()


def main() -> None:
    handles = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    with tempfile.TemporaryDirectory() as folder:
        socket = f"{folder}/redis.sock"
        command = ["redis-server", "--port", "0", "--unixsocket", socket, "--save", ""]
        with subprocess.Popen([*command, "--dir", folder], stdout=subprocess.DEVNULL) as process:
            server = redis.Redis(unix_socket_path=socket)
            for _ in range(100):
                with suppress(redis.RedisError):
                    server.ping()
                    break
                time.sleep(0.05)
            print(f"redis-server {server.info('server')['redis_version']}, {handles} conversations")
            for length in (24_000, 32_000, 128_000):
                asyncio.run(measure(f"unix://{socket}", server, length, handles))
            process.terminate()


if __name__ == "__main__":
    main()
