"""Handles that several routers share, in Redis or Valkey.

Every operation is one call of one script, and so atomic: of all routers one gets a handle. The
script says which epoch the server is in, a new one after each start, failover and change of its
data set, and does nothing in any other than the caller's. Keys of an old epoch are never looked at
again: a snapshot may hold handles that were used since.

A deadline is sent as the server's time, and as what is left of it; the earlier counts. So neither a
slow network nor a server that was stopped for a while can make it later.
"""

import asyncio
import hashlib
import itertools
import logging
import struct
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import orjson

from pdctl.base.errors import UsageError
from pdctl.router import match
from pdctl.router.handle import Conversation, Handle, Scope, worth
from pdctl.router.match import Retained
from pdctl.router.store import Found, Total

try:
    import redis.asyncio as redis
    from redis import exceptions as failures
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as missing:
    raise UsageError(
        "a store in Redis needs the Python package `redis`",
        where="--store",
        hints=["python -m pip install 'pdctl[redis]'"],
    ) from missing

if TYPE_CHECKING:
    Client = redis.Redis

log = logging.getLogger("pdctl.router")

_SCRIPT = Path(__file__).with_suffix(".lua").read_text()
_SHA = hashlib.sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest()
# Routers whose scripts or values differ have a store each. The number is of what `_meta` writes.
_FORMAT = f"1-{_SHA[:8]}"
# As in the script.
_PIECE_BYTES = 512
_HEAD = struct.Struct(">IIII")
_DIGEST = 8
_ID = 24
_ID_BYTES = 4
_BATCH = 64
# Best of what is found, namesakes apart.
_BEST = 8
# After a failure nothing is asked for so long, so that not every request waits for the limit.
_SKIP_S = 1.0
# Totals that came with another answer are good for so long.
_FRESH_S = 1.0
_TELL_AGAIN_S = 60.0
_CONNECTIONS = 32
# What a server answers before a script has written anything.
_NOT_DONE = ("OOM", "READONLY", "LOADING", "MISCONF", "MASTERDOWN", "BUSY", "NOINFO")
_NO_EPOCH = "-"


class _Failed(Exception):  # noqa: N818 - never leaves this module
    """The store did not do what it was asked, or nobody knows whether it did.

    Attributes:
        not_done: it surely did not.
    """

    def __init__(self, *, not_done: bool) -> None:
        super().__init__()
        self.not_done = not_done


_Argument = str | bytes | int


class _Reply(NamedTuple):
    """What the script answered.

    Attributes:
        sent: router clock before it was asked.
    """

    result: Any
    sent: float


class _Seen(NamedTuple):
    """A handle as the script shows it."""

    meta: bytes
    left_ms: int
    equal: int
    namesake: bool

    @classmethod
    def read(cls, item: bytes, prompt: bytes) -> "_Seen":
        """Compare the piece of its tokens that comes after those of equal digests."""
        meta_size, left_ms, pieces, namesake = _HEAD.unpack_from(item)
        piece = _HEAD.size + meta_size
        at = pieces * _PIECE_BYTES
        equal = at // _ID_BYTES + match.common_prefix(item[piece:], prompt[at : at + _PIECE_BYTES])
        meta = item[_HEAD.size : piece]
        return cls(meta, left_ms, equal, bool(namesake))

    def found(self, sent: float) -> Found:
        """For the router, whose clock was `sent` when it asked."""
        handle = _handle((self.meta, b"", self.left_ms, b""), sent)
        return Found.of(handle, b"")._replace(equal=self.equal)


