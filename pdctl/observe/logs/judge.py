"""What lines mean in the light of those before them. Pure; events come in order of time.

A MISS of a conversation that was never seen is as it should be, one of a conversation that was
seen is not; an exception after "shutdown triggered" is no fault; eight workers that say the same
say one thing.
"""

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

from pdctl.observe.logs.event import Event
from pdctl.observe.signatures import BY_ID
from pdctl.observe.signatures.model import Signature

_REMEMBERED = 200_000
_FEW = 3
"""Turns that went on without a HIT, from which on it is said that there are none."""
_SKEW_S = 2.0
"""Times in logs are whole seconds, and lines are written a moment later than things happen."""
_UNNAMED = ("", "-")
_BEGUN_ALIKE = "~"
"""How pdctl's router names a conversation without a name: by how it begins, as others may too."""
_AT_ONCE = frozenset({"kv.read.declined", "engine.request.error", "nixl.transfer.failed"})
"""What an engine says of a request while the router waits for it, and neither before nor after."""

# What pdctl's router gives as reason, and is as it should be; docs/router.md explains each.
_MEANT = frozenset(
    (
        "left_to_another",
        "diverged",
        "below_threshold",
        "prefill_had_it",
        "reuse_off",
        "no_conversation",
    )
)
_LATE = frozenset({"expired"})

HTTP = "http.error"
TRACEBACK = "process.traceback"
LOST = BY_ID["router.cache.lost"]
NEVER = BY_ID["router.cache.never_hits"]
AFTER_RELEASE = BY_ID["kv.read.after_release"]
SKEW = BY_ID["logs.clock_skew"]

# `chatcmpl-<the router's id>-<8 random>`, `cmpl-<id>-0-<8 random>`
_ENGINE_ID = re.compile(r"^(?:chat)?cmpl-(?P<id>.+?)(?:-\d+)?(?:-[0-9a-f]{8})?$")


