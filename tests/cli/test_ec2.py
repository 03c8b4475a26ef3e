"""The real commands against moto's server over HTTP: what they say, what they make, what is left.

No host answers there, so `up` ends when it wants to log in; `tests/lab` has one that goes on.
"""

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from pdctl.accept import kept
from pdctl.base.exits import ExitCode
from pdctl.deploy import ec2, ec2things
from pdctl.state.model import DeploymentState, Intervals
from pdctl.state.store import StateStore
from pdctl.targets import ec2_read
from tests.accept.test_kept import passed, put
from tests.cli.helpers import CliResult, run_cli
from tests.ec2.cloud import IMAGE, NAME, REGION, document, moto_server, network, write


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with moto_server() as url:
        yield url


class Account:
    """The account that the commands see, and the file that they read."""

    def __init__(self, url: str, folder: Path) -> None:
        self.folder = folder
        self.ec2: Any = boto3.client("ec2", region_name=REGION, endpoint_url=url)
        vpc = self.ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
        self.subnets, self.vpc, _ = network(self.ec2, vpc)
        self.write()

    def write(self, **target: Any) -> None:
        content = document(IMAGE, **{"instance_type": "c7i.2xlarge", **target})
        content["kv"]["backends"] = ["UCX"]
        write(self.folder, content)

    def write_p5en(self, **target: Any) -> None:
        write(self.folder, document(IMAGE, **target))

    def run(self, command: str, *more: str) -> CliResult:
        return run_cli(command, "-f", str(self.folder / "pd.yaml"), *more)

    def running(self) -> list[str]:
        found = self.ec2.describe_instances()["Reservations"]
        instances = [each for group in found for each in group["Instances"]]
        return [e["InstanceId"] for e in instances if e["State"]["Name"] == "running"]


