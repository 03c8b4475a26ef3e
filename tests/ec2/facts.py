"""A region where the example could be made: each test takes one thing of it away."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from pdctl.base.awsfacts import (
    AwsFacts,
    AwsGroup,
    AwsImage,
    AwsQuota,
    AwsReservation,
    AwsRule,
    AwsSubnet,
    AwsType,
    AwsVpc,
)
from pdctl.config.model import Config
from pdctl.observe import aws
from pdctl.observe.aws import want_of
from tests.ec2.cloud import config_of, document
from tests.observe.ec2 import real_types

NOW = 1_795_000_000.0
AMI = "ami-0123456789abcdef0"
ZONE = "us-west-2c"


def type_named(name: str) -> AwsType:
    """As DescribeInstanceTypes has it."""
    return aws._type(real_types()[name] | {"InstanceType": name})


def config(folder: Path, **target: Any) -> Config:
    return config_of(folder, document(AMI, **target))


def reservation(**other: Any) -> AwsReservation:
    return replace(
        AwsReservation(
            id="cr-0123456789abcdef0",
            state="active",
            instance_type="p5en.48xlarge",
            zone=ZONE,
            total=2,
            available=2,
            match="targeted",
            tenancy="default",
        ),
        **other,
    )


ALL = AwsRule("-1", groups=("sg-0123456789abcdef0",))


def facts(config: Config, **other: Any) -> AwsFacts:
    """Everything is as it should be."""
    want = want_of(config)
    assert want is not None
    kinds = tuple(sorted({each.instance_type for each in want.roles}))
    found = AwsFacts(
        want=want,
        instances=(),
        types=tuple(type_named(kind) for kind in kinds),
        groups=(AwsGroup("sg-0123456789abcdef0", "vpc-1", (ALL,), (ALL,)),),
        subnets=(AwsSubnet("subnet-1", "vpc-1", ZONE, 100, "igw-1", routes_known=True),),
        quotas=(AwsQuota("L-417A185B", 384.0),),
        offered=dict.fromkeys(kinds, (ZONE,)),
        vpcs=(AwsVpc("vpc-1", default=True),),
        image=AwsImage(AMI, "ubuntu", "x86_64", "available", "/dev/sda1", "ebs", 75),
    )
    return replace(found, **other)
