"""What a person acts on after reading logs: counts, rates, and the worst findings. Pure."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from pdctl.base.fix import SEVERITIES, Severity
from pdctl.observe.logs.event import Event, stamp
from pdctl.observe.logs.judge import Judge
from pdctl.observe.signatures.model import Signature

_WINDOW_S = 60.0
_TOGETHER_S = 2.0  # lines of one cause, in the logs of several processes
_KEPT = 100_000  # durations, by the millisecond


@dataclass
class Finding:
    """One signature as it was found."""

    signature: Signature
    severity: Severity
    count: int = 0
    first: float | None = None
    last: float | None = None
    sources: dict[str, int] = field(default_factory=dict)
    line: str = ""
    whys: Counter[str] = field(default_factory=Counter)
    follows: str | None = None

    def add(self, event: Event, severity: Severity) -> None:
        """Count one more."""
        if not self.count:
            self.first, self.line = event.ts, event.line
        self.count += 1
        self.last = event.ts
        self.sources[event.source] = self.sources.get(event.source, 0) + 1
        if (why := event.fields.get("why")) is not None and len(self.whys) < 100:
            self.whys[str(why)[:200]] += 1
        if SEVERITIES.index(severity) < SEVERITIES.index(self.severity):
            self.severity = severity

    def as_dict(self) -> dict[str, object]:
        """In `logs --json`."""
        return {
            "id": self.signature.id,
            "title": self.signature.title,
            "severity": self.severity,
            "count": self.count,
            "first": stamp(self.first),
            "last": stamp(self.last),
            "sources": dict(self.sources),
            "why": dict(self.whys),
            "follows": self.follows,
            "line": self.line,
            "fix": self.signature.fix.as_dict(),
            "docs": self.signature.docs,
        }


def _before(cause: Finding, other: Finding) -> bool:
    """Whether it can be the cause: it was there before, or times do not tell."""
    if cause.first is None or other.first is None:
        return True
    return cause.first <= other.first + _TOGETHER_S


class Durations:
    """Percentiles of whole milliseconds, in bounded memory."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = 0

    def add(self, ms: int) -> None:
        """One more; above a hundred seconds they are all alike."""
        self._counts[min(ms, _KEPT)] += 1
        self.count += 1

    def at(self, share: float) -> int | None:
        """The smallest that `share` of them do not exceed."""
        seen = 0
        for ms in sorted(self._counts):
            seen += self._counts[ms]
            if seen >= share * self.count:
                return ms
        return None

    def as_dict(self) -> dict[str, object]:
        """Count and percentiles."""
        points = {f"p{round(share * 100)}": self.at(share) for share in (0.5, 0.9, 0.99)}
        return {"count": self.count, **points}


@dataclass
class Transfers:
    """What one role's `KV Transfer metrics` lines add up to."""

    count: int = 0
    failed: int = 0
    expired: int = 0
    mb: float = 0.0
    ms: float = 0.0
    worst_p90_ms: float = 0.0

    def add(self, fields: dict[str, str]) -> None:
        """One line, which speaks of ten seconds."""
        number = int(fields["transfers"])
        self.count += number
        self.failed += int(fields.get("failed", 0))
        self.expired += int(fields.get("expired", 0))
        self.mb += number * float(fields.get("avg_mb", 0))
        self.ms += number * float(fields["avg_ms"])
        self.worst_p90_ms = max(self.worst_p90_ms, float(fields["p90_ms"]))

    def as_dict(self) -> dict[str, object]:
        """In `logs --json`."""
        return {
            "count": self.count,
            "failed": self.failed,
            "expired": self.expired,
            "mb": round(self.mb, 3),
            "avg_ms": round(self.ms / self.count, 3) if self.count else None,
            "worst_p90_ms": self.worst_p90_ms or None,
        }


