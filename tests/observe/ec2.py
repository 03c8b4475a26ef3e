"""Answers of EC2 in its own shapes: two healthy p5en hosts, and what may be changed of them.

Nothing was run on EC2. Shapes are botocore's; types are DescribeInstanceTypes as moto has it.
"""

import gzip
import json
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any

from pdctl.base.awsfacts import AwsWant, WantedInstances
from pdctl.targets.ec2_read import Ec2Answers

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
GROUP = "sg-0a"
WANT = AwsWant(
    deployment="demo",
    region="us-west-2",
    roles=(
        WantedInstances("prefill", "p5en.48xlarge", 1),
        WantedInstances("decode", "p5en.48xlarge", 1),
    ),
    zones=("us-west-2c",),
    capacity="odcr",
    reservation="cr-1",
    max_hours=8,
    access="private",
)


@cache
def real_types() -> dict[str, dict[str, Any]]:
    """DescribeInstanceTypes of all types, as it was recorded by moto."""
    file = resources.files("moto") / "ec2" / "resources" / "instance_types.json.gz"
    found: dict[str, dict[str, Any]] = json.loads(gzip.decompress(file.read_bytes()))
    return found


def nic(instance: str, card: int, device: int, kind: str, **other: Any) -> dict[str, Any]:
    return {
        "NetworkInterfaceId": f"eni-{instance[2:]}-{card}-{device}",
        "InterfaceType": kind,
        "Attachment": {
            "InstanceId": instance,
            "NetworkCardIndex": card,
            "DeviceIndex": device,
            "Status": "attached",
        },
        "Groups": [{"GroupId": GROUP, "GroupName": "pdctl-demo"}],
        "SubnetId": "subnet-1",
        **({} if kind == "efa-only" else {"PrivateIpAddress": f"10.0.0.{card + 10}"}),
        **other,
    }


def nics(instance: str) -> list[dict[str, Any]]:
    """Layout A of p5en: 17 interfaces, 16 with EFA, one address."""
    return [
        nic(instance, 0, 0, "interface"),
        nic(instance, 0, 1, "efa-only"),
        *(nic(instance, card, 0, "efa-only") for card in range(1, 16)),
    ]


def instance(id: str, name: str, **other: Any) -> dict[str, Any]:
    return {
        "InstanceId": id,
        "InstanceType": "p5en.48xlarge",
        "State": {"Code": 16, "Name": "running"},
        "Placement": {"AvailabilityZone": "us-west-2c", "GroupName": "", "Tenancy": "default"},
        "VpcId": "vpc-1",
        "SubnetId": "subnet-1",
        "PrivateIpAddress": "10.0.0.10",
        "CapacityReservationId": "cr-1",
        "MetadataOptions": {
            "State": "applied",
            "HttpTokens": "required",
            "HttpEndpoint": "enabled",
        },
        "LaunchTime": NOW,
        "Tags": [
            {"Key": "pdctl:deployment", "Value": "demo"},
            {"Key": "pdctl:host", "Value": name},
        ],
        **other,
    }


def status(id: str, **other: Any) -> dict[str, Any]:
    return {
        "InstanceId": id,
        "InstanceState": {"Code": 16, "Name": "running"},
        "InstanceStatus": {"Status": "ok"},
        "SystemStatus": {"Status": "ok"},
        **other,
    }


def self_rules() -> dict[str, Any]:
    own = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": GROUP, "UserId": "1"}]}]
    everywhere = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    return {
        "GroupId": GROUP,
        "VpcId": "vpc-1",
        "IpPermissions": own,
        "IpPermissionsEgress": [everywhere, *own],
    }


def parts(**changes: Any) -> dict[str, Any]:
    """All answers of a healthy deployment, by part; a part that is None is left out."""
    ids = ("i-1", "i-2")
    made: dict[str, Any] = {
        "instances": [instance("i-1", "prefill-0"), instance("i-2", "decode-0")],
        "statuses": [status(id) for id in ids],
        "interfaces": [each for id in ids for each in nics(id)],
        "attributes": [
            each
            for id in ids
            for each in (
                {
                    "InstanceId": id,
                    "InstanceInitiatedShutdownBehavior": {"Value": "terminate"},
                },
                {"InstanceId": id, "DisableApiTermination": {"Value": False}},
            )
        ],
        "types": [real_types()["p5en.48xlarge"]],
        "offered": [
            {"InstanceType": "p5en.48xlarge", "Location": zone}
            for zone in ("us-west-2d", "us-west-2a", "us-west-2c")
        ],
        "groups": [self_rules()],
        "subnets": [
            {
                "SubnetId": "subnet-1",
                "VpcId": "vpc-1",
                "AvailabilityZone": "us-west-2c",
                "AvailableIpAddressCount": 250,
            }
        ],
        "routes": [
            {
                "VpcId": "vpc-1",
                "Associations": [{"Main": True}],
                "Routes": [
                    {
                        "DestinationCidrBlock": "10.0.0.0/16",
                        "GatewayId": "local",
                        "State": "active",
                    },
                    {
                        "DestinationCidrBlock": "0.0.0.0/0",
                        "NatGatewayId": "nat-1",
                        "State": "active",
                    },
                ],
            }
        ],
        "reservation": [
            {
                "CapacityReservationId": "cr-1",
                "State": "active",
                "ReservationType": "default",
                "InstanceType": "p5en.48xlarge",
                "AvailabilityZone": "us-west-2c",
                "TotalInstanceCount": 2,
                "AvailableInstanceCount": 0,
                "InstanceMatchCriteria": "targeted",
                "Tenancy": "default",
            }
        ],
        "quotas": [{"QuotaCode": "L-417A185B", "Value": 384.0}],
    }
    made.update(changes)
    return {name: value for name, value in made.items() if value is not None}


def answers(problems: dict[str, str] | None = None, **changes: Any) -> Ec2Answers:
    """The same as the reader gives it."""
    return Ec2Answers(parts(**changes), problems or {})
