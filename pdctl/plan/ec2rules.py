"""What EC2 would refuse, or take and get wrong: told before anything is made. Pure.

Every rule names where it comes from: the error that EC2 gives, or the page that says so ("UG" is
the EC2 User Guide). What could not be asked is not judged; `unknown` says what that was.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pdctl.base.awsfacts import AwsFacts, AwsGroup, AwsInterface, AwsRule, AwsSubnet
from pdctl.base.durations import format_duration
from pdctl.base.efalayout import wrong_interfaces
from pdctl.base.instances import rdma_read, readers
from pdctl.plan.ec2 import BLOCK_MARGIN_S, CloudPlan, Launch

Found = Iterator[str]
Judge = Callable[[CloudPlan, AwsFacts, float], Found]

_FEWEST_HOURS = 0.5
_LONGEST_KEY, _LONGEST_VALUE = 128, 256
_MOST_TAGS = 45
"""EC2 takes 50, and pdctl has five of its own."""
CHANGED = "changed"
"""The rule that counts also when all hosts are there."""


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        id: for tests and pages.
        source: the error EC2 gives, or the page.
        next_step: what to do about it.
    """

    id: str
    source: str
    judge: Judge
    next_step: str


@dataclass(frozen=True)
class Refusal:
    """One rule that is broken."""

    rule: str
    text: str
    source: str
    next_step: str

    def __str__(self) -> str:
        return f"{self.text} ({self.next_step}; {self.source})"


def refusals(plan: CloudPlan, facts: AwsFacts, *, now: float) -> tuple[Refusal, ...]:
    """All rules that are broken, in order."""
    return tuple(
        Refusal(rule.id, text, rule.source, rule.next_step)
        for rule in RULES
        for text in rule.judge(plan, facts, now)
    )


_PARTS = {
    "types": "what the instance types have",
    "offered": "which zones offer them",
    "vpcs": "the VPC",
    "named": "subnets",
    "inside": "subnets",
    "subnets": "subnets",
    "routes": "routes",
    "groups": "the security group",
    "image": "the image",
    "keys": "the key pair",
    "reservation": "the capacity reservation",
    "quotas": "the quota",
    "prices": "live prices",
    "instances": "instances that exist",
    "statuses": "their health",
    "interfaces": "their network interfaces",
    "attributes": "how they end",
    "placement_groups": "their placement groups",
}


def told_of(part: str) -> str:
    """What a part of the facts is about, in words."""
    return _PARTS[part]


def unknown(facts: AwsFacts) -> tuple[str, ...]:
    """What could not be asked, and why, in sentences."""
    return _sentences(facts, _PARTS)


def needed(plan: CloudPlan, facts: AwsFacts) -> tuple[str, ...]:
    """Of these, what no host can be made without."""
    parts: list[str] = []
    if plan.missing:
        if plan.group is None and plan.vpc is None:
            parts += ["vpcs", "named"]
        if not plan.zones or plan.zones[0].subnet is None:
            parts += ["offered", "vpcs", "named", "inside", "subnets"]
        if plan.image is None:
            parts.append("image")
    return _sentences(facts, parts)


def _sentences(facts: AwsFacts, parts: Collection[str]) -> tuple[str, ...]:
    found = (f"{_PARTS[p]}: {why}" for p, why in facts.problems.items() if p in parts)
    return tuple(dict.fromkeys(found))


# --- types and interfaces ------------------------------------------------------------------------


def _type_exists(plan: CloudPlan, facts: AwsFacts, _: float) -> Found:
    problem = facts.problems.get("types", "")
    if problem.startswith("InvalidInstanceType"):
        yield problem
    for launch in plan.launches:
        if facts.types is not None and facts.type_of(launch.instance_type) is None:
            yield f"there is no instance type `{launch.instance_type}` in {facts.want.region}"


