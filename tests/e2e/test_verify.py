"""`verify` on real pairs that have the flag off on one side: it says which (FACTS T7)."""

import pytest

from pdctl.observe.verify import VerifyOptions, verify
from tests.e2e.harness import Pair, Setup, routed

OFF = {"kv_connector_extra_config": {"bidirectional_kv_xfer": False}}
OPTIONS = VerifyOptions(history_tokens=300, ready_s=15.0, chat=False)


@pytest.mark.engines(Setup("decode-off", connector={"decode": OFF}))
async def test_decode_off_is_named(pair: Pair) -> None:
    async with routed(pair, need_pair=False) as router:
        report = await verify(router.endpoints, OPTIONS)
    assert not report.ok
    assert report.side == "decode", report.reason
    assert "decode returns no handle" in report.reason
    assert report.output_equal is True


@pytest.mark.engines(Setup("prefill-off", connector={"prefill": OFF}))
async def test_prefill_off_is_named_and_nothing_hangs(pair: Pair) -> None:
    async with routed(pair, need_pair=False) as router:
        report = await verify(router.endpoints, OPTIONS)
    assert not report.ok
    assert report.side == "prefill", report.reason
    assert "prefill does nothing with them" in report.reason
    assert report.output_equal is True
