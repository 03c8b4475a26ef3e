"""Dashboard, scrape configuration and alert rules, judged by Prometheus' own tool."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdctl.doctor.checks import CHECKS
from pdctl.render.alerts import alert_rules, alerts
from pdctl.render.dashboard import dashboard
from pdctl.render.scrape import Scraped, scrape_config
from pdctl.router.metrics import RouterMetrics

ROOT = Path(__file__).parents[2]
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="Debian's package prometheus")

SERVERS = (
    Scraped("prefill-0", "prefill", "http://192.0.2.1:8100"),
    Scraped("decode-0", "decode", "http://[2001:db8::1]:8200"),
    Scraped("router-0", "router", "https://router.example/pd/"),
)


def promtool(folder: Path, *args: str) -> str:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *args], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def expressions(value: Any) -> Iterator[str]:
    """Every `expr` of a dashboard or rule file."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key == "expr":
                yield inner
            yield from expressions(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from expressions(inner)


# --- what is rendered ------------------------------------------------------------------------


def test_how_a_server_is_scraped_is_told_by_its_url() -> None:
    config = scrape_config("pair", SERVERS, ["pair-alerts.yml"])
    job = config["scrape_configs"][0]
    assert [each["targets"] for each in job["static_configs"]] == [
        ["192.0.2.1:8100"],
        ["[2001:db8::1]:8200"],
        ["router.example"],
    ]
    assert job["static_configs"][0]["labels"] == {
        "deployment": "pair",
        "role": "prefill",
        "process": "prefill-0",
    }
    labels = job["static_configs"][2]["labels"]
    assert (labels["__scheme__"], labels["__metrics_path__"]) == ("https", "/pd/metrics")


def test_panels_do_not_overlap_and_each_has_its_own_id() -> None:
    made = dashboard("pair")["panels"]
    assert len({panel["id"] for panel in made}) == len(made)
    taken = set()
    for panel in made:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_every_expression_is_of_this_deployment_only() -> None:
    for made in (dashboard("pair"), alert_rules("pair")):
        for expr in expressions(made):
            selectors = re.findall(r"\{([^}]*)\}", expr)
            assert selectors, expr
            assert all('deployment="pair"' in each for each in selectors), expr


def test_every_metric_of_the_router_is_one_that_it_exports() -> None:
    has = {sample.split("{")[0] for sample in RouterMetrics().registry._names_to_collectors}
    used = set()
    for made in (dashboard("pair"), alert_rules("pair")):
        used |= {n for e in expressions(made) for n in re.findall(r"pdctl_router_\w+", e)}
    assert used - has == set()
    assert len(used) > 12


def test_every_alert_names_a_check_that_is_there_and_a_page_that_tells_of_it() -> None:
    ids = {check.id for check in CHECKS}
    page = (ROOT / "docs" / "monitoring.md").read_text()
    for alert in alerts("pair"):
        assert alert.check in ids
        assert (ROOT / "docs" / alert.page).exists()
        row = next(line for line in page.splitlines() if line.startswith(f"| `{alert.name}`"))
        assert alert.check in row


def test_a_deployment_that_is_not_to_reuse_is_not_blamed_for_it() -> None:
    def names(**options: bool) -> set[str]:
        rules = alert_rules("pair", **options)["groups"][0]["rules"]
        return {rule["alert"] for rule in rules}

    assert names() - names(reuses=False) == {
        "PdctlNeverReuses",
        "PdctlTurnsTooLate",
        "PdctlPairNotProven",
        "PdctlReadsFail",
    }


# --- what Prometheus makes of it ---------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("monitoring")
    (path / "pair-alerts.yml").write_text(yaml.safe_dump(alert_rules("pair")))
    config = scrape_config("pair", SERVERS, ["pair-alerts.yml"])
    (path / "prometheus.yml").write_text(yaml.safe_dump(config))
    return path


@needs_promtool
def test_prometheus_takes_the_scrape_configuration(folder: Path) -> None:
    said = promtool(folder, "check", "config", "prometheus.yml")
    assert "valid prometheus config" in said
    assert f"{len(alerts('pair'))} rules found" in said


@needs_promtool
def test_prometheus_parses_every_expression_of_the_dashboard(folder: Path) -> None:
    found = [expr.replace("$__rate_interval", "1m") for expr in expressions(dashboard("pair"))]
    rules = [{"record": f"panel:{i}", "expr": expr} for i, expr in enumerate(found)]
    document = {"groups": [{"name": "panels", "rules": rules}]}
    (folder / "panels.yml").write_text(json.dumps(document))
    assert f"{len(found)} rules found" in promtool(folder, "check", "rules", "panels.yml")


PREFILL = 'deployment="pair",role="prefill",process="prefill-0"'
DECODE = 'deployment="pair",role="decode",process="decode-0"'
ROUTER = 'deployment="pair",role="router",process="router-0"'

HEALTHY = {
    f"up{{{PREFILL}}}": "1x60",
    f"up{{{DECODE}}}": "1x60",
    f"up{{{ROUTER}}}": "1x60",
    # Follow-ups are reused; first turns and one-shots are not, and nothing is wrong with that.
    f'pdctl_router_turns_total{{{ROUTER},outcome="HIT",reason="continued"}}': "0+6x60",
    f'pdctl_router_turns_total{{{ROUTER},outcome="MISS",reason="first_turn"}}': "0+6x60",
    f'pdctl_router_turns_total{{{ROUTER},outcome="MISS",reason="excluded_n"}}': "0+1x60",
    f'pdctl_router_turns_total{{{ROUTER},outcome="MISS",reason="expired"}}': "0+1x60",
    f'pdctl_router_turns_total{{{ROUTER},outcome="MISS",reason="pair_paused"}}': "0+1x60",
    f"pdctl_router_reused_tokens_total{{{ROUTER}}}": "0+900x60",
    f'pdctl_router_alarms_total{{{ROUTER},kind="audit_breach"}}': "0x60",
    f'pdctl_router_retained_tokens{{{ROUTER},decode="d"}}': "60000x60",
    f'pdctl_router_capacity_tokens{{{ROUTER},decode="d"}}': "100000x60",
    f'pdctl_router_pair_ok{{{ROUTER},prefill="p",decode="d"}}': "1x60",
    # Failures of last week, from before Prometheus looked.
    f'pdctl_router_retries_total{{{ROUTER},cause="reuse_status"}}': "4x60",
    # Full of what is retained, and nobody waits; prefill is busy.
    f'vllm:kv_cache_usage_perc{{{DECODE},engine="0"}}': "0.9x60",
    f'vllm:num_requests_waiting{{{DECODE},engine="0"}}': "0x60",
    f'vllm:num_requests_running{{{DECODE},engine="0"}}': "3x60",
    f'vllm:kv_cache_usage_perc{{{PREFILL},engine="0"}}': "0.9x60",
    f'vllm:num_requests_waiting{{{PREFILL},engine="0"}}': "5x60",
    # A few clients that left.
    f'vllm:nixl_num_kv_expired_reqs_total{{{PREFILL},engine="0"}}': "0+0.5x60",
    f'vllm:nixl_num_kv_expired_reqs_total{{{DECODE},engine="0"}}': "0+9x60",
    f'vllm:nixl_bytes_transferred_count{{{DECODE},engine="0"}}': "0+12x60",
    f'vllm:nixl_num_notifications_after_expiry_total{{{DECODE},engine="0"}}': "0x60",
    f'vllm:nixl_num_failed_transfers_total{{{DECODE},engine="0"}}': "2x60",
}
"""One value a minute for an hour, by series."""

TURNS = f"pdctl_router_turns_total{{{ROUTER},outcome="
HITS = f'{TURNS}"HIT",reason="continued"}}'
PROVOKED: dict[str, dict[str, str]] = {
    "PdctlRouterDown": {f"up{{{ROUTER}}}": "0x60"},
    "PdctlEngineDown": {f"up{{{DECODE}}}": "0x60"},
    "PdctlNeverReuses": {
        HITS: "0x60",
        f'{TURNS}"MISS",reason="expired"}}': "0x60",
        f"pdctl_router_reused_tokens_total{{{ROUTER}}}": "0x60",
    },
    "PdctlTurnsTooLate": {f'{TURNS}"MISS",reason="expired"}}': "0+7x60"},
    "PdctlPairNotProven": {f'pdctl_router_pair_ok{{{ROUTER},prefill="p",decode="d"}}': "0x60"},
    "PdctlReadsFail": {
        # A series that begins with the first thing it counts.
        f'pdctl_router_retries_total{{{ROUTER},cause="reuse_timeout"}}': "_x41 1x19"
    },
    "PdctlExpiredReads": {
        f'vllm:nixl_num_notifications_after_expiry_total{{{DECODE},engine="0"}}': "0x40 1x19"
    },
    "PdctlFailedTransfers": {
        f'vllm:nixl_num_failed_transfers_total{{{DECODE},engine="0"}}': "2x40 3x19"
    },
    "PdctlLeasesExpire": {f'vllm:nixl_num_kv_expired_reqs_total{{{PREFILL},engine="0"}}': "0+8x60"},
    "PdctlDecodeStarved": {f'vllm:num_requests_waiting{{{DECODE},engine="0"}}': "1x60"},
    "PdctlRouterAlarm": {f'pdctl_router_alarms_total{{{ROUTER},kind="audit_breach"}}': "0x40 1x19"},
    "PdctlStoreFails": {
        f'pdctl_router_store_errors_total{{{ROUTER},operation="take"}}': "_x40 1+2x19"
    },
}
"""What is different where an alert fires, in the 45th minute."""

STARVED_WITHOUT_OUR_ROUTER = {
    f'vllm:num_requests_waiting{{{DECODE},engine="0"}}': "1x60",
    f'vllm:num_requests_running{{{DECODE},engine="0"}}': "0x60",
    f'pdctl_router_retained_tokens{{{ROUTER},decode="d"}}': "0x60",
}
BUSY = {
    # As full, but with work: that is load and no fault of what is retained.
    f'vllm:num_requests_waiting{{{DECODE},engine="0"}}': "4x60",
    f'pdctl_router_retained_tokens{{{ROUTER},decode="d"}}': "9000x60",
}


@needs_promtool
def test_each_alert_fires_on_what_it_is_for_and_on_nothing_else(folder: Path) -> None:
    assert {alert.name for alert in alerts("pair")} == set(PROVOKED)
    cases = [({}, None), (BUSY, None), (STARVED_WITHOUT_OUR_ROUTER, "PdctlDecodeStarved")]
    cases += [(change, name) for name, change in PROVOKED.items()]
    document = {
        "rule_files": ["pair-alerts.yml"],
        "evaluation_interval": "1m",
        "tests": [_case(HEALTHY | change, name) for change, name in cases],
    }
    (folder / "tests.yml").write_text(yaml.safe_dump(document))
    assert "SUCCESS" in promtool(folder, "test", "rules", "tests.yml")


def _case(series: Mapping[str, str], fires: str | None) -> dict[str, Any]:
    """That this alert, and no other, is there then: counted, whatever its labels."""
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    expected = [{"labels": f'{{alertname="{fires}"}}', "value": 1}] if fires else []
    return {
        "name": fires or "healthy",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": firing, "eval_time": "45m", "exp_samples": expected}],
    }