def _has_efa(plan: CloudPlan, facts: AwsFacts, _: float) -> Found:
    for launch in _efa_launches(plan):
        known = facts.type_of(launch.instance_type)
        if known is not None and not known.efa:
            yield f"`{launch.instance_type}` has no EFA, and KV goes over EFA"


def _reads(plan: CloudPlan, _: AwsFacts, __: float) -> Found:
    for launch in _efa_launches(plan):
        if (reads := rdma_read(launch.instance_type)) is not True:
            what = "does not read by RDMA" if reads is False else "is not known to read by RDMA"
            yield f"EFA of `{launch.instance_type}` {what}"


def _efa_launches(plan: CloudPlan) -> Iterator[Launch]:
    return (each for each in plan.launches if each.engines and plan.over_efa)


def _layout(plan: CloudPlan, facts: AwsFacts, _: float) -> Found:
    for launch in plan.launches:
        known = facts.type_of(launch.instance_type)
        made = [
            AwsInterface(f"card {card} device {device}", kind, card, device)
            for card, device, kind in launch.interfaces
        ]
        yield from wrong_interfaces(made, known)
        efa = sum(each.efa for each in made)
        if known is not None and efa > known.max_efa:
            yield f"{efa} EFA interfaces, and `{known.name}` takes {known.max_efa}"
        if known is not None and known.efa and plan.over_efa and launch.engines and not efa:
            yield f"no EFA interface for `{known.name}`, which has {known.max_efa}"


def _one_generation(plan: CloudPlan, _: AwsFacts, __: float) -> Found:
    families = {launch.instance_type.partition(".")[0] for launch in _efa_launches(plan)}
    old = families & {"p4d", "p4de", "dl1"}
    if old and families - old:
        yield f"EFA between {' and '.join(sorted(families))} is not supported by AWS"


# --- where ---------------------------------------------------------------------------------------


def _offered(plan: CloudPlan, facts: AwsFacts, _: float) -> Found:
    if facts.offered is None:
        return
    for launch in plan.launches:
        zones = facts.offered.get(launch.instance_type, ())
        wanted = [each.zone for each in plan.zones] or list(plan.target.zones)
        if wanted and not set(wanted) & set(zones):
            where = ", ".join(zones) or f"no zone of {facts.want.region}"
            yield f"`{launch.instance_type}` is offered in {where}, not in {', '.join(wanted)}"


def _some_zone(plan: CloudPlan, facts: AwsFacts, _: float) -> Found:
    if plan.launches and not plan.zones and facts.error is None and facts.offered is not None:
        yield "there is no zone with a subnet in which all hosts could be"


def _network_known(plan: CloudPlan, facts: AwsFacts, _: float) -> Found:
    for part in ("vpcs", "subnets", "groups"):
        if facts.problems.get(part, "").startswith("Invalid"):
            yield facts.problems[part]
    if plan.launches and facts.vpcs == () and plan.vpc is None:
        yield f"{facts.want.region} has no default VPC, and none is named"


def _subnets(plan: CloudPlan, facts: AwsFacts) -> Iterator[AwsSubnet]:
    used = {each.subnet for each in plan.zones}
    return (each for each in facts.subnets or () if each.id in used)


def _zone_of_subnet(plan: CloudPlan, facts: AwsFacts, _: float) -> Found:
    zones = {each.subnet: each.zone for each in plan.zones}
    for each in _subnets(plan, facts):
        if each.zone is not None and each.zone != zones[each.id]:
            yield f"{each.id} is in {each.zone}, and the hosts are to be in {zones[each.id]}"
        elif plan.target.zones and each.zone not in (None, *plan.target.zones):
            listed = ", ".join(plan.target.zones)
            yield f"the hosts have to be in {each.zone}, and `target.zones` lists {listed}"


