"""The plan: formulas against the simulation, what binds, and more load with no fewer hosts."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.analyze.fleet import Load, Site, TooSmallError, plan_fleet
from pdctl.analyze.speed import CURVES
from pdctl.base.prices import HOSTS
from pdctl.engine.known_models import KNOWN_MODELS
from pdctl.engine.kv_arithmetic import kv_model

QWEN = KNOWN_MODELS["Qwen/Qwen3-32B"]
SITE = Site(
    kv_model(QWEN.config, tensor_parallel=8),
    QWEN.weight_bytes or 0,
    HOSTS["p5en.48xlarge"],
    "p5en.48xlarge",
    CURVES[0],
)
LOAD = Load(sessions=3000, gap=45.0, context=12_000)


@pytest.mark.parametrize("ttl", [None, 30.0, 300.0])
def test_the_simulation_agrees_with_the_formulas(ttl: float | None) -> None:
    fleet = plan_fleet(replace(LOAD, ttl=ttl), SITE, simulate_sessions=3000)
    assert fleet.simulated is not None
    assert abs(fleet.simulated.difference) < 0.03
    assert fleet.simulated.hit_share == pytest.approx(fleet.hit_share, abs=0.03)


def test_without_a_ttl_the_fewest_hosts_win() -> None:
    fleet = plan_fleet(LOAD, SITE, simulate_sessions=0)
    assert fleet.simulated is None
    assert fleet.hosts == min(choice.hosts for choice in fleet.alternatives[1:])
    assert fleet.alternatives[0].ttl_s == 0
    assert fleet.cost["hourly_usd"] == round(fleet.hosts * 63.296, 2)
    assert fleet.prefill["hosts_without_reuse"] == fleet.alternatives[0].prefill_hosts


def test_what_binds_decode() -> None:
    long = plan_fleet(replace(LOAD, context=60_000), SITE, simulate_sessions=0)
    short = plan_fleet(Load(3000, 1.0, 500, ttl=20.0), SITE, simulate_sessions=0)
    assert long.decode["bound_by"] == "memory"
    assert short.decode["bound_by"] == "turns at once"
    assert short.routers > 2


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 50_000), st.floats(1, 600), st.integers(100, 60_000), st.integers(20, 900))
def test_more_is_never_less(sessions, gap, context, ttl) -> None:
    load = Load(sessions, gap, context, ttl=float(ttl))
    small = plan_fleet(load, SITE, simulate_sessions=0)
    more = plan_fleet(replace(load, sessions=sessions * 2), SITE, simulate_sessions=0)
    longer = plan_fleet(replace(load, ttl=ttl * 2.0), SITE, simulate_sessions=0)
    assert small.hosts <= more.hosts
    assert small.retained_tokens <= longer.retained_tokens
    assert small.hit_share <= longer.hit_share
    assert small.decode["used_share"] <= 0.9 + 1e-9
    assert small.prefill["busy_share"] <= 0.6 + 1e-9


def test_what_does_not_fit_is_refused() -> None:
    small = replace(SITE, host=HOSTS["p5.4xlarge"], type="p5.4xlarge")
    with pytest.raises(TooSmallError, match="has 1 GPUs, fewer than 8"):
        plan_fleet(LOAD, small, simulate_sessions=0)
    one = replace(small, model=kv_model(QWEN.config))
    with pytest.raises(TooSmallError, match="less than one conversation"):
        plan_fleet(replace(LOAD, context=30_000), one, simulate_sessions=0)


def test_the_engines_own_report_counts_more_than_arithmetic() -> None:
    fleet = plan_fleet(LOAD, replace(SITE, capacity=100_000), simulate_sessions=0)
    assert fleet.decode["engine_tokens"] == 100_000
    assert any("its own report" in each for each in fleet.assumptions)
