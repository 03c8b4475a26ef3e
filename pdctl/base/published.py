"""What others have measured and published, to compare with (FACTS 6)."""

from dataclasses import dataclass

Ends = tuple[float, float]
"""A value at the shortest length and at the longest."""


@dataclass(frozen=True)
class Published:
    """One model on two p5en.48xlarge over EFA, prefill's prefix cache off.

    Attributes:
        lengths: the shortest and the longest prefix, tokens.
        ttft_off, ttft_on: time to first token without and with reuse, ms.
        transfer: of KV from decode to prefill, ms.
        prefill_off, prefill_on: prefill without and with reuse, ms.
    """

    model: str
    lengths: tuple[int, int]
    ttft_off: Ends
    ttft_on: Ends
    transfer: Ends
    prefill_off: Ends
    prefill_on: Ends


PUBLISHED = (
    Published(
        "Qwen3-32B",
        lengths=(2000, 24000),
        ttft_off=(158, 778),
        ttft_on=(122, 460),
        transfer=(30, 130),
        prefill_off=(153, 744),
        prefill_on=(128, 414),
    ),
    Published(
        "GLM-5-FP8",
        lengths=(2000, 20000),
        ttft_off=(500, 2334),
        ttft_on=(358, 702),
        transfer=(29, 110),
        prefill_off=(500, 2331),
        prefill_on=(316, 541),
    ),
)
