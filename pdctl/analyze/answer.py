"""What `analyze` answers: everything is concluded here, and only shown elsewhere."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite

from pdctl.analyze.pinned import (
    INSTANTS,
    Pinned,
    Step,
    gaps_of,
    pinned,
    reusable,
    steps_of,
    turns_of,
)
from pdctl.analyze.scan import Scanned
from pdctl.analyze.simulate import Outcome, Simulation, rules_of
from pdctl.analyze.speed import CURVES, Measured, Saving, measured, savings
from pdctl.analyze.sums import Sums
from pdctl.analyze.ttl import PERCENTILES, Gaps, ladder
from pdctl.analyze.verdict import Grounds, Verdict, judge
from pdctl.engine.ttl import kept_for, safe_router_ttl

ROOM = 0.7
"""The share of decode's memory that retained blocks may take; the rest is for turns that run."""
ENOUGH = 0.95
"""A TTL is long enough when it reuses so much of what the best one does."""


@dataclass(frozen=True)
class Asked:
    """What the user knows beside the log.

    Attributes:
        ttl: decode's TTL in seconds.
        block: tokens in a block of decode's cache.
        capacity: tokens that all decode servers have room for; None: not known.
        token_bytes: of KV for a token, on all GPUs together; None: not known.
        threshold: tokens below which nothing is pulled.
        curve: name of the published speeds that fit; None: not known, so all are shown.
    """

    ttl: float = 480.0
    block: int = 16
    capacity: int | None = None
    token_bytes: int | None = None
    threshold: int = 64
    curve: str | None = None


@dataclass(frozen=True)
class TtlRow:
    """What one TTL would have done to the log.

    Attributes:
        ttl_s: decode's TTL.
        hit_share: follow-up turns that come before the router stops to offer their blocks.
        reused_share: prompt tokens of follow-up turns that would have been pulled.
        pinned_tokens_mean, pinned_tokens_peak: retained on all decode servers together.
        pinned_gib_peak: the same in GiB; None where the model is not known.
        fits: whether the peak leaves room for turns that run; None where the room is not known.
    """

    ttl_s: float
    hit_share: float | None
    reused_share: float | None
    pinned_tokens_mean: int
    pinned_tokens_peak: int
    pinned_gib_peak: float | None
    fits: bool | None


@dataclass(frozen=True)
class Simulated:
    """The log replayed against decode's room, with the recommended TTL or else that in force.

    Attributes:
        ttl_s: the TTL.
        hit_share, late_share, evicted_share: of follow-up turns: reused; too late; their blocks had
            to make room.
        reused_share: of the prompt tokens of follow-up turns.
        waited_share: of all turns, those that had no room with nothing retained.
        pinned_tokens_peak: retained at most.
        running_tokens_peak: of turns that ran at once; 0 where the log has no ends of turns.
    """

    ttl_s: float
    hit_share: float | None
    late_share: float | None
    evicted_share: float | None
    reused_share: float | None
    waited_share: float | None
    pinned_tokens_peak: int
    running_tokens_peak: int


@dataclass(frozen=True)
class Answer:
    """All that was found out, in the order of the JSON output; docs/analyze.md explains each."""

    follow_up_turns: int
    repeated_share: float | None
    late_share: float | None
    exact_share: float | None
    requests: int
    conversations: int
    since: float | None
    until: float | None
    ttl_s: float
    lines: dict[str, object]
    gaps: dict[str, object]
    observed: dict[str, object] | None
    ttl_curve: list[TtlRow]
    knee_s: int | None
    recommended_ttl_s: float | None
    capacity_tokens: int | None
    simulated: Simulated | None
    ttft: dict[str, object]
    sample: dict[str, object]
    verdict: Verdict

    def as_dict(self) -> dict[str, object]:
        """For `--json`."""
        return asdict(self)


@dataclass(frozen=True)
class Plots:
    """What the report draws.

    Attributes:
        instants: seconds since the epoch.
        pinned: TTL in seconds → tokens pinned at each instant.
        hits: TTL in seconds and share of turns.
    """

    instants: list[float]
    pinned: dict[float, list[int]]
    hits: list[tuple[float, float]]