@pytest.fixture
def account(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Account:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("PDCTL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    # Nobody answers at the addresses of moto's instances.
    monkeypatch.setattr(ec2, "SSH_LIMIT_S", 0.0)
    monkeypatch.setattr(ec2things.Clock, "poll_s", 0.01)
    # What moto does not know it answers with 500, which boto3 would ask again and again.
    monkeypatch.setattr(ec2_read, "ATTEMPTS", 1)
    urllib.request.urlopen(urllib.request.Request(f"{server}/moto-api/reset", method="POST"))
    return Account(server, tmp_path)


def test_plan_shows_machines_cost_and_what_it_could_not_ask(account: Account) -> None:
    account.write_p5en()
    shown = account.run("plan", "--verbose")
    assert shown.exit_code == 0, shown.stderr
    assert "+ make 2 × p5en.48xlarge (prefill-0, decode-0) in us-west-2c, with 17 network" in (
        shown.stdout
    )
    assert "+ make 3 elastic IP addresses" in shown.stdout
    assert f"use image {IMAGE}" in shown.stdout
    assert f"use subnet {account.subnets['us-west-2c']} in us-west-2c" in shown.stdout
    assert "cost: 2 × p5en.48xlarge: $126.592 an hour" in shown.stdout
    assert "ec2:RunInstances {" in shown.stdout
    assert '"Values": ["true"]}]} (the VPC)' in shown.stdout
    assert "(again and again, until all run)" in shown.stdout
    assert "cost: $127.13 an hour, $3051.08 a day (prices of 2026-07-20), at most 8 hours" in (
        shown.stderr
    )
    assert "quota L-417A185B: 384 vCPUs are needed, not known are allowed" in shown.stderr
    assert "not known: live prices: " in shown.stderr
    assert "no part of pdctl's EC2 path was ever run on real EC2" in shown.stderr
    assert "EC2 says that you may do this (DryRun)" in shown.stderr
    assert "+ start prefill-0 on <address of prefill-0>:8100" in shown.stdout
    assert account.running() == []


def test_what_passed_on_ec2_is_not_said_to_be_untried(account: Account, tmp_path: Path) -> None:
    account.write_p5en()
    bundle = tmp_path / "accept-demo.tar.gz"
    put(bundle, passed())
    kept.keep(bundle)
    (kept.folder() / "broken.tar.gz").write_bytes(b"no")
    shown = account.run("plan")
    assert "was ever run on real EC2" not in shown.stderr
    assert "vLLM 0.33.0, NIXL 1.5.0 passed `pdctl accept` on EC2: 2026-11-30" in shown.stderr
    assert "broken.tar.gz is no acceptance bundle" in shown.stderr
    found = account.run("plan", "--json").json["accepted"]
    assert found == str(kept.folder() / bundle.name)


def test_plan_as_json_has_the_shape_of_the_contract(account: Account) -> None:
    account.write_p5en()
    value = account.run("plan", "--json").json
    first, second, third = value["resources"]["instances"]
    assert (first["role"], second["role"], third["role"]) == ("prefill", "decode", "router")
    assert (first["type"], first["zone"]) == ("p5en.48xlarge", "us-west-2c")
    assert len(first["interfaces"]) == 17
    assert first["interfaces"][:2] == [
        {"card": 0, "device": 0, "type": "interface"},
        {"card": 0, "device": 1, "type": "efa-only"},
    ]
    assert value["cost"]["hourly_usd"] == pytest.approx(127.128, abs=0.01)
    assert value["cost"]["as_of"] == "2026-07-20"
    assert value["refusals"] == []
    assert [step["id"] for step in value["steps"]][-1] == "verify"
    assert "calls" not in value
    calls = account.run("plan", "--json", "--verbose").json["calls"]
    assert calls["plan"][0]["action"] == "ec2:DescribeInstances"
    assert "ec2:RunInstances" in [each["action"] for each in calls["up"]]


def test_plan_without_a_login_says_so_and_shows_the_rest(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.write_p5en()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    shown = account.run("plan")
    assert shown.exit_code == 0
    assert "EC2 was not asked: there are no AWS credentials" in shown.stderr
    assert "2 × p5en.48xlarge (prefill-0, decode-0) in us-west-2c, with 17 network" in shown.stdout
    refused = account.run("up", "--yes")
    assert refused.exit_code == ExitCode.NO_PERMISSION
    assert "EC2 cannot be asked: there are no AWS credentials" in refused.stderr


def test_plan_without_reservations_in_reach_says_so(account: Account) -> None:
    """moto has none; the plan goes on, and the reservation is not judged."""
    capacity = {"kind": "odcr", "reservation_id": "cr-0123456789abcdef0", "max_hours": 8}
    account.write_p5en(capacity=capacity)
    shown = account.run("plan")
    assert shown.exit_code == 0, shown.stderr
    assert "not known: the capacity reservation: the answer to ec2:Describe" in shown.stderr
    assert "use capacity reservation cr-0123456789abcdef0" in shown.stdout


def test_up_refuses_what_ec2_would_refuse_before_it_makes_anything(account: Account) -> None:
    account.write_p5en(root_volume_gib=50, instance_type="g5.48xlarge")
    refused = account.run("up", "--yes")
    assert refused.exit_code == ExitCode.CONFIG
    assert "EFA of `g5.48xlarge` does not read by RDMA" in refused.stderr
    assert account.running() == []
    shown = account.run("plan", "--json").json
    assert shown["refusals"][0]["rule"] == "rdma-read"


def test_up_asks_before_it_costs(account: Account) -> None:
    refused = account.run("up")
    assert refused.exit_code == ExitCode.USAGE
    assert "this needs your consent" in refused.stderr
    assert account.running() == []
    dry = account.run("up", "--dry-run")
    assert dry.exit_code == 0
    assert "+ make 2 × c7i.2xlarge (prefill-0, decode-0)" in dry.stdout
    assert account.running() == []


def test_hosts_that_do_not_answer_are_ended_when_the_file_says_so(account: Account) -> None:
    failed = account.run("up", "--yes")
    assert failed.exit_code == ExitCode.TRY_AGAIN, failed.stderr
    assert "3 hosts to answer over SSH: not within 0 s" in failed.stderr
    assert "ending what this `up` made, as `capacity.on_failure: end` says" in failed.stderr
    assert account.running() == []
    assert account.run("orphans", "--json").json["things"] == []


def test_hosts_are_kept_counted_found_and_ended(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept after a failure; seen by `plan` and `orphans`; ended without any record."""
    account.write(capacity={"kind": "on-demand", "max_hours": 8, "on_failure": "keep"})
    failed = account.run("up", "--yes", "--verbose")
    assert failed.exit_code == ExitCode.TRY_AGAIN
    assert "kept, as `capacity.on_failure: keep` says" in failed.stderr
    assert "ec2:RunInstances {" in failed.stderr
    assert len(account.running()) == 3
    known = account.run("orphans")
    assert known.exit_code == 0
    assert "prefill-0" in known.stdout
    shown = account.run("plan")
    assert "× c7i.2xlarge (" not in shown.stdout
    assert "made by pdctl" in shown.stdout

    monkeypatch.setenv("PDCTL_STATE_DIR", str(tmp_path / "other"))
    lost = account.run("orphans")
    assert lost.exit_code == ExitCode.BAD_ANSWER
    assert f"end it with: pdctl down --name {NAME} --region {REGION}" in lost.stderr
    found = run_cli("orphans", "--region", REGION, "--json").json["things"]
    assert {each["kind"] for each in found} >= {"instance", "group", "key-pair", "address"}
    down = run_cli("down", "--name", NAME, "--region", REGION, "--json")
    assert down.exit_code == 0, down.stderr
    assert len([each for each in down.json["released"] if each.startswith("instance")]) == 3
    assert account.running() == []
    assert run_cli("orphans", "--region", REGION).exit_code == 0


def test_down_ends_what_up_made(account: Account) -> None:
    account.write(capacity={"kind": "on-demand", "max_hours": 8, "on_failure": "keep"})
    account.run("up", "--yes")
    status = account.run("status")
    assert status.exit_code == ExitCode.BAD_ANSWER
    assert "3 instances on EC2: about $1.25 an hour" in status.stderr
    assert "they end by themselves in 8.0 h" in status.stderr
    assert "nothing on them answers" in status.stderr
    would = account.run("down", "--dry-run", "--json")
    assert would.exit_code == 0, would.stderr
    kinds = [each.split()[0] for each in would.json["would_release"]]
    assert (kinds.count("instance"), kinds.count("group")) == (3, 1)
    assert len(account.running()) == 3
    down = account.run("down")
    assert down.exit_code == 0, down.stderr
    assert "the instances are ended with all that runs on them" in down.stderr
    assert "nothing is left" in down.stderr
    assert account.running() == []
    assert account.ec2.describe_addresses()["Addresses"] == []
    again = account.run("down", "--json")
    assert again.json["released"] == []


def test_down_needs_no_file_to_end_what_costs(account: Account) -> None:
    account.write(capacity={"kind": "on-demand", "on_failure": "keep"})
    account.run("up", "--yes")
    state = DeploymentState(
        name=NAME,
        target="ec2",
        phase="running",
        pdctl_version="0",
        config_file=str(account.folder / "gone.yaml"),
        config_digest="",
        created_at=0.0,
        stop_timeout=1.0,
        kv=Intervals(480.0, 460.0),
    )
    StateStore(NAME).save(state)
    down = run_cli("down", "--name", NAME)
    assert down.exit_code == 0, down.stderr
    assert "the hosts are found by their record" in down.stderr
    assert account.running() == []
    assert StateStore(NAME).load() is None