class RedisStore:
    """Handles in a Redis or Valkey server that routers share.

    Args:
        name: the deployment's; routers of one name share handles.
        shown: the server's URL without its password, for the log.
        limit: seconds an operation may take.
        max_handles: when there are more, the least worthy goes. How much memory the server has is
            its own `maxmemory`.
        max_branches: handles that one named conversation may have; the oldest goes.
        on_error: is told the operation that failed.
    """

    def __init__(
        self,
        client: "Client",
        *,
        name: str = "default",
        shown: str = "redis",
        limit: float = 0.5,
        max_handles: int = 100_000,
        max_branches: int = 4,
        clock: Callable[[], float] = time.monotonic,
        on_error: Callable[[str], None] = lambda operation: None,
    ) -> None:
        self._client = client
        # One hash tag, so that all keys are in one slot of a cluster.
        self._prefix = f"pdctl:{{{name}}}:{_FORMAT}:"
        self._shown = shown
        self._limit = limit
        self._max_handles, self._max_branches = max_handles, max_branches
        self._clock = clock
        self._on_error = on_error
        self._numbers = itertools.count()
        self._epoch = _NO_EPOCH
        # Router clock and server's milliseconds of one and the same moment, or a little later.
        self._moment: tuple[float, int] | None = None
        self._totals: dict[str, Total] = {}
        self._totals_at = float("-inf")
        self._skip_until = float("-inf")
        self._down = False
        self._told: dict[str, float] = {}
        self._undoing: set[asyncio.Future[None]] = set()

    @classmethod
    def open(cls, url: str, **options: Any) -> "RedisStore":
        """For `redis://`, `rediss://` (TLS), `valkey://` and `valkeys://` URLs.

        Raises:
            UsageError: when the URL is none.
        """
        shown = masked(url)
        scheme, sign, rest = url.partition("://")
        scheme = {"valkey": "redis", "valkeys": "rediss"}.get(scheme, scheme)
        try:
            pool = redis.BlockingConnectionPool.from_url(
                f"{scheme}{sign}{rest}",
                max_connections=_CONNECTIONS,
                timeout=None,
                protocol=2,
                # A second try could keep a handle that another router has used in between.
                retry=Retry(NoBackoff(), 0),
            )
        except ValueError as error:
            raise UsageError(
                f"`{shown}` is not the URL of a store",
                where="--store",
                expected="memory, or redis://host:port/db",
            ) from error
        return cls(redis.Redis.from_pool(pool), shown=shown, **options)

    async def put(self, handle: Handle) -> list[Handle]:
        """Keep a handle. It comes back at once if it surely was not kept.

        When that is not sure, it is left alone: another router may have it.
        """
        try:
            reply = await self._ask("put", lambda: self._of(handle))
        except _Failed as failed:
            return [handle] if failed.not_done else []
        return [handle] if reply.result == 0 else _handles(reply.result, reply.sent)

    async def knows(self, scope: Scope, conversation: Conversation) -> bool:
        """By name in any scope of the tenant, or by beginning in this one."""
        reply = await self._try(
            "knows",
            _key(scope.tenant, conversation.key) if conversation.name else "",
            _key(*_parts(scope), conversation.anchor),
        )
        return reply is not None and reply.result == 1

    async def find(self, scope: Scope, prompt: bytes, conversation: Conversation) -> list[Found]:
        """The neighbours of the prompt, and the latest of its own conversation.

        The longest common prefix is among them, unless it ends within a piece of 128 tokens in
        which more than 32 others end too.
        """
        reply = await self._try(
            "find",
            _key(*_parts(scope)),
            _key(scope.tenant, conversation.key),
            digests(prompt),
        )
        if reply is None:
            return []
        seen = [_Seen.read(item, prompt) for item in reply.result]
        seen.sort(key=lambda one: one.equal, reverse=True)
        near = [one for one in seen if not one.namesake][:_BEST]
        return [one.found(reply.sent) for one in [*near, *(one for one in seen if one.namesake)]]

    async def take(self, handle_id: str) -> Handle | None:
        """None also for one that has expired meanwhile. Who stops waiting gets none."""
        taking = asyncio.ensure_future(self._take(handle_id))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            undoing = asyncio.ensure_future(self._undo(taking))
            self._undoing.add(undoing)
            undoing.add_done_callback(self._undoing.discard)
            raise

    async def take_conversation(self, tenant: str, key: str) -> list[Handle]:
        """All of its branches, without their tokens."""
        return await self._all("take_conversation", _key(tenant, key))

    async def take_least(self, decode: str, tokens: int) -> list[Handle]:
        """The least worthy, without their tokens, until their blocks make so many."""
        taken: list[Handle] = []
        while tokens > 0:
            reply = await self._try("take_least", decode, tokens)
            if reply is None or not reply.result[0]:
                break
            taken += _handles(reply.result[0], reply.sent)
            tokens -= reply.result[1]
        return taken

    async def take_all(
        self, wanted: Callable[[str, Conversation], bool] = lambda tenant, conversation: True
    ) -> list[Handle]:
        """Every handle that is wanted, without its tokens."""
        taken: list[Handle] = []
        first = 0
        while (listed := await self._try("list", first)) is not None and listed.result:
            ids = [name for name, meta, _ in listed.result if meta and wanted(*_whose(meta))]
            if ids and (reply := await self._try("take_these", *ids)) is not None:
                taken += _handles(reply.result, reply.sent)
            # Those of one moment may fill a batch; what comes twice does no harm.
            first = max(first + 1, int(listed.result[-1][2]))
            if len(listed.result) < _BATCH:
                break
        return taken

    async def take_expired(self, now: float) -> list[Handle]:
        """Those past their deadline, without their tokens."""
        return await self._all("take_expired", int((now - self._clock()) * 1000))

    async def free(self, ids: Sequence[str]) -> set[str]:
        """Those that are there; none while the store cannot be asked."""
        reply = await self._try("free", *map(_id, ids))
        if reply is None:
            return set()
        return {name for name, there in zip(ids, reply.result, strict=True) if there}

    async def extend(self, handle_id: str, deadline: float, renewed: float) -> bool:
        """False also when nobody knows: then it has its old deadline, or the new one that is true.

        The deadline is sent as `put` sends it, so that it cannot become later on the way.
        """

        def arguments() -> list[_Argument]:
            left = int((deadline - self._clock()) * 1000)
            return [_id(handle_id), self._server_ms(deadline), left, repr(renewed)]

        try:
            reply = await self._ask("extend", arguments)
        except _Failed:
            return False
        return bool(reply.result)

    async def forget_engine(self, decode: str, keep_start: str | None = None) -> int:
        """Handles to a dead engine start are worth nothing and cannot be released."""
        gone = 0
        while (reply := await self._try("forget_engine", decode, keep_start or "")) is not None:
            gone += reply.result
            if reply.result < _BATCH:
                break
        return gone

    async def totals(self) -> dict[str, Total]:
        """By decode URL; nothing while the store cannot be asked."""
        if self._clock() - self._totals_at >= _FRESH_S:
            await self._try("totals")
        return dict(self._totals)

    async def close(self) -> list[Handle]:
        """Close the connections. The handles stay for other routers, and for this one's next."""
        if self._undoing:
            await asyncio.wait(set(self._undoing), timeout=2 * self._limit)
        await self._client.aclose()
        return []

    # Within.

    async def _take(self, handle_id: str) -> Handle | None:
        reply = await self._try("take", _id(handle_id))
        if reply is None or not reply.result:
            return None
        item, tokens = reply.result
        return _handle(item, reply.sent, tokens)

    async def _undo(self, taking: "asyncio.Future[Handle | None]") -> None:
        """Nobody has used it, so it is as good as before."""
        handle = await taking
        if handle is not None:
            await self.put(handle)

    def _of(self, handle: Handle) -> list[_Argument]:
        """A handle as the script takes it, at this moment."""
        scope, conversation = handle.scope, handle.conversation
        return [
            _id(handle.id),
            _key(*_parts(scope)),
            _key(scope.tenant, conversation.key),
            _key(*_parts(scope), conversation.anchor),
            handle.decode,
            handle.engine_start,
            handle.held.certain,
            handle.pinned_tokens,
            repr(worth(handle, 0.0)),
            self._server_ms(handle.deadline),
            int((handle.deadline - self._clock()) * 1000),
            self._max_branches if conversation.name else 0,
            self._max_handles,
            digests(handle.held.tokens),
            _meta(handle),
            handle.raw,
            "" if handle.renewed is None else repr(handle.renewed),
            handle.held.tokens,
        ]

    async def _all(self, operation: str, argument: str | int) -> list[Handle]:
        """Batch by batch, so that no other router waits long for the server."""
        taken: list[Handle] = []
        while (reply := await self._try(operation, argument)) is not None:
            taken += _handles(reply.result[0], reply.sent)
            if reply.result[1] < _BATCH:
                break
        return taken

    async def _try(self, operation: str, *arguments: _Argument) -> _Reply | None:
        """None when the store cannot be asked; that was counted and told."""
        try:
            return await self._ask(operation, lambda: arguments)
        except _Failed:
            return None

    async def _ask(self, operation: str, arguments: Callable[[], Sequence[_Argument]]) -> _Reply:
        """Run one operation within the limit.

        Raises:
            _Failed: it was counted and told.
        """
        if time.monotonic() < self._skip_until or (self._down and operation == "put"):
            raise _Failed(not_done=True)
        if self._down:
            # One tries for all. Not with a handle, of which nobody would know whether it was kept.
            self._skip_until = time.monotonic() + self._limit + _SKIP_S
        try:
            async with asyncio.timeout(self._limit):
                reply = await self._in_epoch(operation, arguments)
        except Exception as error:  # whatever the client library comes up with: the turn goes on
            self._failed(operation, error)
            raise _Failed(not_done=_not_done(error)) from error
        self._skip_until = float("-inf")
        if self._down:
            self._down = False
            log.warning("the store %s is back", self._shown)
        return reply

    async def _in_epoch(
        self, operation: str, arguments: Callable[[], Sequence[_Argument]]
    ) -> _Reply:
        """Run it in the server's epoch. In another one nothing is done, so it may be run again."""
        while True:
            epoch, sent = self._epoch, self._clock()
            answer = await self._call(epoch, operation, arguments())
            now_epoch = answer[1].decode()
            self._moment = (self._clock(), answer[2])
            self._totals, self._totals_at = _totals(answer[3]), self._clock()
            if now_epoch == epoch:
                return _Reply(answer[4], sent)
            self._enter(epoch, now_epoch)

    async def _call(self, epoch: str, operation: str, arguments: Sequence[_Argument]) -> list[Any]:
        run: Callable[..., Awaitable[Any]] = self._client.execute_command
        number = str(next(self._numbers))
        words = (1, f"{self._prefix}{epoch}:", number, epoch, operation, *arguments)
        try:
            answer = await run("EVALSHA", _SHA, *words)
        except failures.NoScriptError:
            answer = await run("EVAL", _SCRIPT, *words)
        if answer[0].decode() != number:
            # An answer to something else: whatever comes on these connections is not for us.
            await self._client.connection_pool.disconnect()
            raise failures.InvalidResponse("an answer to another question came")
        return answer  # type: ignore[no-any-return]

    def _enter(self, old: str, new: str) -> None:
        if self._epoch == old:  # else another operation was first
            self._epoch = new
            if old == _NO_EPOCH:
                log.info("the store %s is there", self._shown)
            else:
                log.warning(
                    "the store %s was started anew, restored or failed over: "
                    "no handle from before is used any more",
                    self._shown,
                )

    def _server_ms(self, deadline: float) -> str:
        """The server's time at a deadline, or a little before; empty when it is not known."""
        if self._moment is None:
            return ""
        at, ms = self._moment
        return str(ms + int((deadline - at) * 1000))

    def _failed(self, operation: str, error: Exception) -> None:
        self._on_error(operation)
        if isinstance(error, failures.ResponseError):
            # It answers, so others need not wait; what it says stays true for a while.
            if time.monotonic() >= self._told.get(operation, float("-inf")):
                self._told[operation] = time.monotonic() + _TELL_AGAIN_S
                log.error("the store %s refuses `%s`: %s", self._shown, operation, error)
            return
        self._skip_until = time.monotonic() + _SKIP_S
        self._totals = {}
        if not self._down:
            self._down = True
            said = (
                f"no answer within {self._limit:g} s" if isinstance(error, TimeoutError) else error
            )
            log.error("the store %s fails (%s): turns run cold", self._shown, said)


