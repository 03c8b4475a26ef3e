"""Running the cells of a bench on engines that run: warm-up, legs in turn, settling in between."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import aiohttp

from pdctl.base.errors import BadAnswerError, UnreachableError
from pdctl.base.events import Listener, Note, StepDone, StepProgress
from pdctl.base.facts import PairFacts
from pdctl.bench.files import Folder
from pdctl.bench.play import Asking, Play
from pdctl.bench.rows import CellRow, Leg, Phase, Reuse, TurnRow, cell_key
from pdctl.bench.settle import Switch, settle
from pdctl.bench.workload import Script, Shape, capped, scripts, traced
from pdctl.observe.counters import Counted, Look, grown, look
from pdctl.observe.endpoints import Endpoints
from pdctl.observe.facts import gather
from pdctl.observe.http import ask_json
from pdctl.observe.reuse import read_setting
from pdctl.observe.turns import Turn, TurnLimits, TurnRequest, send_turn
from pdctl.observe.verify import VerifyOptions, random_words, verify

_POOL_WORDS = 4000
_READY_S = 60.0
_REUSED = ("HIT", "PARTIAL")


@dataclass(frozen=True)
class Settings:
    """What one run does.

    Attributes:
        legs: in the order of the first repeat; every second repeat turns it round.
        warmup: conversations of two turns in each leg before anything is measured, the first of
            the shortest length, the next of the second, and so on.
        seed: of all content.
        trace: requests of a log, played in place of the shape; None: the shape.
        speed: of the trace.
        max_requests: of the trace; None: all.
        settle_s: how long decode may take to hold nothing any more.
        max_s: no cell begins that would probably end later than this after the start.
        limits: of each turn.
    """

    shape: Shape = field(default_factory=Shape)
    legs: tuple[Reuse, ...] = ("off", "on")
    repeats: int = 3
    warmup: int = 1
    seed: str = "0"
    trace: Sequence[Mapping[str, Any]] | None = field(default=None, repr=False)
    speed: float = 1.0
    max_requests: int | None = None
    settle_s: float = 60.0
    max_s: float | None = None
    limits: TurnLimits = field(
        default_factory=lambda: TurnLimits(first_byte=900.0, idle=300.0, total=3600.0)
    )


@dataclass(frozen=True)
class Cell:
    """What is to be measured next."""

    leg: Leg
    length: int | None
    repeat: int

    @property
    def key(self) -> str:
        """Its name."""
        return cell_key(self.leg, self.length, self.repeat)


def cells_of(
    settings: Settings, lengths: Sequence[int | None], caching: bool | None
) -> Iterator[Cell]:
    """All cells in the order in which they are measured: legs beside each other in time."""
    for repeat in range(1, settings.repeats + 1):
        legs = settings.legs if repeat % 2 else settings.legs[::-1]
        for length in lengths:
            for reuse in legs:
                yield Cell(Leg(reuse, caching), length, repeat)


class Bench:
    """Measures on the engines of `endpoints`, through their router.

    Args:
        admin_key: for the router's switch, where it wants one.
        deadline: on the monotonic clock; None: none.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        settings: Settings,
        folder: Folder,
        *,
        admin_key: str | None = None,
        listen: Listener,
        deadline: float | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._endpoints, self._settings, self._folder = endpoints, settings, folder
        self._admin_key, self._listen, self._sleep = admin_key, listen, sleep
        self._deadline = deadline
        self._longest: dict[tuple[str, int | None], float] = {}

    async def run(self) -> None:
        """Measure what the folder does not have yet.

        Raises:
            BadAnswerError: `verify` fails, or the leg with reuse reuses nothing.
            PdctlError: the router has no switch, or something does not answer.
        """
        router = self._endpoints.router
        if router is None:
            raise UnreachableError(
                "this deployment has no router, and the bench goes through it",
                where=self._endpoints.name,
                hints=["pdctl up"],
            )
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            switch = Switch(session, router.url, self._admin_key)
            before = await read_setting(session, router.url, self._admin_key)
            try:
                await switch.turn(1.0)
                await self._prove()
                await self._measure(session, switch)
            finally:
                await switch.put(before)

    async def _prove(self) -> None:
        # An engine that was restarted for this has to be proven by the router first.
        options = VerifyOptions(chat=False, ready_s=_READY_S)
        report = await verify(self._endpoints, options, listen=self._listen)
        if not report.ok:
            raise BadAnswerError(
                f"nothing is measured, because reuse is not proven: {report.reason}",
                where=report.side,
                detail=report.proved,
                hints=[*report.hints, "pdctl verify", "pdctl doctor"],
            )
        self._listen(StepProgress("bench-proof", "reuse is proven by two turns"))

    async def _measure(self, session: aiohttp.ClientSession, switch: Switch) -> None:
        facts = await gather(session, self._endpoints)
        context = _context(facts)
        caching = _caching(facts)
        lengths, words = self._lengths(context)
        model = next((each.model for each in facts.role("decode") if each.model), "")
        content = await self._content(session, model)
        self._folder.about.setdefault("groups", []).append(_seen(facts))
        self._note(words)
        settled = await self._settle(switch)
        self._listen(StepDone("settle", "decode holds nothing", settled, ""))
        todo = [
            cell
            for cell in cells_of(self._settings, lengths, caching)
            if cell.key not in self._folder.done()
        ]
        await self._warm_up(session, switch, content, lengths, caching, todo)
        for number, cell in enumerate(todo):
            if self._too_late(cell):
                left = len(todo) - number
                self._note([f"{left} of {len(todo)} cells were left out: `--max-time` is over"])
                return
            await self._cell(session, switch, content, cell, context, (number + 1, len(todo)))

    def _lengths(self, context: int | None) -> tuple[tuple[int | None, ...], list[str]]:
        if self._settings.trace is not None:
            return (None,), []
        return capped(self._settings.shape, context)

    def _note(self, words: Sequence[str]) -> None:
        notes = self._folder.about.setdefault("notes", [])
        for text in words:
            if text not in notes:
                self._listen(Note(text, warning=True))
                notes.append(text)
        self._folder.write_about()

    async def _content(self, session: aiohttp.ClientSession, model: str) -> Asking:
        """What all turns have in common; ids of words that the seed alone decides."""
        words = random_words(Random(self._settings.seed), _POOL_WORDS)
        url = self._endpoints.role("prefill")[0].url + "/tokenize"
        body = {"model": model, "prompt": words, "add_special_tokens": False}
        answer = await ask_json(
            session, url, method="POST", body=body, key=self._endpoints.engine_key, timeout=60.0
        )
        pool = answer.get("tokens")
        if not isinstance(pool, list) or not pool:
            raise UnreachableError("/tokenize gave no tokens", where=url)
        chat = self._settings.shape.chat
        return Asking(
            cell="",
            attempt=0,
            model=model,
            salt="",
            pool=pool,
            key=self._endpoints.router_key,
            words=words.split() if chat else (),
            tokens_a_word=len(pool) / _POOL_WORDS,
        )

    # --- one cell -----------------------------------------------------------------------

    async def _warm_up(
        self,
        session: aiohttp.ClientSession,
        switch: Switch,
        content: Asking,
        lengths: Sequence[int | None],
        caching: bool | None,
        todo: Sequence[Cell],
    ) -> None:
        """Whatever is made at first use, such as compiled kernels and connections, is made now."""
        if not todo:
            return
        shape = replace(self._settings.shape, conversations=1, turns=2, rate=None)
        known = sorted(length for length in lengths if length is not None) or [1000]
        for number in range(self._settings.warmup):
            length = known[number % len(known)]
            for reuse in self._settings.legs:
                self._listen(StepProgress(f"warm-up-{number}", f"warming up at {length:,} tokens"))
                await switch.turn(1.0 if reuse == "on" else 0.0)
                asking = replace(content, salt=_salt())
                plan = scripts(shape, length, f"{self._settings.seed}/warm-up/{reuse}/{number}")
                play = self._play(session, plan, asking, lambda row: None)
                await play.later_turns(1)
        await self._settle(switch)

    async def _cell(
        self,
        session: aiohttp.ClientSession,
        switch: Switch,
        content: Asking,
        cell: Cell,
        context: int | None,
        number: tuple[int, int],
    ) -> None:
        plan = self._plan(cell, context)
        measuring = _Measuring(cell, self._folder.attempt(cell.key))
        asking = replace(content, cell=cell.key, attempt=measuring.attempt, salt=_salt())
        await switch.turn(1.0 if cell.leg.reuse == "on" else 0.0)
        with_rows = self._noting(measuring)
        play = self._play(session, plan, asking, with_rows)
        async with self._kept_if_interrupted(measuring):
            await self._phases(session, play, measuring)
        settled = await self._settle(switch)
        self._folder.add_cell(measuring.row(complete=True, settled_s=settled))
        self._longest[(cell.leg.label, cell.length)] = measuring.seconds + settled
        what = f"{number[0]} of {number[1]}: {cell.leg.words}, {_length_words(cell)}"
        self._listen(StepDone(cell.key, what, measuring.seconds, measuring.words()))
        self._judge(measuring)

    def _plan(self, cell: Cell, context: int | None) -> list[Script]:
        settings = self._settings
        seed = f"{settings.seed}/{cell.key}"
        if settings.trace is None:
            assert cell.length is not None
            return scripts(settings.shape, cell.length, seed)
        plan, words = traced(
            settings.trace,
            seed=seed,
            context=context,
            speed=settings.speed,
            answer=settings.shape.answer,
            limit=settings.max_requests,
        )
        self._note(words)
        return plan

    def _play(
        self,
        session: aiohttp.ClientSession,
        plan: Sequence[Script],
        asking: Asking,
        note: Callable[[TurnRow], None],
    ) -> Play:
        assert self._endpoints.router is not None
        url = self._endpoints.router.url

        async def send(request: TurnRequest) -> Turn:
            return await send_turn(
                session, url, request, limits=self._settings.limits, keep_chunks=False
            )

        return Play(plan, asking, send, note, gap_s=self._settings.shape.gap_s, sleep=self._sleep)

    def _noting(self, measuring: "_Measuring") -> Callable[[TurnRow], None]:
        def note(row: TurnRow) -> None:
            measuring.rows.append(row)
            self._folder.add_turn(row)

        return note

    async def _phases(
        self, session: aiohttp.ClientSession, play: Play, measuring: "_Measuring"
    ) -> None:
        """First turns of all conversations, then the rest: only so do counters tell them apart."""
        shape = self._settings.shape
        begin = await look(session, self._endpoints)
        measuring.saw(begin)
        if self._settings.trace is not None or shape.rate is not None:
            await play.as_due()
            measuring.phase("all", begin, await look(session, self._endpoints))
            return
        await play.first_turns(shape.clients)
        middle = await look(session, self._endpoints)
        measuring.phase("first", begin, middle)
        await play.later_turns(shape.clients)
        measuring.phase("later", middle, await look(session, self._endpoints))

    @asynccontextmanager
    async def _kept_if_interrupted(self, measuring: "_Measuring") -> AsyncIterator[None]:
        try:
            yield
        except BaseException:
            self._folder.add_cell(measuring.row(complete=False, settled_s=None))
            raise

    async def _settle(self, switch: Switch) -> float:
        return await settle(
            self._endpoints,
            switch,
            limit=self._settings.settle_s,
            listen=self._listen,
            sleep=self._sleep,
        )

    def _judge(self, measuring: "_Measuring") -> None:
        """A leg that is silently something else is no measurement."""
        if failed := [row for row in measuring.rows if row.error]:
            self._note([f"{len(failed)} turns failed in {measuring.cell.key}: {failed[0].error}"])
        later = [row for row in measuring.rows if row.turn > 1 and not row.error]
        if not later:
            return
        reused = [row for row in later if row.outcome in _REUSED]
        reasons = sorted({f"{row.outcome} {row.reason}" for row in later if row not in reused})
        where = measuring.cell.key
        if measuring.cell.leg.reuse == "off" and reused:
            raise BadAnswerError(
                f"the leg without reuse has reused in {len(reused)} of {len(later)} turns",
                where=where,
                hints=["somebody else has switched reuse on: `pdctl reuse` shows it"],
            )
        if measuring.cell.leg.reuse == "on" and not reused:
            raise BadAnswerError(
                "the leg with reuse has reused nothing, so it would be another leg without",
                where=where,
                detail=[f"the router said: {', '.join(reasons)}"],
                hints=["pdctl verify", "pdctl doctor"],
            )

    def _too_late(self, cell: Cell) -> bool:
        if self._deadline is None:
            return False
        known = self._longest.get((cell.leg.label, cell.length))
        rates = [seconds / (length or 1) for (_, length), seconds in self._longest.items()]
        guess = known if known is not None else max(rates, default=0.0) * (cell.length or 1)
        return time.monotonic() + guess > self._deadline


