"""Every rule of EC2 that pdctl knows has a case that breaks it, and that one only."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdctl.base.awsfacts import (
    AwsFacts,
    AwsGroup,
    AwsImage,
    AwsInstance,
    AwsQuota,
    AwsReservation,
    AwsSubnet,
    AwsVpc,
)
from pdctl.config.model import Config
from pdctl.plan.ec2 import CloudPlan, Launch, PlannedHost, plan_cloud
from pdctl.plan.ec2rules import RULES, refusals, unknown
from tests.ec2.facts import AMI, NOW, ZONE, config, facts, reservation, type_named

Change = Callable[[AwsFacts], AwsFacts]

BLOCK = {"kind": "capacity-block", "reservation_id": "cr-0123456789abcdef0", "max_hours": 4}
ODCR = {**BLOCK, "kind": "odcr"}
GROUP = {"security_group": "sg-0123456789abcdef0", "access": "elastic-ip"}
ADOPT = {"prefill": ["i-0000000000000000a"], "decode": ["i-0000000000000000b"]}
SUBNET = AwsSubnet("subnet-1", "vpc-1", ZONE, 100, "igw-1", routes_known=True)


def broken(config: Config, found: AwsFacts) -> dict[str, str]:
    """Texts by rule."""
    told: dict[str, str] = {}
    for each in refusals(plan_cloud(config, found), found, now=NOW):
        told[each.rule] = f"{told.get(each.rule, '')}\n{each.text}"
    return told


def with_(**other: Any) -> Change:
    return lambda found: replace(found, **other)


def problem(part: str, text: str, **other: Any) -> Change:
    return lambda found: replace(found, problems={part: text}, **other)


def block(**other: Any) -> AwsReservation:
    return reservation(kind="capacity-block", ends_at=NOW + 8 * 3600, **other)


def instance(name: str, id: str, **other: Any) -> AwsInstance:
    role: Any = name.partition("-")[0]
    found = AwsInstance(id, name, role, "p5en.48xlarge", "running", ZONE, "vpc-1")
    return replace(found, **other)


def with_nat(found: AwsFacts) -> AwsFacts:
    return replace(found, subnets=(replace(SUBNET, way_out="nat-1"),))


PAIR = (
    instance("prefill-0", "i-0000000000000000a"),
    instance("decode-0", "i-0000000000000000b"),
)

CASES: list[tuple[str, dict[str, Any], Change, str]] = [
    ("type", {}, with_(types=()), "there is no instance type `p5en.48xlarge`"),
    (
        "type",
        {},
        problem("types", "InvalidInstanceType: do not exist: [p5en]", types=None),
        "do not exist",
    ),
    (
        "efa",
        {"instance_type": "c7i.2xlarge"},
        with_(),
        "`c7i.2xlarge` has no EFA, and KV goes over EFA",
    ),
    (
        "rdma-read",
        {"instance_type": "g5.48xlarge"},
        with_(),
        "EFA of `g5.48xlarge` does not read by RDMA",
    ),
    (
        "generation",
        {"prefill": {"instance_type": "p4d.24xlarge"}},
        with_(),
        "EFA between p4d and p5en is not supported",
    ),
    (
        "offered",
        {},
        with_(offered={"p5en.48xlarge": ("us-west-2a",), "c7i.2xlarge": (ZONE,)}),
        "`p5en.48xlarge` is offered in us-west-2a, not in us-west-2c",
    ),
    ("zone", {"zones": []}, with_(subnets=()), "there is no zone with a subnet"),
    ("network", {}, with_(vpcs=(), subnets=None), "has no default VPC"),
    (
        "network",
        {},
        problem("subnets", "InvalidSubnetID.NotFound: no", subnets=None),
        "InvalidSubnetID.NotFound",
    ),
    (
        "subnet-zone",
        {"network": {"subnet": "subnet-0123456789abcdef0", "access": "private"}},
        with_(
            subnets=(replace(SUBNET, id="subnet-0123456789abcdef0", zone="us-west-2a",
                             way_out="nat-1"),),
            offered={"p5en.48xlarge": ("us-west-2a",), "c7i.2xlarge": ("us-west-2a",)},
        ),
        "the hosts have to be in us-west-2a, and `target.zones` lists us-west-2c",
    ),
    (
        "one-vpc",
        {"network": {**GROUP, "allow_from": ["203.0.113.0/24"]}},
        lambda f: replace(f, groups=(replace((f.groups or ())[0], vpc="vpc-2"),)),
        "sg-0123456789abcdef0 is in vpc-2, and the hosts are to be in vpc-1",
    ),
    (
        "addresses",
        {},
        with_(subnets=(replace(SUBNET, free=2),)),
        "subnet-1 has 2 free addresses, expected 3 or more",
    ),
    (
        "way-out",
        {},
        with_(subnets=(replace(SUBNET, way_out=None),)),
        "subnet-1 has no way to the internet",
    ),
    (
        "way-out",
        {"network": {"access": "private"}},
        with_(),
        "goes out by igw-1, which needs a public address",
    ),
    (
        "adopted",
        {"instance_ids": ADOPT, "router": None},
        with_(instances=PAIR[:1]),
        "there is no instance i-0000000000000000b",
    ),
    (
        "adopted",
        {"instance_ids": ADOPT, "router": None},
        with_(instances=(PAIR[0], replace(PAIR[1], state="stopped"))),
        "i-0000000000000000b (decode-0) is stopped",
    ),
    (
        "adopted-zone",
        {"instance_ids": ADOPT, "router": None},
        with_(instances=(PAIR[0], replace(PAIR[1], zone="us-west-2a"))),
        "adopted hosts are in different zones: us-west-2a, us-west-2c",
    ),
    (
        "changed",
        {},
        with_(instances=(instance("prefill-0", "i-1", instance_type="p5.48xlarge", made_by="r"),)),
        "prefill-0 (i-1) is a `p5.48xlarge`, and the file says `p5en.48xlarge`",
    ),
    ("tags", {"tags": {"AWS:cost": "mine"}}, with_(), "`AWS:cost`: names that begin with `aws:`"),
    ("tags", {"tags": {"k" * 129: "v"}}, with_(), "a name may have 128 characters"),
    ("tags", {"tags": {"k": "v" * 257}}, with_(), "a value 256"),
    ("tags", {"tags": {f"k{n}": "v" for n in range(46)}}, with_(), "46 tags, expected 45"),
    (
        "group-self",
        {"network": GROUP},
        with_(groups=(AwsGroup("sg-0123456789abcdef0", "vpc-1"),)),
        "does not allow all traffic from itself",
    ),
    ("ssm", {"network": {"access": "ssm"}}, with_nat, "needs hosts that may talk to Systems"),
    ("nobody", {"network": {"access": "elastic-ip"}}, with_(), "nobody may reach SSH"),
    ("reservation", {"capacity": ODCR}, with_(), "there is no cr-0123456789abcdef0"),
    (
        "reservation-kind",
        {"capacity": ODCR},
        with_(reservation=block()),
        "is a capacity block: `capacity.kind` is odcr, expected capacity-block",
    ),
    (
        "reservation-state",
        {"capacity": ODCR},
        with_(reservation=reservation(state="expired")),
        "is expired, expected active",
    ),
    (
        "reservation-type",
        {"capacity": ODCR},
        with_(reservation=reservation(instance_type="p5.48xlarge")),
        "is for p5.48xlarge, and the hosts are p5en.48xlarge",
    ),
    (
        "reservation-tenancy",
        {"capacity": BLOCK},
        with_(reservation=block(tenancy="dedicated")),
        "capacity blocks are default only",
    ),
    (
        "reservation-room",
        {"capacity": ODCR},
        with_(reservation=reservation(available=1)),
        "has 1 free instances, expected 2",
    ),
    (
        "reservation-end",
        {"capacity": BLOCK},
        with_(reservation=replace(block(), ends_at=NOW + 3600)),
        "which leaves 15m",
    ),
    (
        "quota",
        {},
        with_(quotas=(AwsQuota("L-417A185B", 192.0),)),
        "the quota L-417A185B is 192 vCPUs, expected 384 or more",
    ),
    ("image", {}, with_(image=None), "there is no image"),
    (
        "image",
        {},
        problem("image", "InvalidAMIID.NotFound: no", image=None),
        "InvalidAMIID.NotFound",
    ),
    (
        "image-fits",
        {},
        with_(image=AwsImage(AMI, "u", "arm64", "available", "/dev/sda1", "ebs", 8)),
        f"{AMI} is for arm64, and `p5en.48xlarge` is x86_64",
    ),
    (
        "root-volume",
        {"root_volume_gib": 50},
        with_(),
        "`target.root_volume_gib` is 50, and the image ami-0123456789abcdef0 needs 75",
    ),
    (
        "key",
        {"key_name": "mine"},
        problem("keys", "InvalidKeyPair.NotFound: The key pair 'mine' does not exist"),
        "The key pair 'mine' does not exist",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "target", "change", "text"), CASES, ids=lambda v: str(v)[:20])
def test_a_broken_rule_says_what_and_what_to_do(
    tmp_path: Path, rule: str, target: dict[str, Any], change: Change, text: str
) -> None:
    wanted = config(tmp_path, **target)
    found = change(facts(wanted))
    told = broken(wanted, found)
    assert text in told[rule]
    refusal = next(r for r in refusals(plan_cloud(wanted, found), found, now=NOW) if r.rule == rule)
    assert refusal.source
    assert refusal.next_step in str(refusal)
    assert refusal.source in str(refusal)


def test_nothing_is_wrong_with_what_is_right(tmp_path: Path) -> None:
    for target, more in (
        ({}, {}),
        ({"capacity": ODCR}, {"reservation": reservation()}),
        ({"capacity": BLOCK}, {"reservation": block()}),
        ({"network": {"access": "private"}}, {"subnets": (replace(SUBNET, way_out="nat-1"),)}),
        ({"instance_ids": ADOPT, "router": None}, {"instances": PAIR}),
    ):
        wanted = config(tmp_path, **target)
        assert broken(wanted, facts(wanted, **more)) == {}


def test_rules_that_only_a_changed_plan_can_break(tmp_path: Path) -> None:
    """The file's own checks, and the layout, come first; these hold behind them."""
    wanted = config(tmp_path)
    found = facts(wanted)
    plan = plan_cloud(wanted, found)

    def judged(changed: CloudPlan) -> dict[str, str]:
        return {r.rule: r.text for r in refusals(changed, found, now=NOW)}

    network = plan.target.network.model_copy(update={"allow_from": ["0.0.0.0/0"]})
    target = plan.target.model_copy(update={"network": network})
    assert "whole internet" in judged(replace(plan, target=target))["open"]
    capacity = plan.target.capacity.model_copy(update={"kind": "spot"})
    only = replace(type_named("p5en.48xlarge"), usages=("on-demand",))
    spot = replace(plan, target=plan.target.model_copy(update={"capacity": capacity}))
    told = refusals(spot, replace(found, types=(only,)), now=NOW)
    assert "not sold as spot" in {r.rule: r.text for r in told}["usage"]
    hosts = (PlannedHost("prefill-0", "prefill", "p5en.48xlarge", ((0, 0, "efa-only"),)),)
    bad = replace(plan, launches=(Launch("x", "p5en.48xlarge", hosts),))
    assert "first interface is efa-only" in judged(bad)["interfaces"]
    away = replace(reservation(), zone="us-west-2a")
    assert "is in us-west-2a" in judged(replace(plan, reservation=away))["reservation-zone"]


