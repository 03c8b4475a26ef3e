"""A run in plain words, with what has to be known before anybody believes it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pdctl.base.durations import format_duration
from pdctl.base.words import listed
from pdctl.bench.stats import Estimate
from pdctl.bench.summary import Line, Ratio, Summary

_FEW = 5


def verdict(summary: Summary) -> list[str]:
    """What was found, the longest length first."""
    return [*_ratios(summary), *_growth(summary), *_hits(summary)] or [
        "One leg alone was measured, so there is nothing to compare."
    ]


def caveats(summary: Summary) -> list[str]:
    """What limits it."""
    return [
        *_caching(summary),
        *_machine(summary.about),
        *_amount(summary),
        *_failures(summary),
        *_room(summary),
        *(f"{note[0].upper()}{note[1:]}." for note in summary.notes),
    ]


def _ratios(summary: Summary) -> Iterator[str]:
    for caching in dict.fromkeys(ratio.caching for ratio in summary.ratios):
        ratios = [ratio for ratio in summary.ratios if ratio.caching == caching]
        longest = max(ratios, key=lambda ratio: ratio.length or 0)
        off, on = (_line(summary, longest, reuse) for reuse in ("off", "on"))
        if off is None or on is None or off.ttft is None or on.ttft is None:
            continue
        yield (
            f"{_where(longest)}, the first token of a later turn came after "
            f"{time(on.ttft.value)} with reuse and {time(off.ttft.value)} without: "
            f"{times(longest.value)}{_cache(caching)}."
        )


def _line(summary: Summary, ratio: Ratio, reuse: str) -> Line | None:
    wanted = (reuse, ratio.caching, ratio.length)
    found = (each for each in summary.lines if (*_leg(each), each.length) == wanted)
    return next(found, None)


def _leg(line: Line) -> tuple[str, bool | None]:
    return line.leg.reuse, line.leg.caching


def _growth(summary: Summary) -> Iterator[str]:
    for reuse, caching in dict.fromkeys(map(_leg, summary.lines)):
        lines = [line for line in summary.lines if _leg(line) == (reuse, caching)]
        known = [(line.length, line.ttft.value) for line in lines if line.length and line.ttft]
        if len(known) < 2:
            continue
        (short, first), (long, last) = known[0], known[-1]
        with_or_without = {"off": "Without", "on": "With"}[reuse]
        yield (
            f"{with_or_without} reuse{_cache(caching)} it went from {time(first)} at {short:,} "
            f"tokens to {time(last)} at {long:,}: times {last / first:.1f} while the length grew "
            f"times {long / short:.1f}."
        )


def _hits(summary: Summary) -> Iterator[str]:
    lines = [line for line in summary.lines if line.leg.reuse == "on" and line.turns]
    if not lines:
        return
    turns = sum(line.turns for line in lines)
    hits = sum(line.outcomes.get("HIT", 0) for line in lines)
    share = f"{hits:,} ({hits / turns:.0%})"
    yield f"Of {turns:,} later turns with reuse {share} reused all they could."


def _caching(summary: Summary) -> Iterator[str]:
    known = {line.leg.caching for line in summary.lines}
    if False in known:
        yield (
            "Prefill's own prefix cache was off: the best case for reuse. With it on, as in "
            "production, prefill keeps earlier prompts itself, and reuse saves what only decode "
            "has."
        )
    if True in known:
        yield (
            "Prefill's own prefix cache was on, as in production; nothing else used it, which a "
            "busy server's cache cannot promise."
        )


def _machine(about: Mapping[str, Any]) -> Iterator[str]:
    transport = str(about.get("transport") or "")
    if about.get("target") == "local":
        yield (
            "Prefill and decode share one machine, and whatever they compute takes time from each "
            "other; this shows the mechanism, not the speed of two hosts."
        )
    if transport and "EFA" not in transport:
        yield f"KV went over {transport}, not over EFA."
    yield (
        "The published points are from other hardware and other models; they are there for the "
        "shape, not for comparison of numbers."
    )


def _amount(summary: Summary) -> Iterator[str]:
    repeats = {line.repeats for line in summary.lines}
    if repeats and min(repeats) < 2:
        yield "Some cells were measured once only, so slow changes of the machine are in them."
    shape = dict(summary.about.get("settings", {}).get("shape", {}))
    if 0 < shape.get("conversations", _FEW) < _FEW:
        yield f"With {shape['conversations']} conversations a cell, the intervals are rough."


def _failures(summary: Summary) -> Iterator[str]:
    errors = sum(line.errors for line in summary.lines)
    if errors:
        yield f"{errors:,} turns failed and are not in the times."
    if any(line.incomplete for line in summary.lines):
        yield "The run was interrupted; cells that were cut short have fewer turns."
    short = [f"{line.length:,}" for line in summary.lines if _reuses_little(line) and line.length]
    if short:
        yield (
            f"At {listed(short)} tokens less than nine in ten later turns with reuse were a HIT; "
            "the reasons are in the table."
        )


def _reuses_little(line: Line) -> bool:
    return line.leg.reuse == "on" and line.hits is not None and line.hits < 0.9


def _room(summary: Summary) -> Iterator[str]:
    for line in summary.lines:
        if line.pinned_tokens and line.room_tokens and line.pinned_tokens > 0.8 * line.room_tokens:
            yield (
                "Decode's KV cache was nearly full, so handles may have been given back early: "
                "fewer conversations at a time, or a larger cache, would show more."
            )
            return


def _cache(caching: bool | None) -> str:
    said = {None: "", True: "on", False: "off"}[caching]
    return f" (prefill's prefix cache {said})" if said else ""


def _where(ratio: Ratio) -> str:
    return "In the trace" if ratio.length is None else f"At {ratio.length:,} tokens"


def times(estimate: Estimate) -> str:
    """`3.1 times as fast (95 %: 2.9 to 3.3)`."""
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.1f} times as fast"
    return f"{estimate.value:.1f} times as fast (95 %: {estimate.low:.1f} to {estimate.high:.1f})"


def time(milliseconds: float) -> str:
    """`85 ms`, `1.24 s`."""
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1000:.2f} s"


def environment(about: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Rows of what ran."""
    model = about.get("model", {})
    shape = about.get("settings", {}).get("shape", {})
    engines = [engine for group in about.get("groups", ()) for engine in group["engines"]]
    versions = sorted({str(engine["vllm"]) for engine in engines if engine.get("vllm")})
    settings = about.get("settings", {})
    rows = [
        ("deployment", f"{about.get('name')} ({about.get('target')})"),
        ("model", " ".join(str(value) for value in model.values() if value)),
        ("vLLM", listed(versions)),
        ("NIXL", str(about.get("nixl") or "")),
        ("KV over", str(about.get("transport") or "")),
        ("decode's TTL", _duration(about.get("decoder_ttl"))),
        ("pdctl", f"{about.get('pdctl')}, Python {about.get('python')}, {about.get('platform')}"),
        ("workload", _workload(shape, settings)),
    ]
    return [(name, value) for name, value in rows if value]


def _duration(seconds: object) -> str:
    return format_duration(seconds) if isinstance(seconds, int | float) else ""


def _workload(shape: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    if settings.get("trace"):
        return f"trace {settings['trace']} at {settings['speed']:g} times its speed"
    if not shape:
        return ""
    arrivals = (
        f"{shape['rate']:g} conversations a second begin"
        if shape.get("rate")
        else f"{shape['clients']} clients"
    )
    return (
        f"{shape['conversations']} conversations × {shape['turns']} turns × "
        f"({shape['question']} in, {shape['answer']} out) tokens, {arrivals}, "
        f"{settings.get('repeats')} repeats"
    )