_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class Memory(dict[_Key, _Value]):
    """A dictionary that forgets what is oldest when it is full."""

    def keep(self, key: _Key, value: _Value) -> None:
        """Set, as the newest."""
        self.pop(key, None)
        self[key] = value
        if len(self) > _REMEMBERED:
            for old in list(self)[: _REMEMBERED // 4]:
                del self[old]


@dataclass(slots=True)
class _Conversation:
    turns: int = 0  # that were told
    kept: bool = False  # a handle of it waits
    ever_kept: bool = False
    spent: bool = False  # a handle went into a turn
    late: bool = False


@dataclass(slots=True)
class _Span:
    """When the router spoke of a request."""

    first: float
    last: float | None = None


class Judge:
    """Looks at all events of all sources, in order of time."""

    def __init__(self) -> None:
        self.follow_ups = 0
        self.hits = 0
        self._conversations: Memory[int, _Conversation] = Memory()
        self._before: dict[int, _Conversation] = {}
        self._released: Memory[tuple[str, str], None] = Memory()
        self._said: Memory[Hashable, str] = Memory()
        self._ending: set[str] = set()
        self._spans: Memory[str, _Span] = Memory()
        self._dated: Memory[tuple[str, str], float] = Memory()
        self._rules: dict[str, Callable[[Event], tuple[Signature, ...]]] = {
            "router.cache.hit": self._hit,
            "router.cache.miss": self._miss,
            "router.handle.kept": self._kept,
            "router.handle.stale": self._late,
            "router.handle.expired": self._late,
            "kv.lease.expired": self._given_up,
            "kv.read.invalid": self._read_invalid,
            "process.started": self._start,
            "router.started": self._start,
            "process.stopping": self._stopping,
        }

    def look(self, event: Event) -> tuple[Signature, ...] | None:
        """What is concluded beside what the line says; None: the line says nothing.

        Sets `severity` and `fields` of the event.
        """
        signature = event.signature
        if signature is None:
            return ()
        id, fields = signature.id, event.fields
        if self._ending and event.source in self._ending and (signature.generic or id == HTTP):
            return None
        if id == TRACEBACK and str(fields.get("exception", "")).startswith("KeyboardInterrupt"):
            self._ending.add(event.source)  # it was told to end before it listened
            return None
        if "worker" in fields and self._repeated(event):
            return None
        if "request" in fields and (event.role == "router" or id in _AT_ONCE):
            self._date(event)
        concludes = self._rules.get(id)
        return concludes(event) if concludes else ()

    def end(self) -> dict[Signature, dict[str, object]]:
        """What only the whole shows, each with what is known of it."""
        found: dict[Signature, dict[str, object]] = {}
        if not self.hits and self.follow_ups >= _FEW:
            found[NEVER] = {"follow_ups": self.follow_ups}
        if skewed := self._skewed():
            found[SKEW] = skewed
        return found

    # Conversations.

    def _kept(self, event: Event) -> tuple[Signature, ...]:
        if "tokens" in event.fields:
            return ()  # pdctl's router writes it before the line of the same turn, which has it too
        talk = self._conversation(event)
        talk.kept = talk.ever_kept = True
        talk.late = False
        return ()

    def _late(self, event: Event) -> tuple[Signature, ...]:
        talk = self._conversation(event)
        talk.late, talk.kept = True, False
        return ()

    def _given_up(self, event: Event) -> tuple[Signature, ...]:
        self._released.keep((event.source, event.fields["request"]), None)
        return ()

    def _read_invalid(self, event: Event) -> tuple[Signature, ...]:
        if (event.source, event.fields["request"]) not in self._released:
            return ()
        return (AFTER_RELEASE,)

    def _conversation(self, event: Event) -> _Conversation:
        key = hash((event.source, event.fields.get("conversation")))
        if (talk := self._conversations.get(key)) is None:
            talk = _Conversation()
            self._conversations.keep(key, talk)
        return talk

    def _hit(self, event: Event) -> tuple[Signature, ...]:
        self.hits += 1
        self.follow_ups += 1
        talk = self._conversation(event)
        talk.turns += 1
        if "age" in event.fields:  # the example proxy's handle is gone now
            talk.spent, talk.kept = True, False
        elif event.fields.get("retained") == "kept":
            talk.kept = talk.ever_kept = True
            talk.late = False
        return ()

    def _miss(self, event: Event) -> tuple[Signature, ...]:
        kind, why = self._kind_of_miss(event)
        event.fields["kind"] = kind
        if event.fields.get("retained") == "kept":  # pdctl's router says it with the turn itself
            talk = self._conversation(event)
            talk.kept = talk.ever_kept = True
        if kind == "lost":
            event.fields["why"] = why
            event.severity = "degrade"
            return (LOST,)
        return ()

    def _kind_of_miss(self, event: Event) -> tuple[str, str]:
        """`first_turn`, `unnamed`, `late`, `meant` or `lost`, and why it was lost."""
        reason = event.fields.get("reason", "")
        if event.fields["conversation"] in _UNNAMED and reason in ("", "no_conversation"):
            return "unnamed", ""
        key = hash((event.source, event.fields["conversation"]))
        talk = self._conversation(event)
        seen = talk.turns > 0
        talk.turns += 1
        self.follow_ups += seen
        if reason in _MEANT or reason.startswith("excluded_"):
            return "meant", ""
        if reason in _LATE or talk.late:
            talk.late = False
            return "late", ""
        if reason not in ("", "first_turn"):
            return "lost", reason
        if event.fields["conversation"].startswith(_BEGUN_ALIKE) and reason:
            return "first_turn", ""
        if not seen:
            return ("lost", "restarted") if key in self._before else ("first_turn", "")
        if reason:  # the handle of a turn that was kept is there no more
            return "lost", "given_back" if talk.ever_kept else "no_handle"
        return "lost", "spent" if talk.spent else "no_handle"

    # Processes.

    def _stopping(self, event: Event) -> tuple[Signature, ...]:
        self._ending.add(event.source)
        return ()

    def _start(self, event: Event) -> tuple[Signature, ...]:
        self._ending.discard(event.source)
        if event.role == "router" and self._conversations:
            self._before = dict(self._conversations)
            self._conversations.clear()
        return ()

    def _repeated(self, event: Event) -> bool:
        """Whether another worker of the same engine said it."""
        said = tuple((k, v) for k, v in event.fields.items() if k not in ("worker", "exception"))
        when = 0 if "request" in event.fields else round((event.ts or 0) / 5)
        key = (event.source, event.id, said, when)
        worker: str = event.fields["worker"]
        if (first := self._said.get(key)) is not None:
            return first != worker
        self._said.keep(key, worker)
        return False

    # Clocks.

    def _date(self, event: Event) -> None:
        if event.ts is None:
            return
        request = event.fields["request"]
        if event.role == "router":
            span = self._spans.get(request)
            if span is None:
                span = _Span(event.ts)
                self._spans.keep(request, span)
            span.first = min(span.first, event.ts)
            if event.id == "router.prefill.done" or "reason" in event.fields:
                span.last = max(span.last or event.ts, event.ts)
        elif (found := _ENGINE_ID.match(request)) is not None:
            self._dated.keep((event.source, found["id"]), event.ts)

    def _skewed(self) -> dict[str, object]:
        """The greatest distance of an engine's line from the time the router had the request."""
        worst: dict[str, object] = {}
        most = _SKEW_S
        for (source, request), ts in self._dated.items():
            span = self._spans.get(request)
            if span is None:
                continue
            ahead = ts - span.last if span.last is not None else 0.0
            apart = max(span.first - ts, ahead)
            if apart > most:
                most = apart
                worst = {"source": source, "seconds": round(apart, 3), "request": request}
        return worst