def test_every_rule_has_a_case() -> None:
    tried = {case[0] for case in CASES} | {"open", "usage", "interfaces", "reservation-zone"}
    assert {rule.id for rule in RULES} == tried
    assert all(rule.source for rule in RULES)


def test_what_could_not_be_asked_is_said_and_not_judged(tmp_path: Path) -> None:
    wanted = config(tmp_path)
    found = AwsFacts(
        facts(wanted).want,
        problems={
            part: f"no permission for {part}"
            for part in ("instances", "types", "offered", "vpcs", "image", "quotas", "prices")
        },
    )
    assert broken(wanted, found) == {}
    told = unknown(found)
    assert "the quota: no permission for quotas" in told
    assert len(told) == 7
    plan = plan_cloud(wanted, found)
    assert len(plan.hosts[0].interfaces) == 17  # by the package's own table
    assert plan.cost.hourly_usd is not None
    assert plan.quota == ("L-417A185B", None, 384)


def test_a_vpc_of_its_own_is_looked_for_in(tmp_path: Path) -> None:
    wanted = config(tmp_path)
    other = AwsSubnet("subnet-2", "vpc-2", ZONE, 4000, "igw-2", routes_known=True)
    found = facts(wanted, subnets=(SUBNET, other), vpcs=(AwsVpc("vpc-1"),))
    assert [each.subnet for each in plan_cloud(wanted, found).zones] == ["subnet-1"]
