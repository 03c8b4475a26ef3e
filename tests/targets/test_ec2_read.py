"""Asking EC2: what is sent, pages, permissions that are missing, logins that are refused.

A Stubber holds every request against the service's own model. What moto can stand in for, it does;
it knows no placement groups, reservations or quotas, and forgets kinds and cards of interfaces.
"""

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError, NoCredentialsError
from botocore.stub import Stubber
from moto import mock_aws

from pdctl.targets import ec2_read
from pdctl.targets.ec2_read import Ec2Query, permission, read_ec2

REGION = "us-west-2"


class Stubs:
    """Clients whose answers are told beforehand, in order."""

    def __init__(self) -> None:
        self.stubbers: dict[str, Stubber] = {}
        self._clients: dict[str, Any] = {}

    def client(self, service: str) -> Any:
        if service not in self._clients:
            made = boto3.client(  # type: ignore[call-overload]
                service,
                region_name=REGION,
                aws_access_key_id="x",
                aws_secret_access_key="y",
            )
            self._clients[service] = made
            self.stubbers[service] = Stubber(made)
            self.stubbers[service].activate()
        return self._clients[service]

    def answer(
        self, operation: str, answer: dict[str, Any], expected: dict[str, Any], service: str = "ec2"
    ) -> None:
        self.client(service)
        self.stubbers[service].add_response(operation, answer, expected)

    def refuse(self, operation: str, code: str, service: str = "ec2") -> None:
        self.client(service)
        self.stubbers[service].add_client_error(operation, code, f"{code}!", http_status_code=403)

    def all_asked(self) -> None:
        for stubber in self.stubbers.values():
            stubber.assert_no_pending_responses()


@pytest.fixture
def stubs() -> Iterator[Stubs]:
    made = Stubs()
    yield made
    made.all_asked()


def test_pages_are_read_to_the_end(stubs: Stubs) -> None:
    tags = {"Filters": [{"Name": "tag:pdctl:deployment", "Values": ["demo"]}]}
    first = {"Reservations": [{"Instances": [_instance("i-1")]}], "NextToken": "more"}
    last = {"Reservations": [{"Instances": [_instance("i-2"), _instance("i-3", "terminated")]}]}
    stubs.answer("describe_instances", first, tags)
    stubs.answer("describe_instances", last, {**tags, "NextToken": "more"})
    _answer_nothing_more(stubs, ["i-1", "i-2"])
    found = read_ec2(Ec2Query(tags={"pdctl:deployment": "demo"}), REGION, clients=stubs.client)
    assert found.error is None
    # One that ended long ago is not this deployment's any more.
    assert [each["InstanceId"] for each in found.parts["instances"]] == ["i-1", "i-2"]
    assert found.problems == {}


def test_an_adopted_instance_that_ended_is_told(stubs: Stubs) -> None:
    ended = {"Reservations": [{"Instances": [_instance("i-1", "terminated")]}]}
    stubs.answer("describe_instances", ended, {"InstanceIds": ["i-1"]})
    _answer_nothing_more(stubs, ["i-1"])
    found = read_ec2(Ec2Query(ids=("i-1",)), REGION, clients=stubs.client)
    assert found.parts["instances"][0]["State"]["Name"] == "terminated"


def test_by_private_address(stubs: Stubs) -> None:
    wanted = {"Filters": [{"Name": "private-ip-address", "Values": ["10.0.0.1", "10.0.0.2"]}]}
    stubs.answer("describe_instances", {"Reservations": []}, wanted)
    query = Ec2Query(addresses=("10.0.0.1", "10.0.0.2"))
    assert read_ec2(query, REGION, clients=stubs.client).parts == {"instances": []}


def test_types_reservation_and_quota(stubs: Stubs) -> None:
    stubs.answer(
        "describe_instance_types",
        {"InstanceTypes": [{"InstanceType": "p5en.48xlarge"}]},
        {"InstanceTypes": ["p5en.48xlarge"]},
    )
    stubs.answer(
        "describe_instance_type_offerings",
        {"InstanceTypeOfferings": [{"InstanceType": "p5en.48xlarge", "Location": "us-west-2c"}]},
        {
            "LocationType": "availability-zone",
            "Filters": [{"Name": "instance-type", "Values": ["p5en.48xlarge"]}],
        },
    )
    stubs.answer("describe_security_groups", {"SecurityGroups": []}, {"GroupIds": ["sg-1"]})
    stubs.answer(
        "describe_subnets",
        {"Subnets": [{"SubnetId": "subnet-1", "VpcId": "vpc-1"}]},
        {"SubnetIds": ["subnet-1"]},
    )
    stubs.answer(
        "describe_route_tables",
        {"RouteTables": []},
        {"Filters": [{"Name": "vpc-id", "Values": ["vpc-1"]}]},
    )
    stubs.answer(
        "describe_capacity_reservations",
        {"CapacityReservations": [{"CapacityReservationId": "cr-1", "State": "active"}]},
        {"CapacityReservationIds": ["cr-1"]},
    )
    stubs.answer(
        "get_service_quota",
        {"Quota": {"QuotaCode": "L-417A185B", "Value": 192.0}},
        {"ServiceCode": "ec2", "QuotaCode": "L-417A185B"},
        "service-quotas",
    )
    query = Ec2Query(
        types=("p5en.48xlarge",),
        groups=("sg-1",),
        subnets=("subnet-1",),
        reservation="cr-1",
        quotas=("L-417A185B",),
    )
    found = read_ec2(query, REGION, clients=stubs.client)
    assert found.problems == {}
    assert found.parts["reservation"][0]["State"] == "active"
    assert found.parts["quotas"][0]["Value"] == 192.0
    assert found.parts["instances"] == []  # nothing to look for is not "not known"


