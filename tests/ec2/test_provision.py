"""Making and ending hosts: what is asked for, and that no crash makes two of them or loses one."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdctl.base.awserrors import AwsError
from pdctl.base.awsfacts import DEPLOYMENT_TAG, MADE_TAG, PROCESS_TAG
from pdctl.base.errors import PdctlError, TemporaryError, UsageError
from pdctl.base.events import Event, Note
from pdctl.base.exits import ExitCode
from pdctl.config.model import Config
from pdctl.deploy import ec2
from pdctl.deploy.release import Released
from pdctl.state.cloud import Cloud, CloudStore
from tests.ec2.cloud import (
    NAME,
    REGION,
    Crash,
    Region,
    config_of,
    document,
    quick_clock,
)

NOW = 1_795_000_000.0


@pytest.fixture
def config(region: Region, tmp_path: Path) -> Config:
    return config_of(tmp_path, document(region.image))


def plain(region: Region, folder: Path, **target: Any) -> Config:
    """Small hosts without EFA: moto is quick with them."""
    content = document(region.image, instance_type="c7i.2xlarge", **target)
    content["kv"]["backends"] = ["UCX"]
    return config_of(folder, content)


def make(region: Region, config: Config, told: list[Event] | None = None) -> Cloud:
    looked = ec2.look(config, now=NOW, dry_run=False, clients=region.client)
    listen = told.append if told is not None else lambda _: None
    return ec2.make(config, looked, clock=quick_clock(), listen=listen, clients=region.client)


def end(region: Region, told: list[Event] | None = None) -> Released:
    listen = told.append if told is not None else lambda _: None
    clock = quick_clock()
    return ec2.end(NAME, REGION, None, clock=clock, listen=listen, clients=region.client)


def notes(told: list[Event]) -> str:
    return "\n".join(each.text for each in told if isinstance(each, Note))


def names_of(region: Region) -> list[str]:
    tags = [{t["Key"]: t["Value"] for t in each["Tags"]} for each in region.running()]
    assert all(each[DEPLOYMENT_TAG] == NAME and each[MADE_TAG] for each in tags)
    return sorted(each.get(PROCESS_TAG, "") for each in tags)


ALL = ["decode-0", "prefill-0", "router-0"]


def test_hosts_are_made_as_the_guide_says(region: Region, config: Config) -> None:
    told: list[Event] = []
    cloud = make(region, config, told)
    engines, router = region.requests
    nics = engines["NetworkInterfaces"]
    assert [(n["NetworkCardIndex"], n["DeviceIndex"], n["InterfaceType"]) for n in nics] == [
        (0, 0, "interface"),
        (0, 1, "efa-only"),
        *((card, 0, "efa-only") for card in range(1, 16)),
    ]
    assert all(n["Groups"] == [cloud.group] and n["DeleteOnTermination"] for n in nics)
    assert not any("AssociatePublicIpAddress" in n for n in nics)
    assert (engines["MinCount"], engines["MaxCount"]) == (2, 2)  # both or none
    assert engines["Placement"] == {"AvailabilityZone": "us-west-2c", "Tenancy": "default"}
    assert engines["MetadataOptions"]["HttpTokens"] == "required"
    assert engines["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert engines["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] is True
    assert "475 minutes" in engines["UserData"]  # 8 h, less the five that it drains
    assert len(router["NetworkInterfaces"]) == 1
    assert "EFA interfaces" not in notes(told)
    assert names_of(region) == ALL
    assert cloud.phase == "ready"
    assert {each.public_ip for each in cloud.hosts.values()} == {
        each["PublicIp"] for each in region.ec2.describe_addresses()["Addresses"]
    }
    group = region.ec2.describe_security_groups(GroupIds=[cloud.group])["SecurityGroups"][0]
    open_ports = sorted(
        (rule["FromPort"], rule["IpRanges"][0]["CidrIp"])
        for rule in group["IpPermissions"]
        if rule["IpProtocol"] == "tcp"
    )
    assert open_ports == [(22, "203.0.113.0/24"), (8000, "203.0.113.0/24")]
    for rules in (group["IpPermissions"], group["IpPermissionsEgress"]):
        own = [r for r in rules if r["IpProtocol"] == "-1" and r["UserIdGroupPairs"]]
        assert [r["UserIdGroupPairs"][0]["GroupId"] for r in own] == [cloud.group]

    again = make(region, config)
    assert len(region.requests) == 2
    assert again.hosts == cloud.hosts

    released = end(region)
    assert region.left() == []
    assert len([each for each in released.things if each.startswith("instance")]) == 3
    assert CloudStore(NAME).load() is None
    assert end(region).things == ()


def test_adopted_hosts_are_used_and_never_ended(region: Region, tmp_path: Path) -> None:
    subnet = region.subnets["us-west-2c"]
    made = region.ec2.run_instances(
        ImageId=region.image, InstanceType="c7i.2xlarge", MinCount=2, MaxCount=2, SubnetId=subnet
    )
    first, second = (each["InstanceId"] for each in made["Instances"])
    ids = {"prefill": [first], "decode": [second]}
    cloud = make(region, plain(region, tmp_path, instance_ids=ids, router=None))
    assert region.requests == []
    assert {each.id: each.made for each in cloud.hosts.values()} == {first: False, second: False}
    released = end(region)
    assert len(region.running()) == 2
    assert released.things == ()
    assert any(f"{first} (prefill-0) was adopted" in line for line in released.still_bills)


def test_hosts_tagged_by_somebody_else_are_adopted(region: Region, tmp_path: Path) -> None:
    for role in ("prefill", "decode"):
        tags = [
            {"Key": DEPLOYMENT_TAG, "Value": NAME},
            {"Key": PROCESS_TAG, "Value": f"{role}-0"},
        ]
        region.ec2.run_instances(
            ImageId=region.image,
            InstanceType="c7i.2xlarge",
            MinCount=1,
            MaxCount=1,
            SubnetId=region.subnets["us-west-2c"],
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
        )
    cloud = make(region, plain(region, tmp_path, router=None))
    assert sorted(cloud.hosts) == ["decode-0", "prefill-0"]
    assert not cloud.made
    assert region.requests == []
    end(region)
    assert len(region.running()) == 2


# --- capacity ------------------------------------------------------------------------------------

FULL = ("run_instances", "InsufficientInstanceCapacity", "We currently do not have capacity")


def test_zones_are_tried_in_order_and_each_attempt_is_told(region: Region, tmp_path: Path) -> None:
    config = plain(region, tmp_path, zones=["us-west-2b", "us-west-2a", "us-west-2c"])
    region.refuse(*FULL, times=2)
    told: list[Event] = []
    cloud = make(region, config, told)
    assert [(each.zone, each.code) for each in cloud.attempts] == [
        ("us-west-2b", "InsufficientInstanceCapacity"),
        ("us-west-2a", "InsufficientInstanceCapacity"),
    ]
    assert cloud.zone == "us-west-2c"
    assert "us-west-2b: InsufficientInstanceCapacity" in notes(told)
    # The router is where the engines are.
    assert {r["Placement"]["AvailabilityZone"] for r in region.requests} == {"us-west-2c"}
    end(region)


def test_no_room_anywhere_makes_nothing_and_says_where_it_was_tried(
    region: Region, tmp_path: Path
) -> None:
    config = plain(region, tmp_path, zones=["us-west-2b", "us-west-2a"])
    region.refuse(*FULL, times=2)
    with pytest.raises(TemporaryError) as refused:
        make(region, config)
    assert refused.value.exit_code == ExitCode.TRY_AGAIN
    assert [line.partition(":")[0] for line in refused.value.detail] == ["us-west-2b", "us-west-2a"]
    assert any("target.zones" in hint for hint in refused.value.hints)
    assert region.running() == []
    end(region)
    assert region.left() == []


@pytest.mark.parametrize("keep", [False, True])
def test_half_of_the_hosts_is_never_left_unsaid(region: Region, tmp_path: Path, keep: bool) -> None:
    """Prefill and decode of different types are two requests, and the second finds no room."""
    capacity = {"kind": "on-demand", "max_hours": 1, "on_failure": "keep" if keep else "end"}
    config = plain(
        region,
        tmp_path,
        zones=["us-west-2a", "us-west-2b"],
        decode={"instance_type": "c6i.2xlarge"},
        router=None,
        capacity=capacity,
    )
    real = region.done

    def no_room(operation: str, arguments: dict[str, Any], do: Callable[..., Any]) -> Any:
        here = arguments.get("Placement", {}).get("AvailabilityZone") == "us-west-2a"
        if operation == "run_instances" and here and arguments["InstanceType"] == "c6i.2xlarge":
            raise region._error("InsufficientInstanceCapacity", operation)
        return real(operation, arguments, do)

    region.done = no_room  # type: ignore[method-assign]
    told: list[Event] = []
    if keep:
        with pytest.raises(TemporaryError, match="only prefill-0"):
            make(region, config, told)
        assert names_of(region) == ["prefill-0"]
        assert "on EC2 there is now: prefill-0" in notes(told)
    else:
        cloud = make(region, config, told)
        assert "could be started in us-west-2a; ended again" in notes(told)
        assert cloud.zone == "us-west-2b"
        assert names_of(region) == ["decode-0", "prefill-0"]
    end(region)
    assert region.left() == []


def test_a_host_that_ended_is_replaced_by_a_new_one(region: Region, tmp_path: Path) -> None:
    config = plain(region, tmp_path)
    cloud = make(region, config)
    gone = cloud.hosts["decode-0"].id
    region.ec2.terminate_instances(InstanceIds=[gone])
    told: list[Event] = []
    again = make(region, config, told)
    assert f"decode-0 ({gone}) has ended; another one is started" in notes(told)
    assert again.hosts["prefill-0"].id == cloud.hosts["prefill-0"].id
    assert again.hosts["decode-0"].id != gone
    assert names_of(region) == ALL
    end(region)
    assert region.left() == []


# --- crashes -------------------------------------------------------------------------------------


READS = ("describe_", "get_")


def survive(region: Region, work: Callable[[], object], *, after: bool) -> int:
    """Lose power at each call that changes something, one call further each time, and go on.

    Reads change nothing: to lose power there is to lose it before the next change. Gives how many
    times power was lost.
    """
    lost: set[str] = set()

    def crash(operation: str, arguments: dict[str, Any]) -> bool:
        kept = {k: v for k, v in arguments.items() if k not in ("ClientToken", "UserData")}
        key = f"{operation} {json.dumps(kept, sort_keys=True, default=str)}"
        key = re.sub(r'"[0-9a-f]{16}"', "the making's id", key)
        if operation.startswith(READS) or key in lost:
            return False
        lost.add(key)
        return True

    region.crash, region.crash_after = crash, after
    for _ in range(50):
        try:
            work()
        except Crash:
            continue
        region.crash = None
        return len(lost)
    raise AssertionError("it never gets through")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("lost", [False, True], ids=["record", "no-record"])
def test_power_lost_at_any_call_makes_no_host_twice_and_loses_none(
    region: Region, tmp_path: Path, after: bool, lost: bool
) -> None:
    """Each run of `up` loses power one call later than the one before, until one gets through."""
    config = plain(region, tmp_path)
    looked = ec2.look(config, now=NOW, dry_run=False, clients=region.client)

    def up() -> Cloud:
        if lost:
            CloudStore(NAME).path.unlink(missing_ok=True)
        return ec2.make(config, looked, clock=quick_clock(), clients=region.client)

    assert survive(region, up, after=after) >= 17
    assert names_of(region) == ALL
    assert len(region.ec2.describe_addresses()["Addresses"]) == 3
    assert len(region.ec2.describe_key_pairs()["KeyPairs"]) == 1

    def down() -> Released:
        if lost:
            CloudStore(NAME).path.unlink(missing_ok=True)
        return end(region)

    assert survive(region, down, after=after) >= 6
    assert region.left() == []


def test_an_instance_that_is_not_found_yet_is_not_made_again(
    region: Region, tmp_path: Path
) -> None:
    """Its answer was lost, and EC2 does not find it by its tags yet: the client token holds."""
    config = plain(region, tmp_path)
    region.unseen = 2
    region.crash, region.crash_after = lambda operation, _: operation == "run_instances", True
    with pytest.raises(Crash):
        make(region, config)
    region.crash = None
    assert len(region.running()) == 2
    make(region, config)
    assert names_of(region) == ALL
    tokens = [each["ClientToken"] for each in region.requests]
    assert tokens[0] == tokens[1] != tokens[2]
    end(region)


# --- AWS's own moods -----------------------------------------------------------------------------


def test_what_was_just_made_may_not_be_known_yet(region: Region, tmp_path: Path) -> None:
    config = plain(region, tmp_path)
    region.refuse("create_tags", "InvalidInstanceID.NotFound", times=2)
    region.refuse("authorize_security_group_ingress", "InvalidGroup.NotFound", times=2)
    make(region, config)
    assert names_of(region) == ALL
    region.refuse("delete_security_group", "DependencyViolation", times=3)
    region.refuse("describe_instances", "RequestLimitExceeded", times=0)
    end(region)
    assert region.left() == []


def test_a_throttled_wait_goes_on(region: Region, tmp_path: Path) -> None:
    config = plain(region, tmp_path)
    cloud = make(region, config)
    real = region.done
    refused: list[str] = []

    def slow(operation: str, arguments: dict[str, Any], do: Callable[..., Any]) -> Any:
        waits = operation == "describe_instances" and "terminate_instances" in region.calls
        if waits and len(refused) < 3:
            refused.append(operation)
            raise region._error("RequestLimitExceeded", operation)
        return real(operation, arguments, do)

    region.done = slow  # type: ignore[method-assign]
    assert len(end(region).things) >= len(cloud.hosts)
    assert len(refused) == 3
    assert region.left() == []


MUTATING = [
    "create_security_group",
    "authorize_security_group_ingress",
    "authorize_security_group_egress",
    "import_key_pair",
    "run_instances",
    "create_tags",
    "allocate_address",
    "associate_address",
]


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("UnauthorizedOperation", ExitCode.NO_PERMISSION),
        ("RequestLimitExceeded", ExitCode.TRY_AGAIN),
    ],
)
def test_every_refused_call_is_named_and_leaves_nothing_untold(
    region: Region, tmp_path: Path, code: str, exit_code: ExitCode
) -> None:
    config = plain(region, tmp_path)
    looked = ec2.look(config, now=NOW, dry_run=False, clients=region.client)
    told: list[Event] = []

    def up() -> Cloud:
        told.clear()
        clock = quick_clock()
        return ec2.make(config, looked, clock=clock, listen=told.append, clients=region.client)

    for operation in MUTATING:
        region.refuse(operation, code)
        with pytest.raises(AwsError) as refused:
            up()
        action = "ec2:" + "".join(word.capitalize() for word in operation.split("_"))
        assert refused.value.message.startswith(f"{action}: ")
        assert refused.value.exit_code == exit_code
        if region.running():
            assert "on EC2 there " in notes(told)
        region.refusals.clear()
    up()
    assert names_of(region) == ALL
    end(region)
    assert region.left() == []


def test_ending_that_is_refused_keeps_the_record(region: Region, tmp_path: Path) -> None:
    make(region, plain(region, tmp_path))
    for operations in (("terminate_instances",), ("release_address", "delete_security_group")):
        for each in operations:
            region.refuse(each, "UnauthorizedOperation")
        with pytest.raises(AwsError, match="may not do this") as refused:
            end(region)
        record = CloudStore(NAME).load()
        assert record is not None
        assert record.phase == "ending"
    # Whatever may be deleted was, and each refusal is told.
    assert any("ec2:DeleteSecurityGroup" in line for line in refused.value.detail)
    assert region.ec2.describe_key_pairs()["KeyPairs"] == []
    end(region)
    assert region.left() == []


def test_a_protected_instance_keeps_no_other_alive(region: Region, tmp_path: Path) -> None:
    """EC2 ends none of a request's instances when one is protected."""
    cloud = make(region, plain(region, tmp_path))
    id = cloud.hosts["decode-0"].id
    real = region.done

    def protected(operation: str, arguments: dict[str, Any], do: Callable[..., Any]) -> Any:
        if operation == "terminate_instances" and id in arguments["InstanceIds"]:
            raise region._error("OperationNotPermitted", operation, f"{id} may not be terminated")
        return real(operation, arguments, do)

    region.done = protected  # type: ignore[method-assign]
    with pytest.raises(AwsError, match="protected against termination") as refused:
        end(region)
    assert refused.value.exit_code == ExitCode.NO_PERMISSION
    assert id in refused.value.detail[0]
    assert [each["InstanceId"] for each in region.running()] == [id]
    region.done = real  # type: ignore[method-assign]
    end(region)
    assert region.left() == []


