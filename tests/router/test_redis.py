"""The shared store on a real redis-server: races, outages, restarts, failover, and two routers."""

import asyncio
import contextlib
import itertools
import json
import logging
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pdctl.base.errors import UsageError
from pdctl.config.model import RouterLimits
from pdctl.router import handle, redis_store
from pdctl.router.giving import note_start
from pdctl.router.handle import Conversation, Handle
from pdctl.router.redis_store import RedisStore, masked
from pdctl.router.serve import serving
from pdctl.router.server import Router
from pdctl.router.settings import RouterSettings
from tests.router.fake import FakeEngine, running
from tests.router.playbook import NAMED, SCOPE, D, a_handle, ids
from tests.router.redis_server import RedisServer, needs_redis_server
from tests.router.test_server import LONG, answered, user

pytestmark = needs_redis_server
TTL = 1000.0
_names = itertools.count()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RedisServer]:
    """For tests that stop it, kill it or change its settings."""
    with RedisServer(tmp_path) as server:
        yield server


def test_the_script_and_its_caller_have_the_same_numbers() -> None:
    said = re.search(r"^local ([A-Z_, ]+) = ([\d, ]+)$", redis_store._SCRIPT, re.MULTILINE)
    assert said is not None
    names, values = (part.split(", ") for part in said.groups())
    assert dict(zip(names, map(int, values), strict=True)) == {
        "PIECE_BYTES": redis_store._PIECE_BYTES,
        "DIGEST": redis_store._DIGEST,
        "ID": redis_store._ID,
        "BATCH": redis_store._BATCH,
        "HALF_LIFE_S": handle._HALF_LIFE_S,
    }


def new_name() -> str:
    return f"n{next(_names)}"


@asynccontextmanager
async def a_store(server: RedisServer, **options: Any) -> AsyncIterator[RedisStore]:
    store = RedisStore.open(server.url, **({"name": "n", "limit": 5.0} | options))
    try:
        yield store
    finally:
        await store.close()


def kept(place: int = 1, tokens: list[int] | None = None, **more: Any) -> Handle:
    usual: dict[str, Any] = {"deadline": time.monotonic() + TTL}
    return a_handle(tokens or [1, 2, 3], [4], request=f"d{place}", **(usual | more))


async def found(store: RedisStore, prompt: tuple[int, ...] = (1, 2, 3, 4, 5)) -> list[str]:
    return sorted(one.id for one in await store.find(SCOPE, ids(*prompt), NAMED))


# Once only.

_HAMMER = """
import asyncio, json, random, sys
from pdctl.router.redis_store import RedisStore

async def main(url, name, number, seed):
    order = random.Random(seed)
    store = RedisStore.open(url, name=name, limit=30.0)
    got = []
    async def one(mine):
        for place in mine:
            handle = await store.take(f"e1/d{place}")
            if handle is not None:
                assert handle.request_id == f"d{place}", handle
                got.append(place)
    await store.totals()
    print("ready", flush=True)
    sys.stdin.readline()
    everything = list(range(number))
    lists = [order.sample(everything, number) for _ in range(4)]
    await asyncio.gather(*map(one, lists))
    await store.close()
    print(json.dumps(got))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
"""


async def test_of_many_processes_one_gets_a_handle(server: RedisServer) -> None:
    name, number = new_name(), 600
    async with a_store(server, name=name) as store:
        for place in range(number):
            await store.put(kept(place, [1, 2, place], conversation=Conversation("", "b")))
        command = [sys.executable, "-c", _HAMMER, server.url, name, str(number)]
        workers = [
            await asyncio.create_subprocess_exec(
                *command,
                str(seed),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": "."},
            )
            for seed in range(2)
        ]
        for worker in workers:
            assert worker.stdout is not None
            assert await worker.stdout.readline() == b"ready\n"
        answers = await asyncio.gather(*(worker.communicate(b"go\n") for worker in workers))
        taken = [json.loads(answer) for answer, _ in answers]
        assert sorted(itertools.chain(*taken)) == list(range(number))
        assert sum(bool(one) for one in taken) > 1, "only one of them had a chance"
    # This one's totals may be a second old, as they came with its last answer.
    async with a_store(server, name=name) as store:
        assert await store.totals() == {}


