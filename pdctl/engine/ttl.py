"""How long the router may offer a handle, given how long decode keeps the blocks (FACTS T1).

Decode starts its clock when a turn finishes; the router starts its own when the handle arrives,
which is later. Prefill declines a read from 5 s before decode's deadline, and a declined read
fails the request. The router must therefore stop offering a handle this much earlier:
"""

from pdctl.base.durations import format_duration

DECLINE_S = 5.0
"""Prefill declines reads from here on (`_KV_BLOCKS_EXPIRY_SAFETY_MARGIN`, 0.27.1 to 0.33.0)."""
TRANSFER_S = 1.0
"""The longest measured transfer is 0.13 s (24k tokens over EFA, published); rounded up."""
STALL_S = 2.0
"""The handle's way from decode to the router, the turn's way to prefill, and a busy event loop."""

MARGIN_S = DECLINE_S + TRANSFER_S + STALL_S
"""The sum of the three."""

GIVEN_BACK_S = 1.0
"""After so long the router has given back what it does not offer any more."""

SHORTEST_DECODER_TTL_S = MARGIN_S + 1.0
"""Below this there is no router TTL of at least a second that is safe."""


def safe_router_ttl(decoder_ttl: float) -> float:
    """The longest safe router TTL, in seconds; it can be negative."""
    return decoder_ttl - MARGIN_S


def kept_for(decoder_ttl: float) -> float:
    """For how many seconds at most blocks stay on decode that nobody comes back for.

    The router gives them back when it stops offering them, and looks for those once a second.
    """
    return max(0.0, min(decoder_ttl, safe_router_ttl(decoder_ttl) + GIVEN_BACK_S))


def no_safe_ttl(decoder_ttl: float) -> str:
    """Why this `decoder_ttl` leaves no room, in a sentence."""
    return (
        f"{format_duration(decoder_ttl)} leaves no safe `router.ttl`: prefill declines reads from "
        f"{DECLINE_S:g} s before the end, and {TRANSFER_S + STALL_S:g} s go to the transfer and "
        f"to delays; at least {SHORTEST_DECODER_TTL_S:g} s are needed"
    )


def unsafe_ttl(router_ttl: float, decoder_ttl: float) -> str:
    """Why this pair of values is unsafe, in a sentence."""
    return (
        f"{format_duration(router_ttl)} is not safe for `kv.decoder_ttl` "
        f"{format_duration(decoder_ttl)}: prefill declines reads from {DECLINE_S:g} s before the "
        f"end, and {TRANSFER_S + STALL_S:g} s go to the transfer and to delays; at most "
        f"{format_duration(safe_router_ttl(decoder_ttl))}"
    )