class Summary:
    """Counts what it is shown. `of` runs it over events; `close` when there are no more."""

    def __init__(self) -> None:
        self.hit = 0
        self.miss = 0
        self.kinds: Counter[str] = Counter()
        self.signatures: Counter[str] = Counter()
        self.findings: dict[str, Finding] = {}
        self.prefill = Durations()
        self.transfers: dict[str, Transfers] = {}
        self.load: dict[str, dict[str, str]] = {}
        self.first: float | None = None
        self.last: float | None = None
        self._judge = Judge()
        self._turns: deque[tuple[float, bool]] = deque()
        self._measures: dict[str, Callable[[Event], None]] = {
            "router.cache.hit": self._turn,
            "router.cache.miss": self._turn,
            "router.prefill.done": self._prefill,
            "kv.transfer.metrics": self._moved,
            "engine.load": self._loaded,
            "kv.full": self._loaded,
        }

    def of(
        self, events: Iterable[Event], wanted: "Callable[[Event], bool] | None" = None
    ) -> Iterator[tuple[Event, tuple[Signature, ...]]]:
        """Judged events that are wanted, each with what was concluded from it, counted.

        What is not wanted is judged all the same: it tells whether a conversation is new.
        """
        for event in events:
            concluded = self._judge.look(event)
            if concluded is None or (wanted is not None and not wanted(event)):
                continue
            self._count(event, concluded)
            yield event, concluded

    def close(self) -> None:
        """Add what only the whole shows."""
        for signature, fields in self._judge.end().items():
            source = str(fields.get("source", "all"))
            line = ", ".join(f"{key} {value}" for key, value in fields.items())
            event = Event(None, None, source, line, signature, signature.severity, dict(fields))
            self._find(event, signature, signature.severity)
        for finding in self.findings.values():
            finding.follows = self._cause(finding)

    def _cause(self, finding: Finding) -> str | None:
        """The first cause of all that was found too."""
        cause: str | None = None
        passed = {finding.signature.id}
        while True:
            found = (self.findings.get(each) for each in finding.signature.follows)
            above = next(
                (
                    cause.signature.id
                    for cause in found
                    if cause and cause.signature.id not in passed and _before(cause, finding)
                ),
                None,
            )
            if above is None:
                return cause
            cause, finding = above, self.findings[above]
            passed.add(above)

    @property
    def bad(self) -> bool:
        """Whether something is to be done."""
        return any(finding.severity != "note" for finding in self.findings.values())

    @property
    def miss_rate(self) -> float | None:
        """Of all turns that can be reused, the share that was computed; None without turns."""
        turns = self.hit + self.miss
        return round(self.miss / turns, 4) if turns else None

    def worst(self) -> list[Finding]:
        """Findings, worst first; consequences of others last, notes behind them."""
        return sorted(
            self.findings.values(),
            key=lambda f: (
                f.severity == "note",
                f.follows is not None,
                SEVERITIES.index(f.severity),
                -f.count,
            ),
        )

    def rate(self, now: float) -> tuple[int, int]:
        """HITs and MISSes of the last minute before `now`, by the lines' own times."""
        while self._turns and self._turns[0][0] < now - _WINDOW_S:
            self._turns.popleft()
        hits = sum(hit for _, hit in self._turns)
        return hits, len(self._turns) - hits

    def as_dict(self) -> dict[str, object]:
        """The last line of `logs --json`."""
        return {
            "summary": {
                "hit": self.hit,
                "miss": self.miss,
                "miss_rate": self.miss_rate,
                "signatures": dict(sorted(self.signatures.items())),
                "misses": dict(self.kinds),
                "first": stamp(self.first),
                "last": stamp(self.last),
                "prefill_ms": self.prefill.as_dict(),
                "transfers": {role: each.as_dict() for role, each in self.transfers.items()},
                "findings": [finding.as_dict() for finding in self.worst()],
            }
        }

    def _count(self, event: Event, concluded: tuple[Signature, ...]) -> None:
        if (ts := event.ts) is not None:
            if self.first is None or ts < self.first:
                self.first = ts
            if self.last is None or ts > self.last:
                self.last = ts
        signature = event.signature
        if signature is None:
            return
        self.signatures[signature.id] += 1
        if (measure := self._measures.get(signature.id)) is not None:
            measure(event)
        if not signature.good:
            # A MISS is no finding by itself: what is wrong with it is concluded.
            severity = "note" if signature.id == "router.cache.miss" else event.severity
            self._find(event, signature, severity or signature.severity, counted=True)
        for other in concluded:
            self._find(event, other, other.severity)

    def _turn(self, event: Event) -> None:
        hit = event.id == "router.cache.hit"
        self.hit += hit
        self.miss += not hit
        if not hit:
            self.kinds[event.fields["kind"]] += 1
        if (ms := event.fields.get("ms")) is not None:
            self.prefill.add(int(ms))
        if event.ts is not None:
            self._turns.append((event.ts, hit))
            if self._turns[0][0] < event.ts - _WINDOW_S:
                self.rate(event.ts)

    def _prefill(self, event: Event) -> None:
        self.prefill.add(int(event.fields["ms"]))

    def _moved(self, event: Event) -> None:
        self.transfers.setdefault(event.role or event.source, Transfers()).add(event.fields)

    def _loaded(self, event: Event) -> None:
        self.load[event.source] = event.fields

    def _find(
        self, event: Event, signature: Signature, severity: Severity, *, counted: bool = False
    ) -> None:
        if not counted:
            self.signatures[signature.id] += 1
        finding = self.findings.get(signature.id)
        if finding is None:
            finding = self.findings[signature.id] = Finding(signature, severity)
        finding.add(event, severity)


@dataclass(frozen=True)
class Wanted:
    """Which events are shown and counted."""

    role: str | None = None
    since: float | None = None

    def __call__(self, event: Event) -> bool:
        if self.role is not None and event.role != self.role:
            return False
        # What has no time cannot be told to be of then.
        return self.since is None or (event.ts is not None and event.ts >= self.since)
