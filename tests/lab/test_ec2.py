"""The p5en example through `up` and `down`: moto as EC2, hosts of the lab as its instances.

The overlay changes what this machine has not: the lab's engines and model for the example's, UCX
for EFA, root for ubuntu, capacity that moto can give. Everything else is the path of real hosts.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from tests.ec2.cloud import EXAMPLE, IMAGE, REGION, moto_server, network
from tests.lab import site
from tests.lab.hosts import Lab, leftovers, make_lab
from tests.lab.site import Operator

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

NAME = "p5en-lab"
MARK = f"PDCTL_PROCESS={site.BASE}/deployments/{NAME}/"


@dataclass(frozen=True)
class Account:
    """Somebody with an account on moto's EC2, whose instances are the hosts of a lab.

    Attributes:
        gateway: the network interface of the way out.
    """

    operator: Operator
    lab: Lab
    ec2: Any
    gateway: str

    def running(self) -> list[dict[str, Any]]:
        found = self.ec2.describe_instances()["Reservations"]
        instances = [each for group in found for each in group["Instances"]]
        return [each for each in instances if each["State"]["Name"] == "running"]

    def left(self) -> list[str]:
        """What there is in the account that was not there at first, and on the hosts."""
        groups = self.ec2.describe_security_groups()["SecurityGroups"]
        interfaces = self.ec2.describe_network_interfaces()["NetworkInterfaces"]
        return [
            *(each["InstanceId"] for each in self.running()),
            *(each["GroupId"] for each in groups if each["GroupName"] != "default"),
            *(each["KeyName"] for each in self.ec2.describe_key_pairs()["KeyPairs"]),
            *(each["VolumeId"] for each in self.ec2.describe_volumes()["Volumes"]),
            *(each["AllocationId"] for each in self.ec2.describe_addresses()["Addresses"]),
            *({each["NetworkInterfaceId"] for each in interfaces} - {self.gateway}),
            *(f"{host.name}: {pid}" for host in self.lab.hosts for pid in host.pids(MARK)),
        ]


def configuration(lab: Lab) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    small: dict[str, Any] = yaml.safe_load(site.EXAMPLE.read_text())
    # With them all that engines of the lab need: memory, wire, no prefix cache on prefill.
    document |= {key: small[key] for key in ("model", "prefill", "decode", "engine", "kv")}
    document["name"] = NAME
    document["router"]["limits"] = small["router"]["limits"]
    target = document["target"]
    del target["key_name"]
    target |= {
        "image": IMAGE,
        "capacity": {"kind": "on-demand", "max_hours": 1, "on_failure": "keep"},
        "network": {"access": "private"},
        "access": {"user": "root", "key_file": str(lab.key_file), "connect_timeout": 10},
        "start_timeout": small["target"]["start_timeout"],
        "stop_timeout": small["target"]["stop_timeout"],
    }
    return document


def with_nat(ec2: Any) -> str:
    """The default VPC's way out, as a private subnet has it; gives its network interface."""
    vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    subnets, vpc, _ = network(ec2, vpc)
    gateway = ec2.create_nat_gateway(SubnetId=next(iter(subnets.values())))
    tables = ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [vpc]}])
    ec2.replace_route(
        RouteTableId=tables["RouteTables"][0]["RouteTableId"],
        DestinationCidrBlock="0.0.0.0/0",
        NatGatewayId=gateway["NatGateway"]["NatGatewayId"],
    )
    (only,) = ec2.describe_network_interfaces()["NetworkInterfaces"]
    return str(only["NetworkInterfaceId"])


def ec2_at(url: str, login: Mapping[str, str]) -> Any:
    return boto3.client(
        "ec2",
        region_name=REGION,
        endpoint_url=url,
        aws_access_key_id=login["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=login["AWS_SECRET_ACCESS_KEY"],
    )


@pytest.fixture(
    params=[
        "stand-in",
        pytest.param("real", marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ]
)
def account(
    lab_possible: None, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Account]:
    """First with engines that start in a second, then with vLLM."""
    (tmp_path / "hosts").mkdir()
    shared = site.engine_folders(tmp_path, real=request.param == "real")
    with make_lab(3, tmp_path / "hosts", shared=shared) as lab:
        site.put_pdctl(lab.hosts[2])
        file = tmp_path / "pd.yaml"
        (tmp_path / "api-keys.txt").write_text("sk-1\n")
        file.write_text(yaml.safe_dump(configuration(lab), sort_keys=False))
        login = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
        with moto_server(*(host.address for host in lab.hosts)) as url:
            more = {**login, "AWS_ENDPOINT_URL": url, "AWS_EC2_METADATA_DISABLED": "true"}
            operator = Operator(site.home(tmp_path / "operator", lab), file, more)
            ec2 = ec2_at(url, login)
            made = Account(operator, lab, ec2, with_nat(ec2))
            yield made
            operator.types("down", "--yes")
            assert made.left() == []
    assert leftovers(lab.id) == []


def test_the_p5en_example_becomes_a_verified_pair_and_leaves_nothing(account: Account) -> None:
    operator = account.operator
    shown = operator.asks("plan")
    instances = shown["resources"]["instances"]
    assert [(each["role"], each["type"]) for each in instances] == [
        ("prefill", "p5en.48xlarge"),
        ("decode", "p5en.48xlarge"),
        ("router", "c7i.2xlarge"),
    ]
    assert shown["refusals"] == []
    assert account.left() == []

    up = operator.types("up", "--yes", "--json")
    said = json.loads(up.out)
    assert [each["name"] for each in said["processes"]] == ["prefill-0", "decode-0", "router-0"]
    proven(said["verify"])
    assert "was ever run on real EC2" in up.err
    # No host of the lab runs the script of the first start: that must not go unsaid.
    assert "prefill-0 will NOT end by itself" in up.err
    addresses = {each["PrivateIpAddress"] for each in account.running()}
    assert addresses == {host.address for host in account.lab.hosts}

    again = operator.types("up", "--yes")
    assert "nothing to do" in again.err
    assert len(account.running()) == 3
    status = operator.asks("status")
    assert [(each["role"], each["host"]) for each in status["roles"]] == [
        ("prefill", "prefill-0"),
        ("decode", "decode-0"),
        ("router", "router-0"),
    ]
    assert all(each["healthy"] for each in status["roles"])
    proven(operator.asks("verify"))

    down = operator.asks("down", "--yes")
    assert [each["name"] for each in down["ended"]] == ["router-0", "prefill-0", "decode-0"]
    assert account.left() == []
    assert operator.asks("orphans")["things"] == []


def proven(report: dict[str, Any]) -> None:
    """Turn 2 came from decode, and said what it would have said without."""
    assert report["ok"] is True, report["reason"]
    assert report["bytes_pulled"] > 0
    assert report["turns"][1]["reused_tokens"] > 64
    assert report["output_equal"] is True