def test_up_after_half_a_down_says_so(region: Region, tmp_path: Path) -> None:
    config = plain(region, tmp_path)
    cloud = make(region, config)
    CloudStore(NAME).save(replace(cloud, phase="ending"))
    with pytest.raises(UsageError, match="`pdctl down` of `demo` was begun"):
        make(region, config)
    end(region)


def test_only_what_has_pdctls_tag_is_ended(region: Region, tmp_path: Path) -> None:
    """A record can be edited; the tag is what counts."""
    cloud = make(region, plain(region, tmp_path))
    made = region.ec2.run_instances(
        ImageId=region.image,
        InstanceType="c7i.2xlarge",
        MinCount=1,
        MaxCount=1,
        SubnetId=region.subnets["us-west-2c"],
    )
    stranger = made["Instances"][0]["InstanceId"]
    host = replace(cloud.hosts["decode-0"], name="decode-9", id=stranger)
    CloudStore(NAME).save(cloud.with_host(host))
    told: list[Event] = []
    end(region, told)
    assert [each["InstanceId"] for each in region.running()] == [stranger]
    assert f"{stranger} does not carry pdctl's tag" in notes(told)


def test_a_group_of_somebody_else_is_not_taken(region: Region, tmp_path: Path) -> None:
    region.ec2.create_security_group(
        GroupName=f"pdctl-{NAME}", Description="mine", VpcId=region.vpc
    )
    with pytest.raises(PdctlError, match="that pdctl did not make"):
        make(region, plain(region, tmp_path))
    assert region.running() == []
