"""What each check says of AWS, from answers in EC2's shapes: healthy, and broken one by one."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pdctl.base.awsfacts import AwsFacts, AwsWant, WantedInstances
from pdctl.base.facts import PairFacts
from pdctl.doctor.rows.aws import CHECKS
from pdctl.doctor.table import Finding, Status, run_checks
from pdctl.observe.aws import facts_of
from pdctl.targets.ec2_read import Ec2Answers
from tests.observe import ec2
from tests.observe.ec2 import GROUP, instance, nic, nics, status

Make = Callable[[], AwsFacts]
WANT = ec2.WANT
NO_INSTANCES: dict[str, Any] = {
    "instances": [],
    "statuses": None,
    "interfaces": None,
    "attributes": None,
}


def aws(want: AwsWant = WANT, problems: dict[str, str] | None = None, **changes: Any) -> AwsFacts:
    return facts_of(want, ec2.answers(problems, **changes))


def before_up(want: AwsWant = WANT, **changes: Any) -> AwsFacts:
    """Nothing was made yet; the reservation is all free."""
    free = {**ec2.parts()["reservation"][0], "AvailableInstanceCount": 2}
    return aws(want, **{**NO_INSTANCES, "reservation": [free], **changes})


def judged(facts: AwsFacts | None) -> dict[str, Finding]:
    pair = PairFacts(name="demo", taken_at=ec2.NOW.timestamp(), aws=facts)
    return {finding.id: finding for finding in run_checks(pair, CHECKS)}


def bad(facts: AwsFacts | None) -> list[tuple[str, Status, tuple[str, ...]]]:
    return [
        (f.id, f.status, f.evidence) for f in judged(facts).values() if f.status in ("fail", "warn")
    ]


def test_two_healthy_hosts_have_nothing_to_say() -> None:
    assert bad(aws()) == []
    skips = {id: f.evidence[0] for id, f in judged(aws()).items() if f.status == "skip"}
    assert skips == {
        "aws.type.offered": "the instances exist",
        "aws.address": "`target.network.access: private` needs no public address",
        "aws.subnet": "no subnet is configured",
        "aws.reservation.end": "no reservation with an end is used",
        "aws.quota": "the instances exist",
    }


def test_before_up_only_what_is_planned_is_judged() -> None:
    assert bad(before_up()) == []
    passes = {id for id, f in judged(before_up()).items() if f.status == "pass"}
    assert passes == {
        "aws.access",
        "aws.type.efa",
        "aws.type.rdma_read",
        "aws.type.offered",
        "aws.reservation",
        "aws.quota",
    }


def test_another_target_is_skipped_with_the_reason() -> None:
    assert {(f.status, f.evidence) for f in judged(None).values()} == {
        ("skip", ("the target is not EC2",))
    }


def test_without_a_login_there_is_one_finding() -> None:
    facts = facts_of(WANT, Ec2Answers(error="there are no AWS credentials"))
    assert [id for id, _, _ in bad(facts)] == ["aws.access"]


@pytest.mark.parametrize("part", ["instances", "types", "groups", "subnets", "reservation"])
def test_a_missing_permission_is_a_skip_that_names_it(part: str) -> None:
    why = "no permission for ec2:DescribeThings"
    lost: dict[str, Any] = {part: None}
    facts = aws(problems={part: why}, **lost)
    assert bad(facts) == []
    assert why in {f.evidence[0] for f in judged(facts).values() if f.status == "skip"}


def _interfaces(of_first: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*of_first, *nics("i-2")]


def _group(**changes: Any) -> list[dict[str, Any]]:
    return [{**ec2.self_rules(), **changes}]


def _reservation(**changes: Any) -> list[dict[str, Any]]:
    return [{**ec2.parts()["reservation"][0], **changes}]


def _hosts(**changes: Any) -> list[dict[str, Any]]:
    return [instance("i-1", "prefill-0", **changes), instance("i-2", "decode-0")]


def _open(*, to: str, of: str) -> dict[str, Any]:
    rule = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": to}]}]
    return {"GroupId": of, "VpcId": "vpc-1", "IpPermissions": rule, "IpPermissionsEgress": rule}


EVERYWHERE = [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
G5 = replace(WANT, roles=(WantedInstances("prefill", "g5.48xlarge", 2),), reservation=None)
BLOCK = {"ReservationType": "capacity-block"}
BLOCK_WANT = replace(WANT, capacity="capacity-block")
IGW = [
    {
        "VpcId": "vpc-1",
        "Associations": [{"Main": True}],
        "Routes": [{"DestinationCidrBlock": "0.0.0.0/0", "GatewayId": "igw-1", "State": "active"}],
    }
]

BROKEN: list[tuple[str, Make, Status, str]] = [
    (
        "aws.access",
        lambda: facts_of(WANT, Ec2Answers(error="AWS refuses the login (ExpiredToken)")),
        "fail",
        "ExpiredToken",
    ),
    (
        "aws.type.efa",
        lambda: before_up(
            replace(WANT, roles=(WantedInstances("prefill", "t3.micro", 1),)),
            types=[ec2.real_types()["t3.micro"]],
        ),
        "fail",
        "t3.micro has no EFA",
    ),
    ("aws.type.efa", lambda: before_up(types=[]), "fail", "knows no instance type p5en.48xlarge"),
    (
        "aws.type.rdma_read",
        lambda: before_up(G5),
        "fail",
        "g5.48xlarge: its EFA does not read by RDMA",
    ),
    (
        "aws.type.offered",
        lambda: before_up(replace(WANT, zones=("us-west-2b",))),
        "fail",
        "is offered in us-west-2a, us-west-2c, us-west-2d",
    ),
    (
        "aws.instances",
        lambda: aws(instances=_hosts(State={"Name": "stopped"})),
        "fail",
        "prefill-0 (i-1): it is stopped, expected running",
    ),
    (
        "aws.instances",
        lambda: aws(statuses=[status("i-1", SystemStatus={"Status": "impaired"})]),
        "fail",
        "its system status check is impaired",
    ),
    (
        "aws.instances",
        lambda: aws(statuses=[status("i-1", Events=[{"Code": "instance-retirement"}])]),
        "warn",
        "event instance-retirement is scheduled",
    ),
    (
        "aws.instances",
        lambda: aws(statuses=[status("i-1", InstanceStatus={"Status": "initializing"})]),
        "warn",
        "status checks are not done yet",
    ),
    (
        "aws.instances",
        lambda: before_up(
            replace(WANT, roles=(WantedInstances("prefill", "p5en.48xlarge", 1, ("i-9",)),))
        ),
        "fail",
        "there is no i-9",
    ),
    (
        "aws.instances",
        lambda: aws(instances=_hosts()[:1], interfaces=nics("i-1")),
        "warn",
        "0 of 1 hosts of decode exist",
    ),
    (
        "aws.instances",
        lambda: aws(problems={"instances": "InvalidInstanceID.NotFound: no i-9"}, instances=None),
        "fail",
        "InvalidInstanceID.NotFound",
    ),
    (
        "aws.type.efa",
        lambda: before_up(types=None, problems={"types": "InvalidInstanceType: p9"}),
        "fail",
        "InvalidInstanceType: p9",
    ),
    (
        "aws.security_group",
        lambda: before_up(
            replace(WANT, security_group="sg-9"),
            groups=None,
            problems={"groups": "InvalidGroup.NotFound: sg-9"},
        ),
        "fail",
        "InvalidGroup.NotFound",
    ),
    (
        "aws.subnet",
        lambda: aws(
            replace(WANT, subnet="subnet-9"),
            problems={"subnets": "InvalidSubnetID.NotFound: subnet-9"},
            subnets=None,
        ),
        "fail",
        "InvalidSubnetID.NotFound",
    ),
    (
        "aws.zone",
        lambda: aws(instances=_hosts(Placement={"AvailabilityZone": "us-west-2a"})),
        "fail",
        "prefill-0: zone us-west-2a",
    ),
    ("aws.vpc", lambda: aws(instances=_hosts(VpcId="vpc-2")), "fail", "prefill-0: VPC vpc-2"),
    (
        "aws.security_group",
        lambda: aws(groups=_group(IpPermissions=EVERYWHERE)),
        "fail",
        "sg-0a: no ingress rule for all traffic from sg-0a itself; a rule by addresses does not "
        "count for EFA",
    ),
    (
        "aws.security_group",
        lambda: aws(groups=_group(IpPermissionsEgress=EVERYWHERE)),
        "fail",
        "sg-0a: no egress rule for all traffic to sg-0a itself",
    ),
    (
        "aws.security_group",
        lambda: aws(
            groups=_group(
                IpPermissions=[{"IpProtocol": "tcp", "UserIdGroupPairs": [{"GroupId": GROUP}]}]
            )
        ),
        "fail",
        "no ingress rule for all traffic",
    ),
    (
        "aws.security_group",
        lambda: aws(
            interfaces=_interfaces(
                [nic("i-1", card, 1, "efa", Groups=[{"GroupId": "sg-0b"}]) for card in range(16)]
            )
        ),
        "fail",
        "prefill-0: EFA interfaces with sg-0b | expected: one group on all EFA interfaces",
    ),
    (
        "aws.security_group",
        lambda: aws(
            interfaces=_interfaces(
                [nic("i-1", card, 1, "efa", Groups=[{"GroupId": "sg-0b"}]) for card in range(16)]
            ),
            groups=[_open(of=GROUP, to="sg-0b"), _open(of="sg-0b", to=GROUP)],
        ),
        "warn",
        "they let each other through",
    ),
    (
        "aws.security_group",
        lambda: before_up(replace(WANT, security_group=GROUP), groups=_group(IpPermissions=[])),
        "fail",
        "no ingress rule",
    ),
    (
        "aws.interfaces",
        lambda: aws(interfaces=_interfaces([nic("i-1", 0, 0, "interface")])),
        "fail",
        "prefill-0: 1 interfaces, 0 with EFA, p5en.48xlarge takes 16 with EFA",
    ),
    (
        "aws.interfaces",
        lambda: aws(interfaces=_interfaces(nics("i-1")[:9])),
        "warn",
        "prefill-0: 9 interfaces, 8 with EFA",
    ),
    (
        "aws.interfaces",
        lambda: aws(interfaces=_interfaces([nic("i-1", 0, 0, "efa-only")])),
        "fail",
        "the first interface is efa-only",
    ),
    (
        "aws.address",
        lambda: aws(replace(WANT, access="elastic-ip")),
        "fail",
        "prefill-0 has 17 interfaces and no public address",
    ),
    (
        "aws.internet",
        lambda: aws(routes=IGW),
        "warn",
        "prefill-0: subnet-1 has its default route to igw-1, no public address",
    ),
    (
        "aws.subnet",
        lambda: aws(replace(WANT, subnet="subnet-1", zones=("us-west-2a",))),
        "fail",
        "subnet-1 is in us-west-2c, expected us-west-2a",
    ),
    (
        "aws.subnet",
        lambda: before_up(
            replace(WANT, subnet="subnet-1"),
            subnets=[{**ec2.parts()["subnets"][0], "AvailableIpAddressCount": 1}],
        ),
        "fail",
        "has 1 free addresses, expected 2",
    ),
    (
        "aws.subnet",
        lambda: aws(replace(WANT, subnet="subnet-9")),
        "fail",
        "there is no subnet subnet-9",
    ),
    (
        "aws.reservation",
        lambda: aws(reservation=_reservation(State="expired")),
        "fail",
        "it is expired, expected active",
    ),
    (
        "aws.reservation",
        lambda: aws(reservation=_reservation(**BLOCK)),
        "fail",
        "it is a capacity block: `target.capacity.kind` is odcr, expected capacity-block",
    ),
    (
        "aws.reservation",
        lambda: aws(reservation=_reservation(InstanceType="p5.48xlarge")),
        "fail",
        "it is for p5.48xlarge, expected p5en.48xlarge",
    ),
    (
        "aws.reservation",
        lambda: aws(reservation=_reservation(AvailabilityZone="us-west-2a")),
        "fail",
        "it is in us-west-2a, expected us-west-2c",
    ),
    (
        "aws.reservation",
        lambda: aws(instances=_hosts(CapacityReservationId=None)),
        "fail",
        "prefill-0 does not run in it",
    ),
    (
        "aws.reservation",
        lambda: before_up(reservation=_reservation(AvailableInstanceCount=1)),
        "fail",
        "2 more are needed, 1 are free",
    ),
    (
        "aws.reservation",
        lambda: aws(
            problems={"reservation": "InvalidCapacityReservationId.NotFound: no"}, reservation=None
        ),
        "fail",
        "InvalidCapacityReservationId.NotFound",
    ),
    (
        "aws.reservation.end",
        lambda: aws(
            BLOCK_WANT, reservation=_reservation(**BLOCK, EndDate=ec2.NOW + timedelta(hours=5))
        ),
        "warn",
        "EC2 begins to end its instances in 4h30m",
    ),
    (
        "aws.reservation.end",
        lambda: aws(
            BLOCK_WANT, reservation=_reservation(**BLOCK, EndDate=ec2.NOW + timedelta(minutes=80))
        ),
        "fail",
        "in 50m",
    ),
    (
        "aws.reservation.end",
        lambda: aws(
            BLOCK_WANT, reservation=_reservation(**BLOCK, EndDate=ec2.NOW + timedelta(minutes=20))
        ),
        "fail",
        "or did",
    ),
    (
        "aws.reservation.end",
        lambda: before_up(
            reservation=_reservation(AvailableInstanceCount=2, EndDate=ec2.NOW + timedelta(hours=7))
        ),
        "warn",
        "the reservation ends in 7h | `max_hours` is 8",
    ),
    (
        "aws.quota",
        lambda: before_up(quotas=[{"QuotaCode": "L-417A185B", "Value": 192.0}]),
        "fail",
        "quota L-417A185B allows 192 vCPUs, expected 384",
    ),
    (
        "aws.placement",
        lambda: aws(
            instances=_hosts(Placement={"AvailabilityZone": "us-west-2c", "GroupName": "apart"}),
            placement_groups=[{"GroupName": "apart", "Strategy": "spread"}],
        ),
        "warn",
        "apart keeps instances apart",
    ),
    (
        "aws.imds",
        lambda: aws(instances=_hosts(MetadataOptions={"HttpTokens": "optional"})),
        "warn",
        "prefill-0: HttpTokens is optional, expected required",
    ),
    (
        "aws.shutdown",
        lambda: aws(
            attributes=[
                {"InstanceId": "i-1", "InstanceInitiatedShutdownBehavior": {"Value": "stop"}}
            ]
        ),
        "fail",
        "prefill-0: a shutdown would stop it, expected terminate",
    ),
    (
        "aws.shutdown",
        lambda: aws(attributes=[{"InstanceId": "i-2", "DisableApiTermination": {"Value": True}}]),
        "fail",
        "decode-0 is protected against termination",
    ),
]


@pytest.mark.parametrize(("check", "make", "state", "evidence"), BROKEN)
def test_broken(check: str, make: Make, state: Status, evidence: str) -> None:
    found = judged(make())[check]
    assert (found.status, evidence in " | ".join(found.evidence)) == (state, True), found
    assert found.fix is not None
    assert found.fix.text


def test_every_check_is_broken_once() -> None:
    assert {check for check, _, _, _ in BROKEN} == {check.id for check in CHECKS}


def test_the_fix_of_a_group_is_a_command_line() -> None:
    found = judged(aws(groups=_group(IpPermissions=EVERYWHERE, IpPermissionsEgress=EVERYWHERE)))
    fix = found["aws.security_group"].fix
    assert fix is not None
    assert fix.commands == (
        "aws ec2 authorize-security-group-ingress --region us-west-2 --group-id sg-0a "
        "--ip-permissions 'IpProtocol=-1,UserIdGroupPairs=[{GroupId=sg-0a}]'",
        "aws ec2 authorize-security-group-egress --region us-west-2 --group-id sg-0a "
        "--ip-permissions 'IpProtocol=-1,UserIdGroupPairs=[{GroupId=sg-0a}]'",
    )


def test_the_fix_of_interfaces_says_the_layout() -> None:
    few = aws(interfaces=_interfaces(nics("i-1")[:9]))
    fix = judged(few)["aws.interfaces"].fix
    assert fix is not None
    assert fix.text.endswith(
        "For p5en.48xlarge, 17 interfaces: card 0 device 0 `interface`, card 0 device 1 "
        "`efa-only`, cards 1 to 15 device 0 `efa-only`"
    )


def test_the_fix_of_an_address_names_the_first_interface() -> None:
    fix = judged(aws(replace(WANT, access="elastic-ip")))["aws.address"].fix
    assert fix is not None
    assert "--network-interface-id eni-2-0-0" in fix.commands[1]  # decode-0 comes first


def test_how_to_prolong_depends_on_the_kind() -> None:
    soon = ec2.NOW + timedelta(hours=3)
    block = judged(aws(BLOCK_WANT, reservation=_reservation(**BLOCK, EndDate=soon)))
    plain = judged(aws(reservation=_reservation(EndDate=soon)))
    commands = [f["aws.reservation.end"].fix.commands[0] for f in (block, plain)]  # type: ignore[union-attr]
    assert "describe-capacity-block-extension-offerings" in commands[0]
    assert commands[1] == (
        "aws ec2 modify-capacity-reservation --region us-west-2 --capacity-reservation-id cr-1 "
        "--end-date-type unlimited"
    )


def test_an_elastic_address_is_enough() -> None:
    hosts = [{**each, "PublicIpAddress": "203.0.113.1"} for each in ec2.parts()["instances"]]
    found = judged(aws(replace(WANT, access="elastic-ip"), instances=hosts, routes=IGW))
    assert found["aws.address"].status == "pass"
    assert found["aws.internet"].status == "pass"


def test_a_subnet_that_is_closed_on_purpose_is_no_fault() -> None:
    found = judged(aws(routes=[]))["aws.internet"]
    assert (found.status, found.evidence) == (
        "skip",
        ("subnet-1 has no default route: a mirror or VPC endpoints must stand in",),
    )


def test_ucx_hosts_are_not_asked_for_efa() -> None:
    found = judged(aws(replace(WANT, over_efa=False), interfaces=[], groups=[]))
    for id in ("aws.type.efa", "aws.type.rdma_read", "aws.security_group", "aws.interfaces"):
        assert found[id].evidence == ("this deployment does not use EFA",)


def test_a_capacity_block_that_fits() -> None:
    later = ec2.NOW + timedelta(days=2)
    facts = aws(BLOCK_WANT, reservation=_reservation(**BLOCK, EndDate=later))
    assert bad(facts) == []
    assert judged(facts)["aws.reservation.end"].status == "pass"
    assert judged(before_up(BLOCK_WANT, reservation=_reservation(**BLOCK)))["aws.quota"].evidence
    unknown = replace(facts, want=replace(facts.want, max_hours=None))
    assert judged(unknown)["aws.shutdown"].status == "skip"


def test_routers_need_no_efa() -> None:
    router = instance("i-3", "router-0", InstanceType="c7i.2xlarge", CapacityReservationId=None)
    want = replace(WANT, roles=(*WANT.roles, WantedInstances("router", "c7i.2xlarge", 1)))
    facts = aws(
        want,
        instances=[*ec2.parts()["instances"], router],
        types=[ec2.real_types()[name] for name in ("p5en.48xlarge", "c7i.2xlarge")],
        interfaces=[*nics("i-1"), *nics("i-2"), nic("i-3", 0, 0, "interface")],
    )
    assert bad(facts) == []


def test_types_that_are_not_in_the_list_are_left_to_the_hosts() -> None:
    want = replace(WANT, roles=(WantedInstances("prefill", "x9.metal", 1),))
    found = judged(before_up(want))["aws.type.rdma_read"]
    assert found.status == "skip"
    assert "host.efa.rdma_read" in found.evidence[0]
