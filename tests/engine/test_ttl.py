"""The arithmetic that keeps a handle from being offered too late."""

from hypothesis import given
from hypothesis import strategies as st

from pdctl.engine import ttl


def test_the_default_for_the_engines_default() -> None:
    assert ttl.safe_router_ttl(480.0) == 472.0


@given(st.floats(min_value=ttl.SHORTEST_DECODER_TTL_S, max_value=1e6))
def test_the_default_is_always_before_prefill_declines(decoder_ttl: float) -> None:
    chosen = ttl.safe_router_ttl(decoder_ttl)
    assert chosen >= 1.0
    assert chosen + ttl.TRANSFER_S <= decoder_ttl - ttl.DECLINE_S


def test_words_say_the_limit() -> None:
    assert ttl.unsafe_ttl(480, 480) == (
        "8m is not safe for `kv.decoder_ttl` 8m: prefill declines reads from 5 s before the end, "
        "and 3 s go to the transfer and to delays; at most 7m52s"
    )