def _one_vpc(plan: CloudPlan, facts: AwsFacts, _: float) -> Found:
    for each in _subnets(plan, facts):
        if plan.vpc and each.vpc and each.vpc != plan.vpc:
            yield f"{each.id} is in {each.vpc}, and the hosts are to be in {plan.vpc}"
    for group in _named_group(plan, facts):
        if plan.vpc and group.vpc and group.vpc != plan.vpc:
            yield f"{group.id} is in {group.vpc}, and the hosts are to be in {plan.vpc}"


def _addresses(plan: CloudPlan, facts: AwsFacts, _: float) -> Found:
    """Interfaces without an address need none: `efa-only` ones take nothing from the subnet."""
    needed = sum(
        sum(kind != "efa-only" for _, _, kind in host.interfaces)
        for launch in plan.missing
        for host in launch.hosts
    )
    for each in _subnets(plan, facts):
        if each.free is not None and each.free < needed:
            yield f"{each.id} has {each.free} free addresses, expected {needed} or more"


def _way_out(plan: CloudPlan, facts: AwsFacts, _: float) -> Found:
    for each in _subnets(plan, facts):
        if not plan.launches or not each.routes_known:
            continue
        if each.way_out is None:
            yield f"{each.id} has no way to the internet, where engines and models come from"
        elif each.way_out.startswith("igw-") and plan.target.network.access != "elastic-ip":
            yield (
                f"{each.id} goes out by {each.way_out}, which needs a public address, and EC2 "
                "gives none to a host with several interfaces"
            )


def _adopted_together(plan: CloudPlan, facts: AwsFacts, _: float) -> Found:
    engines = [each for each in plan.adopted if each.role != "router"]
    for what, values in (
        ("zones", {each.zone for each in engines}),
        ("VPCs", {each.vpc for each in engines}),
    ):
        known = sorted(value for value in values if value)
        if len(known) > 1 and plan.over_efa:
            yield f"adopted hosts are in different {what}: {', '.join(known)}"


def _adopted_there(plan: CloudPlan, facts: AwsFacts, _: float) -> Found:
    wanted = {id for each in plan.target.instance_ids.values() for id in each}
    if facts.problems.get("instances", "").startswith("InvalidInstanceID"):
        yield facts.problems["instances"]
    elif facts.instances is not None:
        for id in sorted(wanted - {each.id for each in plan.adopted}):
            yield f"there is no instance {id} in {facts.want.region}"
    for each in plan.adopted:
        if each.state != "running":
            yield f"{each.id} ({each.name}) is {each.state or 'in an unknown state'}"


def _changed(plan: CloudPlan, facts: AwsFacts, _: float) -> Found:
    wanted = {host.name: host.instance_type for host in plan.hosts}
    for each in facts.instances or ():
        if each.made_by and each.name in plan.there and each.instance_type:
            kind = wanted.get(each.name, each.instance_type)
            if kind != each.instance_type:
                was = each.instance_type
                yield f"{each.name} ({each.id}) is a `{was}`, and the file says `{kind}`"


def _tags(plan: CloudPlan, _: AwsFacts, __: float) -> Found:
    if not plan.launches:
        return
    for key, value in plan.target.tags.items():
        if key.lower().startswith("aws:"):
            yield f"tag `{key}`: names that begin with `aws:` are AWS's own"
        if len(key) > _LONGEST_KEY or len(value) > _LONGEST_VALUE:
            yield (
                f"tag `{key[:20]}…`: a name may have {_LONGEST_KEY} characters, a value "
                f"{_LONGEST_VALUE}"
            )
    if len(plan.target.tags) > _MOST_TAGS:
        yield f"{len(plan.target.tags)} tags, expected {_MOST_TAGS} or fewer beside pdctl's own"


# --- groups --------------------------------------------------------------------------------------


def _named_group(plan: CloudPlan, facts: AwsFacts) -> Iterator[AwsGroup]:
    return (each for each in facts.groups or () if each.id == plan.group)