def conclude(scanned: Scanned, asked: Asked) -> tuple[Answer, Plots]:
    """Conclude from what was found in the log."""
    tally = scanned.tally
    sums = tally.sums
    steps = steps_of(tally.sample.kept)
    since, until = _span(scanned, steps)
    ends_known = any(step.end > step.start for step in steps)
    gaps = Gaps(gaps_of(steps))
    knee = gaps.knee(3600.0)
    scale = tally.rows / tally.sample.rows if tally.sample.rows else 1.0
    ttls = ladder(asked.ttl, knee)
    kept = [kept_for(ttl) for ttl in ttls]
    pins = pinned(steps, kept, block=asked.block, since=since, until=until)
    rows = _curve(ttls, pins, gaps, steps, scale, asked)
    best = recommended(rows)
    chosen = best.ttl_s if best else asked.ttl
    simulated = None
    if asked.capacity is not None and steps:
        simulated = _simulated(steps, chosen, scale, asked, since, until)
    published, fitted = _speeds(steps, chosen, asked)
    answer = Answer(
        follow_up_turns=sums.follow_ups,
        repeated_share=share(sums.repeated, sums.prompt),
        late_share=share(sums.late, sums.follow_ups),
        exact_share=share(sums.answered_repeated, sums.answered_prompt),
        requests=tally.rows,
        conversations=len(tally.last),
        since=since if tally.rows else None,
        until=until if tally.rows else None,
        ttl_s=asked.ttl,
        lines=_lines(scanned),
        gaps=_gaps(gaps, ends_known),
        observed=_observed(sums),
        ttl_curve=rows,
        knee_s=knee,
        recommended_ttl_s=best.ttl_s if best else None,
        capacity_tokens=asked.capacity,
        simulated=simulated,
        ttft={"published": [asdict(each) for each in published], "measured": _dict(fitted)},
        sample={
            "turns": tally.sample.rows,
            "conversations": len(tally.sample.kept),
            "one_of": tally.sample.rate,
        },
        verdict=judge(_grounds(sums, rows, best, simulated, published)),
    )
    width = max(until - since, 0.0) / INSTANTS
    plots = Plots(
        [since + width * at for at in range(INSTANTS + 1)],
        {
            ttl: [round(blocks * asked.block * scale) for blocks in each.at]
            for ttl, each in zip(ttls, pins, strict=True)
        },
        [(float(s), gaps.share(s) or 0.0) for s in _seconds(gaps)],
    )
    return answer, plots


def _span(scanned: Scanned, steps: Sequence[Step]) -> tuple[float, float]:
    """When the log begins and ends; exact where all turns were kept."""
    tally = scanned.tally
    if tally.sample.rate == 1 and steps:
        return min(step.start for step in steps), max(step.start for step in steps)
    return (tally.since, tally.until) if isfinite(tally.since) else (0.0, 0.0)


def _curve(
    ttls: Sequence[float],
    pins: Sequence[Pinned],
    gaps: Gaps,
    steps: Sequence[Step],
    scale: float,
    asked: Asked,
) -> list[TtlRow]:
    usable = [max(0.0, safe_router_ttl(ttl)) for ttl in ttls]
    reused = reusable(steps, usable, threshold=asked.threshold)
    prompt = sum(step.wants for step in steps if step.then < inf)
    rows = []
    for ttl, router, pin, tokens in zip(ttls, usable, pins, reused, strict=True):
        peak = round(pin.peak * asked.block * scale)
        rows.append(
            TtlRow(
                ttl_s=ttl,
                hit_share=gaps.share(router) if router else (0.0 if gaps.total else None),
                reused_share=share(tokens, prompt),
                pinned_tokens_mean=round(pin.mean * asked.block * scale),
                pinned_tokens_peak=peak,
                pinned_gib_peak=peak * asked.token_bytes / 2**30 if asked.token_bytes else None,
                fits=peak <= ROOM * asked.capacity if asked.capacity else None,
            )
        )
    return rows


def recommended(rows: Sequence[TtlRow]) -> TtlRow | None:
    """The shortest TTL that reuses nearly as much as the best of those that fit."""
    fitting = [row for row in rows if row.fits is not False and row.reused_share]
    if not fitting:
        return None
    most = max(row.reused_share or 0.0 for row in fitting)
    return next(row for row in fitting if (row.reused_share or 0.0) >= ENOUGH * most)


