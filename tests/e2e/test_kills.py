"""kill -9 of the router, of prefill and of decode under load, also in the middle of a D→P read.

Clients play conversations whose cold answers were asked for beforehand, and try each turn again
until it is answered. Something starts again what was killed, as systemd would; nothing else is
done. No answer may be wrong, no request may outlast its limit, and reuse has to come back.
"""

import asyncio
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import aiohttp
import psutil
import pytest

from pdctl.base.errors import PdctlError
from pdctl.base.process import RoleName
from pdctl.engine.choices import router_ttl
from pdctl.observe.turns import Turn, TurnLimits, TurnTimeoutError
from tests.e2e.harness import Pair, random_ids

ROUTER_LIMITS = {
    "reuse_base": 15, "prefill_base": 20, "first_byte": 20, "idle": 20, "total": 60, "drain": 1,
}  # fmt: skip
CLIENT = TurnLimits(connect=2.0, first_byte=75.0, idle=75.0, total=75.0)
"""More than the router may take: a client that waits longer is stuck."""
RECOVERY_S = 120.0
READ_BROKE = "NIXL transfer failure: transfer_exception"
"""What prefill says of a read that was on its way; one that could not begin is a `setup_failed`."""
LONG_TOKENS = 6000
CLIENTS = 3

Victim = Literal["router", "prefill", "decode", "decode in a read", "prefill in a read"]
Group = tuple[Victim, ...]
SHORT: tuple[Group, ...] = (("router",), ("decode in a read", "prefill"))
LONG: tuple[Group, ...] = (
    ("router",), ("decode in a read", "prefill"), ("router",), ("decode in a read",),
    ("prefill in a read",), ("router",), ("decode in a read", "prefill"), ("decode",),
)  # fmt: skip
"""What is killed in turn; those of a group are down together."""


@dataclass(frozen=True)
class Part:
    """One turn of a script, with the answer that it has to get."""

    prompt: list[int]
    answer: tuple[int, ...]


@dataclass(frozen=True)
class Attempt:
    """One request. Times are seconds of the monotonic clock."""

    sent: float
    ended: float
    said: str
    answered: bool = False
    wrong: bool = False
    stuck: bool = False
    hit: bool = False


@dataclass
class Kill:
    """What one kill did."""

    victim: Victim
    at: float
    up: float = 0.0
    evidence: str = ""
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def row(self) -> str:
        """A line of the table."""
        failed = [each for each in self.attempts if not each.answered]
        running = sum(each.sent < self.at for each in failed)
        first = min(each.ended for each in self.attempts if each.answered and each.sent > self.at)
        hit = min(each.ended for each in self.attempts if each.hit and each.sent > self.at)
        return (
            f"| {self.victim} | {running} | {len(failed) - running} | {first - self.at:.1f} "
            f"| {self.up - self.at:.1f} | {hit - self.at:.1f} | {self.evidence} |"
        )


HEAD = (
    "| killed | requests that failed: in flight | sent while it was down | seconds to an answer "
    "| until it runs again | until a HIT | seen in prefill's log |\n|---|---|---|---|---|---|---|"
)


