"""The p5en example through `up` and `down`: moto as EC2, hosts of the lab as its instances.

The overlay changes what this machine has not: tiny servers in place of engines and router, UCX in
place of EFA, root in place of ubuntu. Everything else is the path of real hosts; only the proof,
which needs engines, is left out.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from tests.cli.deployed import Deployed
from tests.ec2.cloud import EXAMPLE, IMAGE, REGION, moto_server, network
from tests.lab.hosts import Lab
from tests.lab.site import Operator

RUN = Path("/run/pdctl")
pytestmark = [
    pytest.mark.skip(reason="it was written for hosts that share the machine's files; they do not"),
    pytest.mark.lab,
    pytest.mark.timeout(300),
]

NAME = "p5en-lab"


def configuration(lab: Lab, deployed: Deployed, base: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    small: dict[str, Any] = yaml.safe_load(deployed.file.read_text())
    document |= {key: small[key] for key in ("model", "prefill", "decode", "engine")}
    document["name"] = NAME
    document["kv"] |= {"buffer_device": "cpu", "backends": ["UCX"]}
    target = document["target"]
    for key in ("key_name", "router"):
        del target[key]
    target |= {
        "image": IMAGE,
        "capacity": {"kind": "on-demand", "max_hours": 1, "on_failure": "keep"},
        "network": {"access": "private"},
        "access": {"user": "root", "key_file": str(lab.key_file), "connect_timeout": 10},
        "base_dir": str(base),
        "supervision": "process",
        "start_timeout": 60,
        "stop_timeout": 5,
    }
    # It stays on its host's loopback: `up` and `status` go there over SSH.
    document["router"] = small["router"] | {"host": "127.0.0.1", "port": 8000}
    return document


def with_nat(ec2: Any) -> None:
    """The default VPC's way out, as a private subnet has it."""
    vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    subnets, vpc, _ = network(ec2, vpc)
    gateway = ec2.create_nat_gateway(SubnetId=next(iter(subnets.values())))
    tables = ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [vpc]}])
    ec2.replace_route(
        RouteTableId=tables["RouteTables"][0]["RouteTableId"],
        DestinationCidrBlock="0.0.0.0/0",
        NatGatewayId=gateway["NatGateway"]["NatGatewayId"],
    )


@pytest.fixture
def account(lab: Callable[[int], Lab], tmp_path: Path) -> Iterator[tuple[Operator, Any]]:
    two = lab(2)
    operator = Operator(tmp_path, two)
    document = configuration(two, Deployed(tmp_path), operator.base)
    (tmp_path / "api-keys.txt").write_text("sk-1\n")
    operator.file.write_text(yaml.safe_dump(document, sort_keys=False))
    with moto_server(*(host.address for host in two.hosts)) as url:
        login = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
        operator.env |= {**login, "AWS_ENDPOINT_URL": url, "AWS_EC2_METADATA_DISABLED": "true"}
        ec2 = boto3.client(
            "ec2",
            region_name=REGION,
            endpoint_url=url,
            aws_access_key_id="x",
            aws_secret_access_key="y",
        )
        with_nat(ec2)
        had_run = RUN.exists()
        try:
            yield operator, ec2
        finally:
            operator.types("down", "--yes")
            if not had_run and RUN.exists():
                RUN.rmdir()  # fails, and should, when something is in it


def instances(ec2: Any) -> list[dict[str, Any]]:
    found = [each for r in ec2.describe_instances()["Reservations"] for each in r["Instances"]]
    return [each for each in found if each["State"]["Name"] == "running"]


def test_the_p5en_example_becomes_a_running_pair_and_leaves_nothing(
    account: tuple[Operator, Any],
) -> None:
    operator, ec2 = account
    shown = operator.asks("plan")
    assert [each["type"] for each in shown["resources"]["instances"]] == ["p5en.48xlarge"] * 2
    assert shown["refusals"] == []

    up = operator.types("up", "--yes", "--no-verify", "--json")
    said = json.loads(up.stdout)
    assert [each["name"] for each in said["processes"]] == ["prefill-0", "decode-0", "router-0"]
    assert "was ever run on real EC2" in up.stderr
    # No host of the lab runs the script of the first start: that must not go unsaid.
    assert "prefill-0 will NOT end by itself" in up.stderr
    addresses = {each["PrivateIpAddress"] for each in instances(ec2)}
    assert addresses == {host.address for host in operator.lab.hosts}

    again = operator.types("up", "--yes", "--no-verify")
    assert "nothing to do" in again.stderr
    assert len(instances(ec2)) == 2
    status = operator.asks("status")
    assert [(each["role"], each["host"]) for each in status["roles"]] == [
        ("prefill", "prefill-0"),
        ("decode", "decode-0"),
        ("router", "prefill-0"),
    ]
    assert all(each["healthy"] for each in status["roles"])

    down = operator.asks("down", "--yes")
    assert [each["name"] for each in down["ended"]] == ["router-0", "prefill-0", "decode-0"]
    assert instances(ec2) == []
    groups = ec2.describe_security_groups()["SecurityGroups"]
    assert [each["GroupName"] for each in groups if each["GroupName"] != "default"] == []
    assert ec2.describe_key_pairs()["KeyPairs"] == []
    assert ec2.describe_volumes()["Volumes"] == []
    assert operator.asks("orphans")["things"] == []