async def test_every_way_to_take_is_one_of_them(server: RedisServer) -> None:
    """Two clients take, release, evict and forget at once; each handle comes out once."""
    name = new_name()
    async with a_store(server, name=name) as left, a_store(server, name=name) as right:
        out: list[str] = []
        number = 400

        async def keep(store: RedisStore, first: int) -> None:
            for place in range(first, number, 2):
                conversation = Conversation(f"c{place % 40}", "b")
                handle = kept(place, [1, 2, place], conversation=conversation)
                out.extend(h.id for h in await store.put(handle))

        async def grab(store: RedisStore, seed: int) -> None:
            order = random.Random(seed)
            for _ in range(number):
                kind = order.randrange(8)
                if kind == 0:
                    taken = await store.take_conversation("", f"c{order.randrange(40)}")
                elif kind == 1:
                    taken = await store.take_least(D, 8)
                elif kind == 2:
                    taken = await store.take_all(lambda _, c: c.key == "c7")
                else:
                    one = await store.take(f"e1/d{order.randrange(number)}")
                    taken = [] if one is None else [one]
                out.extend(handle.id for handle in taken)

        await asyncio.gather(
            keep(left, 0), keep(right, 1), *(grab(s, n) for n, s in enumerate([left, right] * 3))
        )
        assert len(out) > number / 2
        out += [handle.id for handle in await left.take_all()]
        assert sorted(out) == sorted(f"e1/d{place}" for place in range(number))
        await right.knows(SCOPE, NAMED)  # totals come with every answer
        assert await right.totals() == {}


async def cut_off(tasks: list["asyncio.Task[Any]"]) -> None:
    """Cancel some while they run, until all are done."""
    order = random.Random(1)
    while not all(task.done() for task in tasks):
        order.choice(tasks).cancel()
        await asyncio.sleep(0.0005)
    assert 0 < sum(task.cancelled() for task in tasks) < len(tasks)


async def test_an_operation_that_was_cut_off_never_answers_another(server: RedisServer) -> None:
    errors: list[str] = []
    async with a_store(server, name=new_name(), on_error=errors.append) as store:
        for place in range(100):
            await store.put(kept(place, [1, 2, place], conversation=Conversation(f"c{place}", "b")))
        mixed = []

        async def one(place: int) -> None:
            who = Conversation(f"c{place}", "b")
            for found in await store.find(SCOPE, ids(1, 2, place, 4), who):
                if found.equal == 4 and found.id != f"e1/d{place}":
                    mixed.append((place, found))

        await cut_off([asyncio.create_task(one(place % 100)) for place in range(400)])
        assert mixed == []
        assert errors == [], "the client library gave answers to others"


async def test_who_stops_waiting_for_a_handle_leaves_it_there(server: RedisServer) -> None:
    name = new_name()
    async with a_store(server, name=name) as store:
        for place in range(300):
            await store.put(kept(place, [1, 2, place], conversation=Conversation("", "b")))
        tasks = [asyncio.create_task(store.take(f"e1/d{place}")) for place in range(300)]
        await cut_off(tasks)
        got = [handle.id for task in tasks if not task.cancelled() and (handle := task.result())]
    async with a_store(server, name=name) as store:
        left = [handle.id for handle in await store.take_all()]
        assert sorted(got + left) == sorted(f"e1/d{place}" for place in range(300))


async def test_an_answer_to_another_question_is_not_believed(server: RedisServer) -> None:
    async with a_store(server, name=new_name()) as store:
        await store.put(kept())
        real = store._client.execute_command

        async def late(*arguments: Any) -> Any:
            answer = await real(*arguments)
            return [b"0", *answer[1:]]

        store._client.execute_command = late  # type: ignore[method-assign]
        assert await store.take("e1/d1") is None


# Time.


async def test_a_deadline_holds_between_routers_whose_clocks_began_elsewhere(
    server: RedisServer,
) -> None:
    name, apart = new_name(), 5000.0
    async with (
        a_store(server, name=name) as here,
        a_store(server, name=name, clock=lambda: time.monotonic() + apart) as there,
    ):
        handle = kept()
        await here.put(handle)
        (one,) = await there.find(SCOPE, ids(1, 2, 3, 4, 5), NAMED)
        assert one.deadline - apart <= handle.deadline
        assert one.deadline - apart == pytest.approx(handle.deadline, abs=1)


async def test_a_server_whose_clock_was_set_back_makes_no_deadline_later(
    server: RedisServer,
) -> None:
    async with a_store(server, name=new_name()) as store:
        await found(store)
        assert store._moment is not None
        at, ms = store._moment
        store._moment = (at, ms + 60_000)  # what it said before
        handle = kept(deadline=time.monotonic() + 30)
        await store.put(handle)
        (one,) = await store.find(SCOPE, ids(1, 2, 3, 4, 5), NAMED)
        assert one.deadline <= handle.deadline