class RouterProcess:
    """`pdctl router` as a process of its own, always on one port."""

    def __init__(self, pair: Pair, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = folder / "router.log"
        limits = [f"--limit={name}={value}" for name, value in ROUTER_LIMITS.items()]
        self._argv = [
            sys.executable, "-m", "pdctl", "router", "--prefill", pair.prefill, "--decode",
            pair.decode, "--port", str(self.port), "--ttl", str(router_ttl(pair.config)), *limits,
        ]  # fmt: skip
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """As a supervisor does, without waiting for anything."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._argv, stdout=log, stderr=log
            )

    def last_words(self) -> str:
        """The end of its log."""
        return self._log.read_text()[-8000:]

    async def kill(self) -> None:
        """-9."""
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


class Load:
    """Clients that go through their scripts again and again."""

    def __init__(self, pair: Pair, session: aiohttp.ClientSession, router: RouterProcess) -> None:
        self._pair, self._session, self._url = pair, session, router.url
        self._log = router.last_words
        self.attempts: list[Attempt] = []

    async def play(self, scripts: Sequence[Sequence[Part]], name: str) -> None:
        """One client; every round is a new conversation."""
        for number in range(10**6):
            script = scripts[number % len(scripts)]
            for part in script:
                while not (await self.ask(part, f"{name}-{number}")).answered:
                    await asyncio.sleep(1)
                await asyncio.sleep(0.3)

    async def ask(self, part: Part, name: str) -> Attempt:
        """One request, judged."""
        sent = time.monotonic()
        try:
            turn = await self._pair.send(
                self._session,
                self._url,
                prompt=part.prompt,
                max_tokens=len(part.answer),
                conversation_id=name,
                explain=True,
                limits=CLIENT,
            )
        except TurnTimeoutError as error:
            attempt = Attempt(sent, time.monotonic(), str(error), stuck=True)
        except (PdctlError, aiohttp.ClientError, OSError) as error:
            attempt = Attempt(sent, time.monotonic(), f"{type(error).__name__}: {error}")
        else:
            attempt = _judged(sent, turn, part)
        self.attempts.append(attempt)
        return attempt

    async def until_hit(self, since: float) -> None:
        """Wait until a turn that was sent after then has pulled blocks."""
        until = time.monotonic() + RECOVERY_S
        while not any(each.hit and each.sent > since for each in self.attempts):
            if time.monotonic() > until:
                said = Counter(each.said[:200] for each in self.attempts if each.sent > since)
                pytest.fail(f"no HIT in {RECOVERY_S:g} s; answers: {said}\n{self._log()}")
            await asyncio.sleep(0.1)


def _judged(sent: float, turn: Turn, part: Part) -> Attempt:
    told = turn.explanation
    ids = turn.token_ids or ()
    # What came before it broke off has to be right as well.
    wrong = ids != part.answer[: len(ids)] or (turn.ok and ids != part.answer)
    return Attempt(
        sent=sent,
        ended=time.monotonic(),
        said="ok" if turn.ok else f"{turn.status}: {turn.error_text}",
        answered=turn.ok,
        wrong=wrong,
        hit=turn.ok and told is not None and told.reused_tokens > 0,
    )


async def script(
    pair: Pair, session: aiohttp.ClientSession, seed: int, tokens: int, turns: int
) -> list[Part]:
    """A conversation by what decode alone answers."""
    parts, prompt = [], random_ids(seed, tokens)
    for number in range(turns):
        cold = await pair.cold(session, prompt=prompt, max_tokens=40)
        assert cold.ok, cold.error_text
        assert cold.token_ids is not None
        parts.append(Part(prompt, cold.token_ids))
        prompt = [*prompt, *cold.token_ids, *random_ids(seed + number + 1, 30)]
    return parts


class Reaper:
    """What is killed, and how."""

    def __init__(
        self, pair: Pair, session: aiohttp.ClientSession, router: RouterProcess, load: Load
    ) -> None:
        self._pair, self._session, self._router, self._load = pair, session, router, load

    async def kill(self, victim: Victim, long: Sequence[Part], name: str) -> Kill:
        """Kill one."""
        if victim == "router":
            kill = Kill(victim, time.monotonic())
            await self._router.kill()
            return kill
        role: RoleName = "prefill" if victim.startswith("prefill") else "decode"
        mark = self._pair.mark()
        if victim.endswith("in a read"):
            async with self._reading(long, name) as seen:
                kill = Kill(victim, time.monotonic(), evidence=seen)
                await self._end(role)
        else:
            kill = Kill(victim, time.monotonic())
            await self._end(role)
        if role == "decode":
            await asyncio.sleep(1)
            broke = READ_BROKE in self._pair.log_since(mark, "prefill")
            kill.evidence = READ_BROKE if broke else ""
        return kill

    async def _end(self, role: RoleName) -> None:
        """-9, and dead: who starts it again too early takes it for alive."""
        record, tree = self._pair.record(role), _tree(self._pair, role)
        _signal(tree, signal.SIGKILL)
        async with asyncio.timeout(10):
            while self._pair.runs(record) or any(_is_alive(each) for each in tree):
                await asyncio.sleep(0.02)

    async def start_again(self, kills: Sequence[Kill]) -> None:
        """What a supervisor does."""
        if any(kill.victim == "router" for kill in kills):
            await self._router.start()
        else:
            await asyncio.to_thread(self._pair.bring_up)
        for kill in kills:
            kill.up = time.monotonic()

    @asynccontextmanager
    async def _reading(self, long: Sequence[Part], name: str) -> AsyncIterator[str]:
        """Prefill is in the middle of a read: it waits for a decode server that stands still."""
        assert (await self._load.ask(long[0], name)).answered
        processes = _tree(self._pair, "decode")
        _signal(processes, signal.SIGSTOP)
        try:
            reads = asyncio.create_task(self._load.ask(long[1], name))
            async with asyncio.timeout(10):
                while not (await self._pair.metrics(self._session, "prefill")).waiting:
                    await asyncio.sleep(0.05)
            yield "prefill waits for the read"
        finally:
            _signal(processes, signal.SIGCONT)
        await reads


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param(SHORT, id="short"),
        pytest.param(LONG, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
async def test_kills_under_load(
    pair: Pair,
    session: aiohttp.ClientSession,
    tmp_path: Path,
    groups: Sequence[Group],
) -> None:
    seed = 1000 * len(groups)
    scripts = [await script(pair, session, seed + 10 * n, 400, 4) for n in range(6)]
    longs = [await script(pair, session, seed + 500 + 10 * n, LONG_TOKENS, 2) for n in range(6)]
    router = RouterProcess(pair, tmp_path)
    load = Load(pair, session, router)
    reaper = Reaper(pair, session, router, load)
    await router.start()
    clients = [
        asyncio.create_task(load.play(scripts[place::CLIENTS], f"client-{place}"))
        for place in range(CLIENTS)
    ]
    kills = []
    try:
        await load.until_hit(0.0)
        for number, group in enumerate(groups):
            known = len(load.attempts)
            long = longs[number % len(longs)]
            down = [await reaper.kill(victim, long, f"long-{number}") for victim in group]
            await reaper.start_again(down)
            await load.until_hit(down[0].up)
            for kill in down:
                kill.attempts = load.attempts[known:]
            kills += down
    finally:
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        await router.kill()

    print("\n" + "\n".join([HEAD, *(kill.row for kill in kills)]))
    print(f"{len(load.attempts)} requests, {sum(each.answered for each in load.attempts)} answered")
    assert [each for each in load.attempts if each.wrong] == []
    assert [each for each in load.attempts if each.stuck] == []
    in_a_read = [kill for kill in kills if kill.victim == "decode in a read"]
    assert all(kill.evidence == READ_BROKE for kill in in_a_read)


def _tree(pair: Pair, role: RoleName) -> list[psutil.Process]:
    ref = pair.record(role).ref
    assert ref is not None
    server = psutil.Process(ref.pid)
    return [server, *server.children(recursive=True)]


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _signal(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            os.kill(process.pid, number)
