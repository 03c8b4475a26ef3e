"""Why a turn may be computed from the beginning although nothing is wrong."""

MAY_MISS = frozenset(
    (
        *("first_turn", "no_conversation", "below_threshold", "prefill_had_it", "diverged"),
        *("left_to_another", "reuse_off", "expired", ""),
    )
)
EXCLUDED = "excluded_"
"""What the reasons begin with that a request brings itself."""


def is_meant(reason: str) -> bool:
    """Whether a turn with this reason is no sign of anything broken."""
    return reason in MAY_MISS or reason.startswith(EXCLUDED)
