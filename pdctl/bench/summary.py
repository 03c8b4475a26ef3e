"""From rows to tables. Pure: the same rows always give the same numbers."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pdctl.bench.files import Run
from pdctl.bench.rows import CellRow, Leg, TurnRow
from pdctl.bench.stats import Clusters, Estimate, median, median_of, percentile, ratio_of


@dataclass(frozen=True)
class Line:
    """One leg at one length, over all repeats. Times are milliseconds, medians where not said.

    Turns are those after a conversation's first, which can never reuse anything; `first_ttft` is
    of those.

    Attributes:
        length: tokens that conversations began with; None for a trace.
        repeats: that have measured turns; incomplete: of those, cut short.
        turns: measured; errors: turns that failed, the first ones included.
        ttft_p95, tpot, total: of the same turns; total is to the end of the answer.
        outcomes, reasons: the router's words, counted.
        prompt, reused: tokens of a turn.
        prefill_ms: prefill's whole part of a turn, arrival to first token, by its own metrics, in
            the mean; transfer_ms and compute_ms are parts of it: pulling from decode, computing.
        pulled_tokens, pulled_bytes: from decode, by prefill's metrics, a turn in the mean.
        cached_tokens: found in prefill's own cache, a turn in the mean.
        handed_bytes, handed_ms: from prefill to decode, a turn in the mean.
        pinned_tokens: room of decode's blocks in use, the greatest; room_tokens: of all.
    """

    leg: Leg
    length: int | None
    repeats: int
    incomplete: int
    turns: int
    errors: int
    ttft: Estimate | None
    ttft_p95: float | None
    first_ttft: Estimate | None
    tpot: Estimate | None
    total: Estimate | None
    outcomes: Mapping[str, int]
    reasons: Mapping[str, int]
    prompt: float | None
    reused: float | None
    prefill_ms: float | None
    transfer_ms: float | None
    compute_ms: float | None
    pulled_tokens: float | None
    pulled_bytes: float | None
    cached_tokens: float | None
    handed_bytes: float | None
    handed_ms: float | None
    pinned_tokens: int | None
    room_tokens: int | None

    @property
    def hits(self) -> float | None:
        """Share of turns that reused all that was possible."""
        return self.outcomes.get("HIT", 0) / self.turns if self.turns else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        rest = {
            key: value.as_dict() if isinstance(value, Estimate) else value
            for key, value in vars(self).items()
            if key != "leg"
        }
        leg = {"leg": self.leg.label, "reuse": self.leg.reuse, "caching": self.leg.caching}
        return leg | rest | {"hit_share": self.hits}


@dataclass(frozen=True)
class Ratio:
    """How many times as fast the first token of a later turn comes with reuse."""

    length: int | None
    caching: bool | None
    value: Estimate

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"length": self.length, "caching": self.caching, "times": self.value.as_dict()}


@dataclass(frozen=True)
class Summary:
    """All tables of a run."""

    lines: tuple[Line, ...]
    ratios: tuple[Ratio, ...]
    notes: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """`summary.json`."""
        return {
            "about": dict(self.about),
            "lines": [line.as_dict() for line in self.lines],
            "ratios": [ratio.as_dict() for ratio in self.ratios],
            "notes": list(self.notes),
        }


_Group = tuple[Leg, int | None]


def summarise(run: Run) -> Summary:
    """The tables of a run."""
    cells: dict[_Group, list[CellRow]] = {}
    for cell in run.cells:
        cells.setdefault((cell.leg, cell.length), []).append(cell)
    turns: dict[str, list[TurnRow]] = {}
    for turn in run.turns:
        turns.setdefault(turn.cell, []).append(turn)
    order = sorted(cells, key=lambda group: (group[1] or 0, *_leg_order(group[0])))
    lines = tuple(_line(group, cells[group], turns) for group in order)
    ratios = tuple(_ratios(cells, turns))
    return Summary(lines, ratios, tuple(run.about.get("notes") or ()), run.about)


def _leg_order(leg: Leg) -> tuple[int, int]:
    return {None: 0, True: 1, False: 2}[leg.caching], int(leg.reuse == "on")


def _line(group: _Group, cells: Sequence[CellRow], turns: Mapping[str, Sequence[TurnRow]]) -> Line:
    rows = [row for cell in cells for row in turns.get(cell.key, ())]
    good = [row for row in rows if not row.error]
    later = [row for row in good if row.turn > 1]
    ttfts = [row.ttft_ms for row in later if row.ttft_ms is not None]
    means = _Means(cells)
    return Line(
        leg=group[0],
        length=group[1],
        repeats=sum(bool(turns.get(cell.key)) for cell in cells),
        incomplete=sum(not cell.complete for cell in cells),
        turns=len(later),
        errors=len(rows) - len(good),
        ttft=median_of(clusters(later, "ttft_ms")),
        ttft_p95=percentile(ttfts, 0.95) if ttfts else None,
        first_ttft=median_of(clusters([row for row in good if row.turn == 1], "ttft_ms")),
        tpot=median_of(clusters(later, "tpot_ms")),
        total=median_of(clusters(later, "total_ms")),
        outcomes=dict(Counter(row.outcome for row in later if row.outcome)),
        reasons=dict(Counter(f"{row.outcome} {row.reason}" for row in later if row.reason)),
        prompt=_middle(row.prompt_tokens for row in later),
        reused=_middle(row.reused_tokens for row in later),
        prefill_ms=means.of("prefill", "ttft_s", 1000),
        transfer_ms=means.of("prefill", "transfer_s", 1000),
        compute_ms=means.of("prefill", "compute_s", 1000),
        pulled_tokens=means.of("prefill", "pulled"),
        pulled_bytes=means.of("prefill", "bytes"),
        cached_tokens=means.of("prefill", "cached"),
        handed_bytes=means.of("decode", "bytes"),
        handed_ms=means.of("decode", "transfer_s", 1000),
        pinned_tokens=max(
            (c.pinned_tokens for c in cells if c.pinned_tokens is not None), default=None
        ),
        room_tokens=next((c.room_tokens for c in cells if c.room_tokens), None),
    )


class _Means:
    """What engines counted, a turn in the mean: of later turns where those were apart."""

    def __init__(self, cells: Sequence[CellRow]) -> None:
        self._counted, self._turns = [], 0
        for cell in cells:
            for phase in ("later", "all"):
                # A phase that was cut short has turns that no counter has.
                if phase in cell.counted and cell.turns.get(phase) and cell.complete:
                    self._counted.append(cell.counted[phase])
                    self._turns += cell.turns[phase]
                    break

    def of(self, role: str, name: str, scale: float = 1.0) -> float | None:
        values = [each[role].get(name) for each in self._counted]
        if not values or any(value is None for value in values):
            return None
        return sum(value for value in values if value is not None) * scale / self._turns


def clusters(rows: Iterable[TurnRow], name: str) -> Clusters:
    """One measured value of each turn, by conversation."""
    found: dict[str, list[float]] = {}
    for row in rows:
        value = getattr(row, name)
        if value is not None:
            found.setdefault(f"{row.cell}/{row.conversation}", []).append(value)
    return found


def _ratios(
    cells: Mapping[_Group, Sequence[CellRow]], turns: Mapping[str, Sequence[TurnRow]]
) -> Iterable[Ratio]:
    def ttfts(group: _Group) -> Clusters:
        rows = [row for cell in cells[group] for row in turns.get(cell.key, ())]
        return clusters([row for row in rows if row.turn > 1 and not row.error], "ttft_ms")

    for leg, length in sorted(cells, key=lambda group: (str(group[0].caching), group[1] or 0)):
        other = (Leg("on", leg.caching), length)
        if leg.reuse == "off" and other in cells:
            value = ratio_of(ttfts((leg, length)), ttfts(other))
            if value is not None:
                yield Ratio(length, leg.caching, value)


def _middle(values: Iterable[int | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return median(known) if known else None