@dataclass
class _Measuring:
    """A cell while it runs."""

    cell: Cell
    attempt: int
    rows: list[TurnRow] = field(default_factory=list)
    counted: dict[str, dict[str, dict[str, float | None]]] = field(default_factory=dict)
    pinned: int | None = None
    room: int | None = None
    began_at: float = field(default_factory=time.time)
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None

    def saw(self, seen: Look) -> None:
        known = [each for each in (self.pinned, seen.pinned_tokens) if each is not None]
        self.pinned = max(known, default=None)
        self.room = seen.room_tokens
        self.ended = time.monotonic()

    def phase(self, name: Phase, before: Look, after: Look) -> None:
        self.saw(after)
        pairs: dict[str, tuple[Counted, Counted]] = {
            "prefill": (before.prefill, after.prefill),
            "decode": (before.decode, after.decode),
        }
        self.counted[name] = {role: grown(*pair).as_dict() for role, pair in pairs.items()}

    @property
    def seconds(self) -> float:
        return (self.ended or time.monotonic()) - self.began

    def row(self, *, complete: bool, settled_s: float | None) -> CellRow:
        answered = [row for row in self.rows if not row.error]
        first = sum(row.turn == 1 for row in answered)
        return CellRow(
            key=self.cell.key,
            attempt=self.attempt,
            reuse=self.cell.leg.reuse,
            caching=self.cell.leg.caching,
            length=self.cell.length,
            repeat=self.cell.repeat,
            complete=complete,
            began_at=self.began_at,
            seconds=round(self.seconds, 3),
            counted=self.counted,
            turns={"first": first, "later": len(answered) - first, "all": len(answered)},
            pinned_tokens=self.pinned,
            room_tokens=self.room,
            settled_s=None if settled_s is None else round(settled_s, 3),
        )

    def words(self) -> str:
        from pdctl.bench.stats import median

        later = [r.ttft_ms for r in self.rows if r.turn > 1 and r.ttft_ms is not None]
        if not later:
            return f"{len(self.rows)} turns"
        return f"{len(self.rows)} turns, TTFT of later turns {median(later):,.0f} ms"


def _length_words(cell: Cell) -> str:
    return "trace" if cell.length is None else f"{cell.length:,} tokens"


def _salt() -> str:
    return f"pdctl-bench-{uuid.uuid4().hex}"


def _context(facts: PairFacts) -> int | None:
    known = [each.max_model_len for each in facts.engines if each.max_model_len]
    return min(known, default=None)


def _caching(facts: PairFacts) -> bool | None:
    said = {each.metrics.prefix_caching for each in facts.role("prefill") if each.metrics}
    return said.pop() if len(said) == 1 else None


def _seen(facts: PairFacts) -> dict[str, Any]:
    """The engines as they were measured."""
    return {
        "prefix_caching": _caching(facts),
        "engines": [
            {
                "name": each.name,
                "host": each.host,
                "vllm": each.version,
                "model": each.model,
                "max_model_len": each.max_model_len,
                "block_size": each.metrics.block_size if each.metrics else None,
                "num_blocks": each.metrics.num_blocks if each.metrics else None,
            }
            for each in facts.engines
        ],
        "router": facts.router.version if facts.router else None,
    }
