"""Reading /metrics of engines and router into typed values.

Names come and go between versions of vLLM, so a missing one is None and never an error; a
counter is found with and without `_total`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pdctl.base import metric_names as names
from pdctl.base.errors import BadAnswerError
from pdctl.base.facts import EngineMetrics, RouterMetrics
from pdctl.observe.http import ask


@dataclass(frozen=True)
class Samples:
    """The samples of one scrape, by sample name."""

    by_name: Mapping[str, tuple[Sample, ...]]

    def values(self, name: str, **labels: str) -> list[float]:
        """Values under `name` (or `name_total`) whose labels include these."""
        found = self.by_name.get(name) or self.by_name.get(f"{name}_total") or ()
        return [
            sample.value
            for sample in found
            if all(sample.labels.get(key) == value for key, value in labels.items())
        ]

    def total(self, name: str, **labels: str) -> float | None:
        """Sum over labels (one URL can serve several data-parallel engines); None if absent."""
        values = self.values(name, **labels)
        return sum(values) if values else None

    def worst(self, name: str) -> float | None:
        """Greatest value; None if absent."""
        return max(self.values(name), default=None)

    def label(self, name: str, label: str) -> str | None:
        """A label's value on the first sample that has it, for metrics that carry facts."""
        for sample in self.by_name.get(name, ()):
            if label in sample.labels:
                return sample.labels[label]
        return None

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Values summed by one label."""
        return self.by_labels(name, (label,))

    def by_labels(self, name: str, labels: Iterable[str]) -> dict[str, float]:
        """Values summed by several labels, with a space between them."""
        sums: dict[str, float] = {}
        wanted = tuple(labels)
        for sample in self.by_name.get(name) or self.by_name.get(f"{name}_total") or ():
            key = " ".join(sample.labels.get(label, "") for label in wanted)
            sums[key] = sums.get(key, 0.0) + sample.value
        return sums


def parse_samples(text: str) -> Samples:
    """Parse the Prometheus text format.

    Raises:
        BadAnswerError: the text is something else.
    """
    by_name: dict[str, list[Sample]] = {}
    try:
        for sample in _samples(text):
            by_name.setdefault(sample.name, []).append(sample)
    except ValueError as error:
        raise BadAnswerError(
            f"/metrics does not answer in Prometheus' text format: {error}"
        ) from error
    return Samples({name: tuple(samples) for name, samples in by_name.items()})


def _samples(text: str) -> Iterable[Sample]:
    for family in text_string_to_metric_families(text):
        yield from family.samples


def engine_metrics(samples: Samples) -> EngineMetrics:
    """Pick the engine's values out of a scrape."""
    config = names.VLLM_CACHE_CONFIG
    return EngineMetrics(
        kv_usage=samples.worst(names.VLLM_KV_USAGE),
        waiting=_whole(samples.total(names.VLLM_WAITING)),
        running=_whole(samples.total(names.VLLM_RUNNING)),
        finished=_whole(samples.total(names.VLLM_FINISHED)),
        nixl_bytes=_whole(samples.total(f"{names.NIXL_BYTES}_sum")),
        nixl_transfers=_whole(samples.total(f"{names.NIXL_BYTES}_count")),
        nixl_failed=_whole(samples.total(names.NIXL_FAILED_TRANSFERS)),
        nixl_expired=_whole(samples.total(names.NIXL_EXPIRED)),
        nixl_after_expiry=_whole(samples.total(names.NIXL_AFTER_EXPIRY)),
        external_tokens=_whole(
            samples.total(names.VLLM_PROMPT_TOKENS_BY_SOURCE, source="external_kv_transfer")
        ),
        block_size=_number(samples.label(config, "block_size")),
        num_blocks=_number(samples.label(config, "num_gpu_blocks")),
        prefix_caching=_truth(samples.label(config, "enable_prefix_caching")),
        process_start=samples.worst(names.PROCESS_START_TIME),
    )


def router_metrics(samples: Samples) -> RouterMetrics:
    """Pick the router's values out of a scrape."""
    return RouterMetrics(
        turns=samples.by_label(names.ROUTER_TURNS, "outcome"),
        reasons=samples.by_labels(names.ROUTER_TURNS, ("outcome", "reason")),
        retries=samples.by_label(names.ROUTER_RETRIES, "cause"),
        reused_tokens=_whole(samples.total(names.ROUTER_REUSED_TOKENS)),
        prompt_tokens=_whole(samples.total(names.ROUTER_PROMPT_TOKENS)),
        retained_tokens=_whole(samples.total(names.ROUTER_RETAINED_TOKENS)),
        handles=_whole(samples.total(names.ROUTER_HANDLES)),
        in_flight=_whole(samples.total(names.ROUTER_IN_FLIGHT)),
    )


async def scrape(
    session: aiohttp.ClientSession, url: str, *, key: str | None = None, timeout: float = 10.0
) -> Samples:
    """GET `url`/metrics.

    Raises:
        UnreachableError: no answer within `timeout` seconds, or an HTTP error.
        BadAnswerError: the answer is no Prometheus text.
    """
    where = f"{url.rstrip('/')}/metrics"
    answer = await ask(session, where, key=key, timeout=timeout)
    return parse_samples(answer.decode("utf-8", "replace"))


async def scrape_engine(
    session: aiohttp.ClientSession, url: str, *, key: str | None = None, timeout: float = 10.0
) -> EngineMetrics:
    """`scrape` and pick the engine's values."""
    return engine_metrics(await scrape(session, url, key=key, timeout=timeout))


async def scrape_router(
    session: aiohttp.ClientSession, url: str, *, key: str | None = None, timeout: float = 10.0
) -> RouterMetrics:
    """`scrape` and pick the router's values."""
    return router_metrics(await scrape(session, url, key=key, timeout=timeout))


def growth(before: float | None, after: float | None) -> int | None:
    """How much a counter grew; None when unknown or when the process restarted in between.

    A histogram without observations may be absent before: that is zero.
    """
    if after is None:
        return None
    grown = after - (before or 0)
    return int(grown) if grown >= 0 else None


def _whole(value: float | None) -> int | None:
    return None if value is None or value != value else int(value)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _truth(text: str | None) -> bool | None:
    return {"True": True, "False": False}.get(text or "")