def masked(url: str) -> str:
    """A URL without what opens a door."""
    try:
        parts = urlsplit(url)
        if "@" not in parts.netloc:
            return url if not parts.query else parts._replace(query="").geturl()
        host = parts.netloc.rpartition("@")[2]
        return parts._replace(netloc=f"***@{host}", query="").geturl()
    except ValueError:
        return "***"


@lru_cache(maxsize=8)  # a turn's tokens are looked up first and then kept
def digests(tokens: bytes) -> bytes:
    """Digests of the whole pieces of packed tokens.

    In lexicographic order those that share the longest beginning stand side by side.
    """
    view = memoryview(tokens)
    whole = len(tokens) - len(tokens) % _PIECE_BYTES
    return b"".join(
        hashlib.blake2b(view[at : at + _PIECE_BYTES], digest_size=_DIGEST).digest()
        for at in range(0, whole, _PIECE_BYTES)
    )


def _key(*parts: str) -> str:
    """A short name for some words."""
    joined = orjson.dumps(parts)
    return hashlib.blake2b(joined, digest_size=_ID // 2).hexdigest()


def _parts(scope: Scope) -> tuple[str, str, str]:
    return scope.tenant, scope.model, scope.salt


def _id(handle_id: str) -> str:
    return _key(handle_id)


def _meta(handle: Handle) -> bytes:
    return orjson.dumps(
        [
            *_parts(handle.scope),
            handle.conversation.name,
            handle.conversation.anchor,
            handle.decode,
            handle.engine_id,
            handle.request_id,
            handle.held.certain,
            handle.block_size,
            handle.blocks,
            handle.prefill,
            handle.turns,
        ]
    )


def _whose(meta: bytes) -> tuple[str, Conversation]:
    tenant, _, _, name, anchor, *_ = orjson.loads(meta)
    return tenant, Conversation(name, anchor)


def _handle(item: Sequence[Any], sent: float, tokens: bytes = b"") -> Handle:
    meta, raw, left_ms, renewed = item
    (
        tenant, model, salt, name, anchor, decode, engine_id, request_id,
        certain, block_size, blocks, prefill, turns,
    ) = orjson.loads(meta)  # fmt: skip
    return Handle(
        scope=Scope(tenant, model, salt),
        conversation=Conversation(name, anchor),
        decode=decode,
        engine_id=engine_id,
        request_id=request_id,
        raw=raw,
        held=Retained(tokens, certain),
        block_size=block_size,
        blocks=blocks,
        deadline=sent + left_ms / 1000,
        prefill=prefill,
        turns=turns,
        renewed=float(renewed) if renewed else None,
    )


def _handles(items: Iterable[Sequence[Any]], sent: float) -> list[Handle]:
    return [_handle(item, sent) for item in items]


def _totals(fields: Sequence[bytes]) -> dict[str, Total]:
    numbers: dict[str, dict[str, int]] = {}
    for field, value in _pairs(fields):
        name = field.decode()
        numbers.setdefault(name[1:], {})[name[0]] = int(value)
    return {
        decode: Total(n.get("h", 0), n.get("t", 0), n.get("p", 0)) for decode, n in numbers.items()
    }


def _pairs(flat: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _not_done(error: Exception) -> bool:
    kinds = (failures.BusyLoadingError, failures.OutOfMemoryError, failures.ReadOnlyError)
    return isinstance(error, kinds) or str(error).startswith(_NOT_DONE)