@pytest.mark.parametrize("code", ["UnauthorizedOperation", "AccessDenied", "AccessDeniedException"])
def test_a_missing_permission_is_named_and_costs_its_part_only(stubs: Stubs, code: str) -> None:
    stubs.refuse("describe_instances", code)
    stubs.refuse("describe_capacity_reservations", code)
    stubs.refuse("get_service_quota", code, "service-quotas")
    query = Ec2Query(tags={"a": "b"}, reservation="cr-1", quotas=("L-417A185B",))
    found = read_ec2(query, REGION, clients=stubs.client)
    assert found.error is None
    assert found.problems == {
        "instances": "no permission for ec2:DescribeInstances",
        "reservation": "no permission for ec2:DescribeCapacityReservations",
        "quotas": "no permission for servicequotas:GetServiceQuota",
    }
    assert "instances" not in found.parts  # not "there are none"


def test_what_does_not_exist_is_told(stubs: Stubs) -> None:
    stubs.refuse("describe_instances", "InvalidInstanceID.NotFound")
    found = read_ec2(Ec2Query(ids=("i-1",)), REGION, clients=stubs.client)
    assert found.problems == {
        "instances": "InvalidInstanceID.NotFound: InvalidInstanceID.NotFound!"
    }


def test_throttling_is_told(stubs: Stubs) -> None:
    stubs.refuse("describe_instances", "RequestLimitExceeded")
    found = read_ec2(Ec2Query(ids=("i-1",)), REGION, clients=stubs.client)
    assert "slow down (RequestLimitExceeded)" in found.problems["instances"]


def test_a_refused_login_ends_it(stubs: Stubs) -> None:
    stubs.refuse("describe_instances", "ExpiredToken")
    query = Ec2Query(ids=("i-1",), reservation="cr-1")
    found = read_ec2(query, REGION, clients=stubs.client)
    assert found.error == "AWS refuses the login (ExpiredToken): ExpiredToken!"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NoCredentialsError(), "there are no AWS credentials: Unable to locate credentials"),
        (EndpointConnectionError(endpoint_url="https://ec2"), "EndpointConnectionError: Could not"),
        (RuntimeError("profile"), "RuntimeError: profile"),
    ],
)
def test_no_way_to_ask(error: Exception, said: str) -> None:
    def clients(service: str) -> Any:
        raise error

    found = read_ec2(Ec2Query(ids=("i-1",)), REGION, clients=clients)
    assert found.error is not None
    assert found.error.startswith(said)


def test_a_profile_that_does_not_exist_is_told() -> None:
    found = read_ec2(Ec2Query(ids=("i-1",)), REGION, "no-such-profile")
    assert found.error == (
        "ProfileNotFound: The config profile (no-such-profile) could not be found"
    )


def test_the_limit_ends_asking() -> None:
    found = read_ec2(Ec2Query(ids=("i-1",)), REGION, clients=_unused, limit=-1.0)
    assert found.problems == {"instances": "it was not asked: the time limit had passed"}


def _unused(service: str) -> Any:
    raise AssertionError(service)


def test_clients_have_limits() -> None:
    config = ec2_read.clients_of(REGION)("ec2").meta.config
    assert (config.connect_timeout, config.read_timeout) == (5.0, 15.0)
    assert config.retries == {"mode": "standard", "total_max_attempts": 4}


def test_permissions_by_their_iam_names() -> None:
    assert permission("ec2", "describe_instance_type_offerings") == (
        "ec2:DescribeInstanceTypeOfferings"
    )


@pytest.fixture
def moto(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        yield boto3.client("ec2", region_name=REGION)


def test_a_whole_account(moto: Any) -> None:
    vpc = moto.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = moto.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24")["Subnet"]["SubnetId"]
    group = moto.create_security_group(GroupName="g", Description="g", VpcId=vpc)["GroupId"]
    image = moto.describe_images()["Images"][0]["ImageId"]
    moto.run_instances(
        ImageId=image,
        InstanceType="p5en.48xlarge",
        MinCount=2,
        MaxCount=2,
        NetworkInterfaces=[{"DeviceIndex": 0, "SubnetId": subnet, "Groups": [group]}],
        TagSpecifications=[
            {
                "ResourceType": "instance",
                "Tags": [{"Key": "pdctl:deployment", "Value": "demo"}],
            }
        ],
    )
    query = Ec2Query(tags={"pdctl:deployment": "demo"}, types=("p5en.48xlarge",))
    found = read_ec2(query, REGION)
    assert found.error is None
    assert found.problems == {}
    assert len(found.parts["instances"]) == 2
    assert found.parts["types"][0]["NetworkInfo"]["EfaInfo"] == {"MaximumEfaInterfaces": 16}
    assert [each["GroupId"] for each in found.parts["groups"]] == [group]
    assert found.parts["subnets"][0]["VpcId"] == vpc
    assert len(found.parts["attributes"]) == 4
    assert found.parts["statuses"][0]["SystemStatus"]["Status"] == "ok"


def _instance(id: str, state: str = "running") -> dict[str, Any]:
    return {"InstanceId": id, "State": {"Name": state}}


def _answer_nothing_more(stubs: Stubs, ids: list[str]) -> None:
    stubs.answer(
        "describe_instance_status",
        {"InstanceStatuses": []},
        {"InstanceIds": ids, "IncludeAllInstances": True},
    )
    stubs.answer(
        "describe_network_interfaces",
        {"NetworkInterfaces": []},
        {"Filters": [{"Name": "attachment.instance-id", "Values": ids}]},
    )
    for id in ids:
        for attribute in ("instanceInitiatedShutdownBehavior", "disableApiTermination"):
            stubs.answer(
                "describe_instance_attribute",
                {"InstanceId": id},
                {"InstanceId": id, "Attribute": attribute},
            )
