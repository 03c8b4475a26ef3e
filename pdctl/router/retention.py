"""How much of what decode retains has to go, so that new requests need not wait. Pure.

Every retained block is one that decode cannot give to a new request, which then waits until the
TTL frees it (FACTS T6: 39 s for the sixth conversation). The router knows before decode does: it
has seen every request that comes, and keeps the handles of those that ended.
"""

# Kept free, as a share of decode's room: answers may be longer than was thought.
_SPARE = 0.05


def shortfall(capacity: int | None, retained: int, running: int, others: int) -> int:
    """Tokens whose blocks must be given back.

    Args:
        capacity: tokens that decode's KV blocks hold; None while it does not say.
        retained: tokens pinned by handles that could be released.
        running: tokens that requests of this router hold or will hold there.
        others: tokens held by what this router does not know of.
    """
    if capacity is None:
        return 0
    missing = retained + running + others - int(capacity * (1 - _SPARE))
    return max(0, min(missing, retained))


def held_by_others(capacity: int | None, usage: float | None, retained: int, running: int) -> int:
    """Tokens on decode that are neither retained for this router nor of a request of it.

    Args:
        usage: share of decode's blocks that are in use, 0 to 1, as it says itself.
    """
    if capacity is None or usage is None:
        return 0
    return max(0, int(capacity * usage) - retained - running)