def _self_rules(plan: CloudPlan, facts: AwsFacts, _: float) -> Found:
    if not plan.over_efa:
        return
    for group in _named_group(plan, facts):
        for way, rules in (("from", group.ingress), ("to", group.egress)):
            if not any(_all_of_self(rule, group.id) for rule in rules):
                yield f"{group.id} does not allow all traffic {way} itself, which EFA needs"


def _all_of_self(rule: AwsRule, group: str) -> bool:
    return rule.protocol == "-1" and group in rule.groups


def _open_to_all(plan: CloudPlan, _: AwsFacts, __: float) -> Found:
    network = plan.target.network
    for source in network.allow_from:
        if source.endswith("/0") and not network.force_open:
            yield f"`{source}` opens SSH and the router to the whole internet"


def _somebody_may_come(plan: CloudPlan, _: AwsFacts, __: float) -> Found:
    network = plan.target.network
    if network.access == "elastic-ip" and plan.group is None and not network.allow_from:
        yield "nobody may reach SSH on the hosts: `network.allow_from` is empty"


def _manageable(plan: CloudPlan, _: AwsFacts, __: float) -> Found:
    target = plan.target
    if target.network.access == "ssm" and plan.launches and target.instance_profile is None:
        yield "`network.access: ssm` needs hosts that may talk to Systems Manager"


# --- capacity ------------------------------------------------------------------------------------


def _reservation_there(plan: CloudPlan, facts: AwsFacts, _: float) -> Found:
    problem = facts.problems.get("reservation", "")
    if problem.startswith("InvalidCapacityReservationId"):
        yield problem
    elif facts.want.reservation and facts.reservation is None and not problem and not facts.error:
        yield f"there is no {facts.want.reservation} in {facts.want.region}"


def _reservation_kind(plan: CloudPlan, facts: AwsFacts, _: float) -> Found:
    found = plan.reservation
    if found is None:
        return
    block = found.kind == "capacity-block"
    if block != (plan.target.capacity.kind == "capacity-block"):
        what = "a capacity block" if block else "an on-demand reservation"
        right = "capacity-block" if block else "odcr"
        kind = plan.target.capacity.kind
        yield f"{found.id} is {what}: `capacity.kind` is {kind}, expected {right}"


def _reservation_state(plan: CloudPlan, _: AwsFacts, __: float) -> Found:
    found = plan.reservation
    if found is not None and found.state != "active":
        yield f"{found.id} is {found.state or 'in an unknown state'}, expected active"


def _reservation_type(plan: CloudPlan, _: AwsFacts, __: float) -> Found:
    found = plan.reservation
    types = {each.instance_type for each in plan.launches if each.engines}
    for kind in sorted(types):
        if found is not None and found.instance_type != kind:
            yield f"{found.id} is for {found.instance_type}, and the hosts are {kind}"


def _reservation_zone(plan: CloudPlan, _: AwsFacts, __: float) -> Found:
    found, zones = plan.reservation, plan.target.zones
    if found is not None and found.zone and zones and found.zone not in zones:
        yield f"{found.id} is in {found.zone}, and `target.zones` lists {', '.join(zones)}"


def _reservation_tenancy(plan: CloudPlan, _: AwsFacts, __: float) -> Found:
    found = plan.reservation
    if found is None or found.tenancy in (None, "default"):
        return
    if found.kind == "capacity-block":
        yield f"{found.id} has tenancy {found.tenancy}, and capacity blocks are default only"


def _reservation_room(plan: CloudPlan, _: AwsFacts, __: float) -> Found:
    found = plan.reservation
    if found is None or found.available is None:
        return
    needed = sum(len(each.hosts) for each in plan.missing if each.engines)
    if needed > found.available:
        yield f"{found.id} has {found.available} free instances, expected {needed}"


