"""How long the first token takes, cold and with reuse: published curves, or what a log shows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isnan

from pdctl.analyze.pinned import Step
from pdctl.base.published import PUBLISHED, Published

HEALTHY_RATIO = 307.86 / 219.61
"""Llama-3.3-70B on P5en with prefill's own prefix cache on: 1.40 (FACTS 6, vllm pull request)."""
BEST_RATIO = 2334 / 702
"""GLM-5-FP8 at 20k tokens with it off: 3.3, the best that was published."""


@dataclass(frozen=True)
class Line:
    """Milliseconds as a straight line over tokens.

    Attributes:
        at_zero: ms.
        per_token: ms.
    """

    at_zero: float
    per_token: float

    def __call__(self, tokens: float) -> float:
        return self.at_zero + self.per_token * tokens


@dataclass(frozen=True)
class Curve:
    """A model's time to first token over the length of its prompt, without and with reuse."""

    name: str
    off: Line
    on: Line


def _between(low: tuple[float, float], high: tuple[float, float]) -> Line:
    slope = (high[1] - low[1]) / (high[0] - low[0])
    return Line(low[1] - slope * low[0], slope)


def _curve(each: Published) -> Curve:
    low, high = each.lengths
    off, on = each.ttft_off, each.ttft_on
    return Curve(
        each.model,
        off=_between((low, off[0]), (high, off[1])),
        on=_between((low, on[0]), (high, on[1])),
    )


CURVES = tuple(map(_curve, PUBLISHED))
"""Two p5en.48xlarge, prefill's prefix cache off: what reuse saves at best (FACTS 6)."""


@dataclass(frozen=True)
class Saving:
    """What a turn that reuses saves.

    Attributes:
        curve: whose speed is assumed.
        cold_ms: mean time to first token of follow-up turns, all computed.
        low_ms, high_ms: saved in the mean over all follow-up turns: where prefill's own prefix
            cache is healthy, and where it holds nothing of them.
        low_ratio, high_ratio: cold over reused, of turns that reuse.
    """

    curve: str
    cold_ms: float
    low_ms: float
    high_ms: float
    low_ratio: float
    high_ratio: float


def savings(
    follow_ups: Iterable[tuple[int, int]], curves: Sequence[Curve] = CURVES
) -> list[Saving]:
    """What published curves say of a log.

    Args:
        follow_ups: prompt tokens of each follow-up turn, and those that can be reused; 0: none.
    """
    pairs = list(follow_ups)
    return [_saving(curve, pairs) for curve in curves] if pairs else []


def _saving(curve: Curve, pairs: Sequence[tuple[int, int]]) -> Saving:
    cold_all = cold = saved = 0.0
    for prompt, reused in pairs:
        off = curve.off(prompt)
        cold_all += off
        if reused:
            cold += off
            # The published turns reuse nearly all of their prompt; with less, less is saved.
            saved += max(0.0, off - curve.on(prompt)) * reused / prompt
    high_ratio = cold / (cold - saved) if cold > saved else 1.0
    low_ratio = min(HEALTHY_RATIO, high_ratio)
    low = cold * (1 - 1 / low_ratio)
    return Saving(
        curve.name,
        cold_all / len(pairs),
        min(low, saved) / len(pairs),
        saved / len(pairs),
        low_ratio,
        high_ratio,
    )


@dataclass(frozen=True)
class Measured:
    """Speeds that a log shows, by least squares over its turns.

    Attributes:
        turns: that say how long the first token took and how much was reused.
        fixed_ms: of every turn.
        compute_ms_per_1k: of 1000 prompt tokens that are computed.
        pull_fixed_ms: of a turn that pulls, whatever the length.
        pull_ms_per_1k: of 1000 tokens that are pulled.
        threshold: tokens from which on pulling is faster than computing; None: it never is.
    """

    turns: int
    fixed_ms: float
    compute_ms_per_1k: float
    pull_fixed_ms: float
    pull_ms_per_1k: float
    threshold: int | None


def measured(steps: Iterable[Step], *, least: int = 30) -> Measured | None:
    """Fit `ttft = fixed + computed × a + pulled × b + (pulls) × c`; None: too little is logged.

    Args:
        steps: turns of a log.
        least: how many turns there must be that reuse, and that do not.
    """
    rows = []
    pulling = 0
    for step in steps:
        if isnan(step.ttft_ms) or isnan(step.reused) or step.reused > step.prompt:
            continue
        pulls = step.reused > 0
        pulling += pulls
        rows.append(
            ((1.0, (step.prompt - step.reused) / 1000, float(pulls), step.reused / 1000), step)
        )
    if pulling < least or len(rows) - pulling < least:
        return None
    solved = _least_squares([(inputs, step.ttft_ms) for inputs, step in rows])
    if solved is None:
        return None
    fixed, compute, pull_fixed, pull = solved
    gain = compute - pull
    threshold = max(1, round(max(0.0, pull_fixed) / gain * 1000)) if gain > 0 else None
    return Measured(len(rows), fixed, compute, pull_fixed, pull, threshold)


def _least_squares(rows: Sequence[tuple[tuple[float, ...], float]]) -> list[float] | None:
    """The normal equations, by elimination; None where the inputs do not tell them apart."""
    size = len(rows[0][0])
    grid = [[0.0] * (size + 1) for _ in range(size)]
    for inputs, output in rows:
        for line, left in zip(grid, inputs, strict=True):
            for at, right in enumerate(inputs):
                line[at] += left * right
            line[size] += left * output
    for at in range(size):
        best = max(range(at, size), key=lambda line: abs(grid[line][at]))
        grid[at], grid[best] = grid[best], grid[at]
        if abs(grid[at][at]) < 1e-9:
            return None
        grid[at] = [value / grid[at][at] for value in grid[at]]
        for other in range(size):
            if other != at:
                factor = grid[other][at]
                pairs = zip(grid[other], grid[at], strict=True)
                grid[other] = [value - factor * pivot for value, pivot in pairs]
    return [line[size] for line in grid]