async def test_what_has_expired_is_neither_found_nor_taken_but_told(server: RedisServer) -> None:
    async with a_store(server, name=new_name()) as store:
        await store.put(kept(deadline=time.monotonic() + 0.2))
        assert await found(store) == ["e1/d1"]
        await asyncio.sleep(0.25)
        assert await found(store) == []
        assert await store.take("e1/d1") is None
        assert (await store.totals())[D].handles == 1
        assert [h.id for h in await store.take_expired(time.monotonic())] == ["e1/d1"]
        assert await store.totals() == {}
        late = kept(deadline=time.monotonic() - 1)
        assert await store.put(late) == [late]
        assert await store.totals() == {}


async def test_all_keys_go_by_themselves_and_none_is_left_over(server: RedisServer) -> None:
    name = new_name()
    async with a_store(server, name=name) as store:
        for place in range(5):
            await store.put(kept(place, list(range(200)), engine=f"e{place}"))
        with server.client() as client:
            keys = client.keys(f"pdctl:{{{name}}}:*")
            assert len(keys) > 15
            lives = [client.pttl(key) for key in keys]
            assert all(TTL * 1000 < life < (TTL + 601) * 1000 for life in lives)
            await store.take_all()
            (left,) = client.keys(f"pdctl:{{{name}}}:*")
            assert left.endswith(b":q")


async def test_what_went_by_itself_is_missed_nowhere(server: RedisServer) -> None:
    """No router was there for long: keys of handles are gone, what points at them is not yet."""
    name = new_name()
    async with a_store(server, name=name) as store:
        for place in range(6):
            await store.put(kept(place, [1, 2, place], conversation=Conversation(f"c{place}", "b")))
        with server.client() as client:
            for place in (1, 2, 4):
                for key in client.keys(f"pdctl:{{{name}}}:*:h:*"):
                    if f'"d{place}"'.encode() in client.hget(key, "meta"):
                        client.delete(key, key.replace(b":h:", b":t:"))
        assert await found(store, (1, 2, 4)) == ["e1/d0", "e1/d3", "e1/d5"]
        assert await store.take_conversation("", "c1") == []
        assert [h.id for h in await store.take_least(D, 1)] == ["e1/d0"]
        assert [h.id for h in await store.take_all()] == ["e1/d3", "e1/d5"]
        assert await store.take_expired(time.monotonic() + 2 * TTL) == []
        assert await store.totals() == {}


