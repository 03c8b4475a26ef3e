"""`pdctl audit`."""

from tests.cli.deployed import Deployed
from tests.cli.helpers import run_cli


def test_what_up_and_down_changed_in_order(deployed: Deployed) -> None:
    run_cli(*deployed.args("up", "--no-verify"))
    run_cli(*deployed.args("down", "--purge"))
    value = run_cli(*deployed.args("audit", "--json")).json
    said = [change["change"] for change in value["changes"]]
    starts = [line.split()[1] for line in said if line.startswith("start ")]
    stops = [line.split()[1] for line in said if line.startswith("stop ")]
    assert starts == ["prefill-0", "decode-0", "router-0"]
    assert sorted(stops) == sorted(starts)
    assert said[-1].startswith("purge ")
    assert {tuple(change["kept"]) for change in value["changes"]} == {("here",)}
    assert value["problems"] == []

    later = run_cli(*deployed.args("audit", "--since", "2099-01-01", "--json")).json
    assert later["changes"] == []
    shown = run_cli(*deployed.args("audit"))
    assert "start prefill-0 pid=" in shown.stdout
