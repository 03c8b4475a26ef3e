"""`plan --verbose` tells every call that is made, those that only read too, and why."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdctl.base.awscall import AwsCall
from pdctl.deploy import ec2
from pdctl.targets.ec2_read import permission
from tests.ec2.account import SERVICES
from tests.ec2.cloud import Region, config_of, document, quick_clock


def actions(operations: list[str]) -> list[str]:
    return [permission(SERVICES.get(each, "ec2"), each) for each in operations]


def told(calls: tuple[AwsCall, ...]) -> list[str]:
    assert [each for each in calls if not each.why] == []
    return [each.action for each in calls]


@pytest.mark.parametrize(
    "target",
    [
        {},
        {"network": {"access": "private", "security_group": "sg-of-the-user"}, "router": None},
    ],
    ids=["example", "private"],
)
def test_every_call_is_told_with_its_reason_before_it_is_made(
    region: Region, tmp_path: Path, target: dict[str, Any]
) -> None:
    content = document(region.image)
    content["target"] |= target
    if "network" in target:
        group = region.ec2.create_security_group(
            GroupName="mine", Description="mine", VpcId=region.vpc
        )
        content["target"]["network"] |= {"security_group": group["GroupId"]}
        content["kv"]["backends"] = ["UCX"]
    config = config_of(tmp_path, content)
    for _ in range(2):  # the second time all is there
        before = len(region.calls)
        looked = ec2.look(config, now=0.0, clients=region.client)
        assert told(looked.asked) == actions(region.calls[before:])
        before = len(region.calls)
        allowed = replace(looked, refusals=())  # all subnets of moto are public
        ec2.make(config, allowed, clock=quick_clock(), clients=region.client)
        assert told(looked.calls) == actions(region.calls[before:])


def test_what_is_told_has_no_secret_and_is_one_line_each(region: Region, tmp_path: Path) -> None:
    config = config_of(tmp_path, document(region.image))
    looked = ec2.look(config, now=0.0, clients=region.client)
    lines = [str(each) for each in (*looked.asked, *looked.calls)]
    assert [line for line in lines if "\n" in line or "PRIVATE" in line] == []
    assert any(line.endswith("(start prefill-0, decode-0)") for line in lines)
    assert any('"DryRun": true' in line and "nothing is done" in line for line in lines)