async def test_nothing_is_asked_twice() -> None:
    """Between two tries of a `put`, another router may have used the handle."""
    asked = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while (said := await reader.read(65536)) and b"EVALSHA" not in said:
                writer.write(b"+OK\r\n" * said.count(b"*"))
            asked.append(said)
        writer.close()

    async with await asyncio.start_server(hear, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        store = RedisStore.open(f"redis://127.0.0.1:{port}", limit=2.0)
        assert await store.put(kept()) == [], "nobody knows whether it was kept"
        await store.close()
    assert [said.count(b"put") for said in asked] == [1]


# Away, and back.


async def test_a_router_that_starts_again_goes_on(server: RedisServer) -> None:
    name = new_name()
    async with a_store(server, name=name) as store:
        await store.put(kept())
    async with a_store(server, name=name) as store:
        assert await store.knows(SCOPE, NAMED)
        assert await found(store) == ["e1/d1"]
        assert await store.take("e1/d1") is not None
    async with a_store(server, name=new_name()) as store:
        assert not await store.knows(SCOPE, NAMED)


async def test_a_server_that_hangs_costs_the_limit_once_and_comes_back(
    own_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pdctl.router")
    errors: list[str] = []
    async with a_store(own_server, limit=0.2, on_error=errors.append) as store:
        await store.put(kept(1))
        own_server.pause()
        began = time.monotonic()
        assert not await store.knows(SCOPE, NAMED)
        assert 0.15 < time.monotonic() - began < 1
        began = time.monotonic()
        assert await found(store) == []
        assert await store.take("e1/d1") is None
        # This one is surely not kept, so that its blocks can be given back.
        late = kept(2)
        assert await store.put(late) == [late]
        assert await store.totals() == {}
        assert await store.take_all() == []
        assert time.monotonic() - began < 0.05
        await asyncio.sleep(1.05)
        # One tries for all.
        began = time.monotonic()
        trial = asyncio.create_task(store.knows(SCOPE, NAMED))
        await asyncio.sleep(0)
        assert await found(store) == []
        assert time.monotonic() - began < 0.1
        assert not await trial
        own_server.resume()
        assert errors == ["knows", "knows"]
        await asyncio.sleep(1.05)
        assert await store.knows(SCOPE, NAMED)
        assert await found(store) == ["e1/d1"]
    said = [record.getMessage() for record in caplog.records]
    shown = f"redis://127.0.0.1:{own_server.port}/0"
    assert said == [
        f"the store {shown} is there",
        f"the store {shown} fails (no answer within 0.2 s): turns run cold",
        f"the store {shown} is back",
    ]


async def test_a_put_that_a_hanging_server_gets_to_late_has_its_old_deadline(
    own_server: RedisServer,
) -> None:
    async with a_store(own_server, limit=0.1) as store:
        await store.put(kept(1))
        own_server.pause()
        # It may be kept or not, so it is not given back either.
        assert await store.put(kept(2, deadline=time.monotonic() + 30)) == []
        await asyncio.sleep(1.5)
        own_server.resume()
        async with a_store(own_server) as other:
            left = {
                one.id: one.deadline - time.monotonic()
                for one in await other.find(SCOPE, ids(1, 2, 3, 4, 5), NAMED)
            }
            assert 27 < left["e1/d2"] < 28.5


async def test_a_server_that_is_gone_and_back_with_nothing(
    own_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_store(own_server) as store:
        await store.put(kept(1))
        own_server.kill()
        assert not await store.knows(SCOPE, NAMED)
        await asyncio.sleep(1.05)
        own_server.start()
        two = kept(2)
        assert await store.put(two) == [two], "a handle is not what to try with"
        assert not await store.knows(SCOPE, NAMED)
        assert await store.put(two) == []
        assert await found(store) == ["e1/d2"]
    assert "no handle from before is used any more" in caplog.text


async def test_a_snapshot_never_brings_back_what_was_used(own_server: RedisServer) -> None:
    async with a_store(own_server) as store:
        await store.put(kept(1))
        await store.put(kept(2))
        with own_server.client() as client:
            client.save()
        assert await store.take("e1/d1") is not None
        own_server.kill()
        own_server.start()
        with own_server.client() as client:
            assert len(client.keys("pdctl:{n}:*:h:*")) == 2, "the snapshot has them"
        # The connection is of before: the operation itself has to notice.
        assert await store.take("e1/d1") is None
        assert await store.take("e1/d2") is None
        async with a_store(own_server) as other:
            assert await found(other) == []
            assert await other.take("e1/d1") is None
            assert await other.totals() == {}
        await asyncio.sleep(1.05)
        assert await found(store) == []
        await store.put(kept(3))
        assert await found(store) == ["e1/d3"]
        assert await store.totals() == {D: (1, 3, 4)}


async def test_a_failover_never_brings_back_what_was_used(
    own_server: RedisServer, tmp_path: Path
) -> None:
    folder = tmp_path / "replica"
    folder.mkdir()
    with (
        RedisServer(folder, "--replicaof", f"127.0.0.1 {own_server.port}") as replica,
        replica.client() as client,
    ):
        await until(lambda: client.info("replication")["master_link_status"] == "up")
        async with a_store(own_server) as store:
            await store.put(kept(1))
            await until(lambda: len(client.keys("pdctl:{n}:*:h:*")) == 1)
            async with a_store(replica) as there:
                # A replica cannot be written: nothing is claimed from it …
                assert await there.take("e1/d1") is None
            client.config_set("replica-read-only", "no")
            async with a_store(replica) as there:
                # … and what its user lets be written is of another epoch.
                assert await there.take("e1/d1") is None
            own_server.pause()
            client.replicaof("NO", "ONE")
            own_server.resume()
            async with a_store(replica) as there:
                assert len(client.keys("pdctl:{n}:*:h:*")) == 1, "the replica has it"
                assert await there.take("e1/d1") is None
                assert await found(there) == []
                assert await store.take("e1/d1") is not None
                await there.put(kept(2))
            # The old master follows the new one, and is promoted again: same process, and
            # it has all that was written in the meantime.
            with own_server.client() as old:
                old.replicaof("127.0.0.1", replica.port)
                await until(lambda: old.info("replication")["master_link_status"] == "up")
                old.replicaof("NO", "ONE")
                assert len(old.keys("pdctl:{n}:*:h:*")) == 2
            assert await found(store) == []


async def until(condition: Any, limit: float = 20.0) -> None:
    async with asyncio.timeout(limit):
        while not condition():
            await asyncio.sleep(0.02)


# What a server refuses.


async def test_a_full_server_gives_the_handle_back(
    own_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[str] = []
    async with a_store(own_server, on_error=errors.append) as store:
        await store.put(kept(1))
        with own_server.client() as client:
            client.config_set("maxmemory", "1mb")
        one = kept(2)
        assert await store.put(one) == [one]
        assert await store.put(one) == [one]
        # The others are as before.
        assert await found(store) == ["e1/d1"]
        assert await store.take("e1/d1") is not None
        assert errors == ["put", "put"]
    assert caplog.text.count("refuses `put`") == 1


async def test_a_user_that_may_not_read_the_epoch_has_no_store(
    own_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with own_server.client() as client:
        client.acl_setuser(
            "half",
            enabled=True,
            passwords=["+secret"],
            keys=["pdctl:*"],
            categories=["+@all"],
            commands=["-info"],
        )
        client.acl_setuser(
            "able",
            enabled=True,
            passwords=["+secret"],
            keys=["pdctl:{n}:*"],
            categories=["+@write", "+@read", "+@scripting", "+@connection"],
            commands=["+info", "+time"],
        )
    url = own_server.url
    own_server.url = url.replace("//", "//half:secret@")
    async with a_store(own_server) as store:
        one = kept()
        assert await store.put(one) == [one]
        assert not await store.knows(SCOPE, NAMED)
    own_server.url = url.replace("//", "//able:secret@")
    async with a_store(own_server) as store:
        assert await store.put(one) == []
        assert await found(store) == ["e1/d1"]
        assert len(await store.take_all()) == 1
    own_server.url = url.replace("//", "//able:wrong@")
    async with a_store(own_server) as store:
        assert await found(store) == []
    assert "may not call INFO" in caplog.text
    assert "secret" not in caplog.text
    assert "wrong@" not in caplog.text


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/2", "redis://h:1/2"),
        ("redis://:p@h:1/2", "redis://***@h:1/2"),
        ("rediss://user:p@s@h", "rediss://***@h"),
        ("redis://h?password=p", "redis://h"),
        ("redis://[p", "***"),
    ],
)
def test_a_password_is_not_shown(url: str, shown: str) -> None:
    assert masked(url) == shown


@pytest.mark.parametrize("url", ["redis://h:port", "http://h", "redis"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is not the URL of a store"):
        RedisStore.open(url)


def test_without_the_package_the_router_says_what_to_install() -> None:
    """And without a shared store it does not need it."""
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "from pdctl.router.server import Router\n"
        "from pdctl.router.settings import RouterSettings\n"
        "from pdctl.base.errors import UsageError\n"
        "Router(RouterSettings(('http://p',), ('http://d',)))\n"
        "try: Router(RouterSettings(('http://p',), ('http://d',), store='redis://h'))\n"
        "except UsageError as error: print(error.message, error.hints)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "needs the Python package `redis`" in done.stdout
    assert "pdctl[redis]" in done.stdout


# Two routers.


class Pair:
    """Two routers of one deployment, with one fake prefill and decode, and a client."""

    def __init__(
        self,
        urls: list[str],
        routers: list[Router],
        http: aiohttp.ClientSession,
        decode: FakeEngine,
    ) -> None:
        self.urls, self.routers, self.http, self.decode = urls, routers, http, decode

    async def ask(self, which: int, messages: list[dict[str, Any]], **more: Any) -> tuple[Any, Any]:
        body = {"model": "m", "messages": messages} | more
        headers = {"x-pdctl-explain": "1"}
        url = f"{self.urls[which]}/v1/chat/completions"
        async with self.http.post(url, json=body, headers=headers) as answer:
            assert answer.status == 200
            return await answer.json(), json.loads(answer.headers["x-pdctl-turn"])


@asynccontextmanager
async def two_routers(server: RedisServer, **settings: Any) -> AsyncIterator[Pair]:
    d, p = FakeEngine("decode"), FakeEngine("prefill")
    p.peer = d
    name = new_name()
    async with running(p, d), aiohttp.ClientSession() as http, AsyncExitStack() as stack:
        routers, urls = [], []
        for _ in range(2):
            router = Router(
                RouterSettings(
                    (p.url,), (d.url,), port=0, threshold=2, store=server.url, deployment=name,
                    limits=RouterLimits(drain=1.0), **settings,
                )
            )  # fmt: skip
            urls.append(await stack.enter_async_context(serving(router)))
            await router.watcher.look()
            routers.append(router)
        yield Pair(urls, routers, http, d)


@pytest.mark.parametrize("named", [True, False])
async def test_a_conversation_goes_on_at_another_router(server: RedisServer, named: bool) -> None:
    more = {"conversation_id": "c"} if named else {}
    async with two_routers(server) as pair:
        messages = [user(LONG)]
        for turn in range(6):
            answer, told = await pair.ask(turn % 2, messages, **more)
            assert (told["outcome"], told["retries"]) == ("HIT" if turn else "MISS", [])
            messages += [answered(answer), user(f"turn {turn}")]
        state = await pair.routers[1].state()
        assert state["handles"] == 1


async def test_a_router_that_starts_forgets_what_a_dead_engine_had(server: RedisServer) -> None:
    """Decode was restarted while no router looked, or while the store was away."""
    async with two_routers(server) as pair:
        decode = pair.decode
        await pair.ask(0, [user(LONG)], conversation_id="before")
        decode.start_id = "start2"
        await pair.ask(1, [user(f"new {LONG}")], conversation_id="after")
        state = await pair.routers[1].state()
        assert (state["handles"], state["engines"][1]["engine_start"]) == (1, "start2")
        # One of before that is put back late is no sign of a restart.
        stale = kept(99, engine="start0", decode=decode.url)
        assert not await note_start(pair.routers[1].shared, stale, fresh=False)
        assert (await pair.routers[1].state())["handles"] == 1


async def test_two_routers_that_race_for_a_handle_use_it_once(server: RedisServer) -> None:
    """The fake prefill answers 500 to a handle that was used before."""
    async with two_routers(server) as pair:
        for place in range(10):
            more = {"conversation_id": f"c{place}"}
            first, _ = await pair.ask(place % 2, [user(f"{place} {LONG}")], **more)
            history = [user(f"{place} {LONG}"), answered(first)]
            asked = (pair.ask(n % 2, [*history, user(f"{n}")], **more) for n in range(6))
            told = [explanation for _, explanation in await asyncio.gather(*asked)]
            assert sum(one["outcome"] == "HIT" for one in told) == 1
            assert all(not one["retries"] for one in told)


async def test_without_its_store_a_router_answers_all_the_same(own_server: RedisServer) -> None:
    async with two_routers(own_server) as pair:
        messages = [user(LONG)]
        answer, _ = await pair.ask(0, messages, conversation_id="c")
        own_server.kill()
        messages += [answered(answer), user("more")]
        for which in (0, 1, 0):
            _, told = await pair.ask(which, messages, conversation_id="c")
            assert told["outcome"] == "MISS"
        text = pair.routers[0].shared.metrics.exposition().decode()
        assert 'pdctl_router_store_errors_total{operation="knows"} 1.0' in text
        # What could not be kept was given back, and nothing else is wrong.
        assert 'pdctl_router_releases_total{reason="evicted"}' in text


@asynccontextmanager
async def a_process(p: FakeEngine, d: FakeEngine, *options: str) -> AsyncIterator[tuple[str, Any]]:
    """A router as `pdctl router` starts it. Yields its URL and its process."""
    command = [sys.executable, "-m", "pdctl", "router", "--prefill", p.url, "--decode", d.url]
    command += ["--port", "0", "--threshold", "2", "--limit", "drain=1", *options]
    process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
    assert process.stderr is not None
    url, line = "", b""
    try:
        async with asyncio.timeout(30):
            while not url or b"Ready" not in line:
                line = await process.stderr.readline()
                assert line, "the router ended"
                if b"listens on" in line:
                    url = line.split()[-1].decode()
        rest = asyncio.create_task(process.stderr.read())
        yield url, process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await rest


async def test_what_a_killed_router_kept_another_process_goes_on_with(server: RedisServer) -> None:
    d, p = FakeEngine("decode"), FakeEngine("prefill")
    p.peer = d
    shared = ("--store", server.url, "--deployment", new_name())
    async with (
        running(p, d),
        aiohttp.ClientSession() as http,
        a_process(p, d, *shared) as (first, process),
        a_process(p, d, *shared) as (second, _),
    ):
        pair = Pair([first, second], [], http, d)
        messages = [user(LONG)]
        answer, _ = await pair.ask(0, messages)
        process.kill()
        messages += [answered(answer), user("more")]
        answer, told = await pair.ask(1, messages)
        assert (told["outcome"], told["retries"]) == ("HIT", [])