def _reservation_end(plan: CloudPlan, _: AwsFacts, now: float) -> Found:
    found = plan.reservation
    if found is None or found.ends_at is None:
        return
    left = found.ends_at - now - (BLOCK_MARGIN_S if found.kind == "capacity-block" else 0.0)
    if left < _FEWEST_HOURS * 3600:
        end = datetime.fromtimestamp(found.ends_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
        yield f"{found.id} ends at {end}, which leaves {format_duration(max(0.0, round(left)))}"


def _usage(plan: CloudPlan, facts: AwsFacts, _: float) -> Found:
    usage = {"odcr": "on-demand"}.get(plan.target.capacity.kind, plan.target.capacity.kind)
    for launch in plan.launches:
        known = facts.type_of(launch.instance_type)
        if launch.engines and known is not None and known.usages and usage not in known.usages:
            yield f"`{known.name}` is not sold as {usage}, only as {', '.join(known.usages)}"


def _quota(plan: CloudPlan, facts: AwsFacts, _: float) -> Found:
    if plan.quota is None:
        return
    code, limit, needed = plan.quota
    if limit is not None and limit < needed:
        yield f"the quota {code} is {limit:g} vCPUs, expected {needed} or more"


# --- image and key -------------------------------------------------------------------------------


def _image_there(plan: CloudPlan, facts: AwsFacts, _: float) -> Found:
    problem = facts.problems.get("image", "")
    if problem.startswith(("InvalidAMIID", "ParameterNotFound")):
        yield problem
    elif plan.launches and not facts.error and not problem and plan.image is None:
        yield "there is no image: none is named, and none was found"
    image = plan.image
    if image is not None and image.state not in ("", "available"):
        yield f"{image.id} is {image.state}, expected available"


def _image_fits(plan: CloudPlan, facts: AwsFacts, _: float) -> Found:
    image = plan.image
    if image is None:
        return
    for launch in plan.launches:
        known = facts.type_of(launch.instance_type)
        if known and known.architectures and image.architecture not in known.architectures:
            yield (
                f"{image.id} is for {image.architecture}, and `{known.name}` is "
                f"{' or '.join(known.architectures)}"
            )
    if image.platform:
        yield f"{image.id} is {image.platform}, expected Linux"


def _root_device(plan: CloudPlan, _: AwsFacts, __: float) -> Found:
    image = plan.image
    if image is None:
        return
    if image.root_kind not in ("", "ebs") or image.root_device is None:
        yield f"{image.id} has no EBS root volume"
    elif image.root_gib is not None and image.root_gib > plan.target.root_volume_gib:
        yield (
            f"`target.root_volume_gib` is {plan.target.root_volume_gib}, and the image {image.id} "
            f"needs {image.root_gib}"
        )


def _key(plan: CloudPlan, facts: AwsFacts, _: float) -> Found:
    problem = facts.problems.get("keys", "")
    if problem.startswith("InvalidKeyPair"):
        yield problem


def _rule(id: str, judge: Judge, source: str, next_step: str) -> Rule:
    return Rule(id, source, judge, next_step)


_CHOOSE_TYPE = f"set `target.instance_type` to one of {', '.join(readers())}"
_RESERVE = "mend `target.capacity`"
_NETWORK = "mend `target.network`"

RULES: Sequence[Rule] = (
    _rule("type", _type_exists, "InvalidInstanceType", "mend `target.instance_type`"),
    _rule("efa", _has_efa, "UnsupportedOperation: EFA interfaces are not supported", _CHOOSE_TYPE),
    _rule(
        "rdma-read", _reads, "UG efa: RDMA read is supported on Nitro v4 and later", _CHOOSE_TYPE
    ),
    _rule(
        "interfaces",
        _layout,
        "AttachmentLimitExceeded; UG efa-acc-inst-types",
        "report it, pdctl's layout is wrong",
    ),
    _rule(
        "generation",
        _one_generation,
        "UG efa: EFA traffic between P4d/P4de/DL1 and other types is not supported",
        "use one family for prefill and decode",
    ),
    _rule("offered", _offered, "Unsupported", "mend `target.zones`"),
    _rule("zone", _some_zone, "Unsupported; InvalidSubnetID.NotFound", "name zones and a subnet"),
    _rule("network", _network_known, "InvalidVpcID.NotFound; VPCIdNotSpecified", _NETWORK),
    _rule("subnet-zone", _zone_of_subnet, "InvalidParameterValue; UG efa: one zone", _NETWORK),
    _rule("one-vpc", _one_vpc, "InvalidParameter: belong to different networks", _NETWORK),
    _rule(
        "addresses",
        _addresses,
        "InsufficientFreeAddressesInSubnet",
        "name a larger subnet in `network.subnet`",
    ),
    _rule(
        "way-out",
        _way_out,
        "RunInstances: no public address with several interfaces",
        "use a private subnet with a NAT gateway, or `network.access: elastic-ip`",
    ),
    _rule("adopted", _adopted_there, "InvalidInstanceID.NotFound", "mend `target.instance_ids`"),
    _rule(
        "adopted-zone",
        _adopted_together,
        "UG efa: EFA traffic can't cross Availability Zones or VPCs",
        "adopt hosts of one zone and VPC",
    ),
    _rule(
        CHANGED,
        _changed,
        "UG resize: an instance keeps its type",
        "`pdctl down` first, or put the type back",
    ),
    _rule("tags", _tags, "InvalidParameterValue; TagLimitExceeded; UG tags", "mend `target.tags`"),
    _rule(
        "group-self",
        _self_rules,
        "UG efa-start-nixl: all traffic in from and out to the group itself",
        "add the two rules, or leave `network.security_group` out and pdctl makes one",
    ),
    _rule(
        "open",
        _open_to_all,
        "UG efa-start-nixl: SSH from anywhere is for testing only",
        "name your own network, or set `network.force_open`",
    ),
    _rule(
        "nobody",
        _somebody_may_come,
        "UG security groups: what no rule allows is dropped",
        "name your own network in `network.allow_from`",
    ),
    _rule(
        "ssm",
        _manageable,
        "Systems Manager User Guide: instance permissions",
        "set `target.instance_profile` to one with AmazonSSMManagedInstanceCore",
    ),
    _rule("reservation", _reservation_there, "InvalidCapacityReservationId.NotFound", _RESERVE),
    _rule(
        "reservation-kind",
        _reservation_kind,
        "InvalidParameterValue: the market type option is not valid",
        _RESERVE,
    ),
    _rule("reservation-state", _reservation_state, "UG capacity-blocks: states", _RESERVE),
    _rule("reservation-type", _reservation_type, "InvalidParameterValue", _RESERVE),
    _rule("reservation-zone", _reservation_zone, "InvalidParameterValue", "mend `target.zones`"),
    _rule(
        "reservation-tenancy", _reservation_tenancy, "UG capacity-blocks: default only", _RESERVE
    ),
    _rule(
        "reservation-room",
        _reservation_room,
        "ReservationCapacityExceeded",
        "end what runs in it; a slot takes minutes to be free again",
    ),
    _rule(
        "reservation-end",
        _reservation_end,
        "UG capacity-blocks: instances are ended from 30 minutes before the end",
        "use another one",
    ),
    _rule("usage", _usage, "Unsupported; DescribeInstanceTypes.SupportedUsageClasses", _RESERVE),
    _rule(
        "quota",
        _quota,
        "VcpuLimitExceeded",
        "ask for more: `aws service-quotas request-service-quota-increase`, which takes days",
    ),
    _rule("image", _image_there, "InvalidAMIID.NotFound", "set `target.image`"),
    _rule("image-fits", _image_fits, "InvalidParameterValue: architecture", "set `target.image`"),
    _rule(
        "root-volume", _root_device, "InvalidBlockDeviceMapping", "mend `target.root_volume_gib`"
    ),
    _rule("key", _key, "InvalidKeyPair.NotFound", "mend `target.key_name`, or leave it out"),
)