def _simulated(
    steps: Sequence[Step],
    ttl: float,
    scale: float,
    asked: Asked,
    since: float,
    until: float,
) -> Simulated:
    capacity = None if asked.capacity is None else int(asked.capacity / asked.block / scale)
    rules = rules_of(ttl, block=asked.block, capacity=capacity, threshold=asked.threshold)
    width = max(until - since, 1e-6) / INSTANTS
    done = Simulation(rules, since, width).run(turns_of(steps), until=until)
    return _told(done, ttl, asked.block * scale)


def _told(done: Outcome, ttl: float, tokens: float) -> Simulated:
    return Simulated(
        ttl_s=ttl,
        hit_share=share(done.hits, done.follow_ups),
        late_share=share(done.late, done.follow_ups),
        evicted_share=share(done.evicted, done.follow_ups),
        reused_share=share(done.reused, done.prompt),
        waited_share=share(done.waited, done.turns),
        pinned_tokens_peak=round(done.most() * tokens),
        running_tokens_peak=round(done.running_peak * tokens),
    )


def _speeds(
    steps: Sequence[Step], ttl: float, asked: Asked
) -> tuple[list[Saving], Measured | None]:
    usable = max(0.0, safe_router_ttl(ttl))
    pairs = []
    for step in steps:
        if step.then < inf:
            tokens = min(step.held, step.wants - 1)
            on_time = step.then - step.end <= usable and tokens >= asked.threshold
            pairs.append((step.wants, tokens if on_time else 0))
    curves = [curve for curve in CURVES if asked.curve in (None, curve.name)]
    return savings(pairs, curves), measured(steps)


def _grounds(
    sums: Sums,
    rows: Sequence[TtlRow],
    best: TtlRow | None,
    simulated: Simulated | None,
    published: Sequence[Saving],
) -> Grounds:
    return Grounds(
        follow_ups=sums.follow_ups,
        repeated=share(sums.answered_repeated, sums.answered_prompt)
        or share(sums.repeated, sums.prompt)
        or 0.0,
        longest=max((row.reused_share or 0.0 for row in rows), default=0.0),
        ttl=best.ttl_s if best else None,
        reused=told.reused_share or 0.0 if (told := simulated or best) is not None else 0.0,
        room_known=any(row.fits is not None for row in rows),
        none_fits=best is None and any(row.fits is False for row in rows),
        saved_ms=(
            (published[0].low_ms, max(each.high_ms for each in published)) if published else None
        ),
        ratios=(
            (
                min(each.low_ratio for each in published),
                max(each.high_ratio for each in published),
            )
            if published
            else None
        ),
    )


def _lines(scanned: Scanned) -> dict[str, object]:
    readings = scanned.readings.values()
    left: dict[str, int] = {}
    for reading in readings:
        for reason, count in reading.left_out.items():
            left[reason] = left.get(reason, 0) + count
    return {
        "read": sum(reading.lines for reading in readings),
        "bad": sum(reading.bad for reading in readings),
        "left_out": left,
    }


def _gaps(gaps: Gaps, ends_known: bool) -> dict[str, object]:
    return {
        "from": "end" if ends_known else "start",
        "percentiles_s": {f"p{each}": gaps.percentile(each) for each in PERCENTILES},
        "histogram": [{"up_to_s": edge, "turns": count} for edge, count in gaps.histogram()],
    }


def _observed(sums: Sums) -> dict[str, object] | None:
    if not sums.counted:
        return None
    return {
        "turns": sums.counted,
        "hit_share": share(sums.hits, sums.counted),
        "reused_share": share(sums.reused, sums.counted_prompt),
    }


def _seconds(gaps: Gaps) -> list[int]:
    """Where the curve of hits is drawn: evenly on a scale of logarithms."""
    top = max(60, min(7200, (gaps.percentile(99) or 60) * 2))
    return sorted({max(1, round(top ** (at / 120))) for at in range(121)})


def _dict(fitted: Measured | None) -> dict[str, object] | None:
    return None if fitted is None else asdict(fitted)


def share(part: int, whole: int) -> float | None:
    """None of nothing."""
    return part / whole if whole else None
