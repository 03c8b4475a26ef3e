"""`pdctl accept` on hosts over SSH: every step but EFA's, restarts of both roles among them."""

import tarfile
from pathlib import Path

import pytest

from tests.lab.site import Site

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

_SOAK = (pytest.mark.soak, pytest.mark.timeout(1800))


@pytest.mark.parametrize("site", ["stand-in", pytest.param("real", marks=_SOAK)], indirect=True)
def test_every_step_passes_and_the_bundle_says_so(
    site: Site, running: Site, tmp_path: Path
) -> None:
    before = {role["role"]: role["pid"] for role in site.operator.asks("status")["roles"]}

    bundle = tmp_path / "accept.tar.gz"
    # `doctor` sees that a stand-in has no plugin and no side channel, as it should.
    skip = () if site.real else ("--skip", "doctor")
    limits = ("--minutes", "25", "--out", str(bundle))
    report = site.operator.asks("accept", "--yes", *limits, *skip)

    found = {each["id"]: each["status"] for each in report["results"]}
    left_out = {"efa", "async_scheduling", "speculative", "fp8_kv", *skip[1:]}
    assert {step for step, status in found.items() if status == "skip"} == left_out, found
    assert {status for step, status in found.items() if step not in left_out} == {"pass"}
    assert {"doctor", "pair.prefill-0.decode-0", "exact", "bench"} < set(found)
    assert {"restart.prefill", "restart.decode"} < set(found)
    after = {role["role"]: role["pid"] for role in site.operator.asks("status")["roles"]}
    assert {name for name in before if before[name] != after[name]} == {"prefill", "decode"}
    with tarfile.open(bundle) as archive:
        assert any(name.endswith("accept.json") for name in archive.getnames())
