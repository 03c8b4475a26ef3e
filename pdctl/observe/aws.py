"""What EC2 answers, to facts; and what a configuration asks of it. Pure but for `read_aws`."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from pdctl.base.awsfacts import (
    DEPLOYMENT_TAG,
    MADE_TAG,
    PROCESS_TAG,
    QUOTAS,
    AwsCard,
    AwsFacts,
    AwsGroup,
    AwsImage,
    AwsInstance,
    AwsInterface,
    AwsPlacementGroup,
    AwsQuota,
    AwsReservation,
    AwsRule,
    AwsSubnet,
    AwsType,
    AwsVpc,
    AwsWant,
    WantedInstances,
)
from pdctl.base.process import ROLES, RoleName
from pdctl.config.model import Config, Ec2Target
from pdctl.engine import choices
from pdctl.targets.ec2_read import Clients, Ec2Answers, Ec2Query, read_ec2

T = TypeVar("T")
Item = Mapping[str, Any]

_OVER = ("[Completed]", "[Canceled]")  # how EC2 begins the description of an event that is over


def want_of(config: Config) -> AwsWant | None:
    """What a configuration asks of EC2; None for another target."""
    target = config.target
    if not isinstance(target, Ec2Target):
        return None
    return AwsWant(
        deployment=config.name,
        region=target.region,
        roles=tuple(_roles(target)),
        over_efa="LIBFABRIC" in choices.backends(config),
        zones=tuple(target.zones),
        capacity=target.capacity.kind,
        reservation=target.capacity.reservation_id,
        max_hours=target.capacity.max_hours,
        vpc=target.network.vpc,
        subnet=target.network.subnet,
        security_group=target.network.security_group,
        access=target.network.access,
    )


def _roles(target: Ec2Target) -> Iterator[WantedInstances]:
    roles = {"prefill": target.prefill, "decode": target.decode, "router": target.router}
    for role in ROLES:
        ids = tuple(target.instance_ids.get(role, ()))
        own = roles[role]
        if own is None and not ids:
            continue
        kind = (own.instance_type if own else None) or target.instance_type
        count = len(ids) or (own.count if own else 0)
        yield WantedInstances(role, kind, count, ids)


def query_of(want: AwsWant) -> Ec2Query:
    """What to ask: adopted hosts by their ids, others by the deployment's tag."""
    ids = tuple(id for each in want.roles for id in each.ids)
    return Ec2Query(
        ids=ids,
        tags={} if ids else {DEPLOYMENT_TAG: want.deployment},
        types=tuple(sorted({each.instance_type for each in want.roles})),
        groups=(want.security_group,) if want.security_group else (),
        subnets=(want.subnet,) if want.subnet else (),
        reservation=want.reservation,
        quotas=tuple(sorted(_quota_codes(want))),
    )


IMAGE_PARAMETER = (
    "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
)
"""Where AWS keeps the id of its image with GPU driver and EFA software, for every region."""


def making_query_of(want: AwsWant, target: Ec2Target) -> Ec2Query:
    """What to ask before hosts are made: all that decides whether EC2 would let them be."""
    return replace(
        query_of(want),
        network=True,
        vpc=want.vpc,
        image=target.image or IMAGE_PARAMETER,
        key_name=target.key_name,
        prices=True,
        region=want.region,
    )


def _quota_codes(want: AwsWant) -> set[str]:
    codes = QUOTAS.get(want.capacity, {})  # a capacity block counts against none of these
    return {codes[family] for each in want.engines if (family := each.instance_type[:1]) in codes}


def quota_of(want: AwsWant, instance_type: str) -> str | None:
    """The quota that a type counts against; None when it is not known or there is none."""
    return QUOTAS.get(want.capacity, {}).get(instance_type[:1])


def read_aws(
    want: AwsWant, profile: str | None = None, *, clients: Clients | None = None
) -> AwsFacts:
    """Ask EC2; never raises."""
    return facts_of(want, read_ec2(query_of(want), want.region, profile, clients=clients))


def facts_of(want: AwsWant, answers: Ec2Answers) -> AwsFacts:
    """EC2's answers to facts."""
    if answers.error is not None:
        return AwsFacts(want, error=answers.error)
    parts = answers.parts

    def made(part: str, reader: Callable[[Item], T]) -> tuple[T, ...] | None:
        found = parts.get(part)
        return None if found is None else tuple(reader(item) for item in found)

    reservations = made("reservation", _reservation)
    images = made("image", _image)
    return AwsFacts(
        want=want,
        instances=_instances(want, parts),
        types=made("types", _type),
        groups=made("groups", _group),
        subnets=_subnets(parts),
        reservation=reservations[0] if reservations else None,
        placement_groups=made("placement_groups", _placement_group),
        quotas=made("quotas", _quota),
        offered=_offered(parts.get("offered")),
        vpcs=made("vpcs", lambda item: AwsVpc(str(item.get("VpcId")), bool(item.get("IsDefault")))),
        image=images[0] if images else None,
        keys=made("keys", lambda item: str(item.get("KeyName"))),
        prices=_prices(parts.get("prices")),
        problems=dict(answers.problems),
    )


def _instances(
    want: AwsWant, parts: Mapping[str, Sequence[Item]]
) -> tuple[AwsInstance, ...] | None:
    found = parts.get("instances")
    if found is None:
        return None
    names = {
        id: (f"{each.role}-{index}", each.role)
        for each in want.roles
        for index, id in enumerate(each.ids)
    }
    made = [_instance(item, names, parts) for item in found]
    return tuple(sorted(made, key=lambda each: each.name))


def _instance(
    item: Item,
    names: Mapping[str, tuple[str, RoleName]],
    parts: Mapping[str, Sequence[Item]],
) -> AwsInstance:
    id = str(item.get("InstanceId"))
    tags = {tag.get("Key"): tag.get("Value") for tag in item.get("Tags") or ()}
    name, role = names.get(id) or _tagged(id, tags)
    status = _by_id(parts.get("statuses"), id)
    placement = item.get("Placement") or {}
    return AwsInstance(
        id=id,
        name=name,
        role=role,
        instance_type=str(item.get("InstanceType") or ""),
        state=str((item.get("State") or {}).get("Name") or ""),
        zone=placement.get("AvailabilityZone"),
        vpc=item.get("VpcId"),
        subnet=item.get("SubnetId"),
        private_ip=item.get("PrivateIpAddress"),
        public_ip=item.get("PublicIpAddress"),
        lifecycle=item.get("InstanceLifecycle"),
        reservation=item.get("CapacityReservationId"),
        placement_group=placement.get("GroupName") or None,
        tokens=(item.get("MetadataOptions") or {}).get("HttpTokens"),
        interfaces=_interfaces(item, id, parts.get("interfaces")),
        launched_at=_time(item.get("LaunchTime")),
        system_status=(status.get("SystemStatus") or {}).get("Status"),
        instance_status=(status.get("InstanceStatus") or {}).get("Status"),
        events=tuple(_events(status)),
        shutdown=_attribute(parts.get("attributes"), id, "InstanceInitiatedShutdownBehavior"),
        protected=_attribute(parts.get("attributes"), id, "DisableApiTermination"),
        made_by=tags.get(MADE_TAG),
    )


def _tagged(id: str, tags: Mapping[Any, Any]) -> tuple[str, RoleName | None]:
    name = str(tags.get(PROCESS_TAG) or id)
    role = next((role for role in ROLES if name.startswith(f"{role}-")), None)
    return name, role


def _by_id(items: Sequence[Item] | None, id: str) -> Item:
    return next((each for each in items or () if each.get("InstanceId") == id), {})


def _events(status: Item) -> Iterator[str]:
    for event in status.get("Events") or ():
        if not str(event.get("Description") or "").startswith(_OVER):
            yield str(event.get("Code"))


def _attribute(items: Sequence[Item] | None, id: str, name: str) -> Any:
    """A value of DescribeInstanceAttribute, which answers one attribute at a time."""
    for each in items or ():
        if each.get("InstanceId") == id and name in each:
            return (each[name] or {}).get("Value")
    return None


def _interfaces(item: Item, id: str, found: Sequence[Item] | None) -> tuple[AwsInterface, ...]:
    own = [each for each in found or () if (each.get("Attachment") or {}).get("InstanceId") == id]
    made = (_interface(each) for each in own or item.get("NetworkInterfaces") or ())
    return tuple(sorted(made, key=lambda each: (each.card, each.device)))


def _interface(item: Item) -> AwsInterface:
    attachment = item.get("Attachment") or {}
    return AwsInterface(
        id=str(item.get("NetworkInterfaceId")),
        kind=str(item.get("InterfaceType") or "interface"),
        card=int(attachment.get("NetworkCardIndex") or 0),
        device=int(attachment.get("DeviceIndex") or 0),
        groups=tuple(str(group.get("GroupId")) for group in item.get("Groups") or ()),
        subnet=item.get("SubnetId"),
        private_ip=item.get("PrivateIpAddress"),
        public_ip=(item.get("Association") or {}).get("PublicIp"),
    )


def _type(item: Item) -> AwsType:
    network = item.get("NetworkInfo") or {}
    gpus = (item.get("GpuInfo") or {}).get("Gpus") or ()
    return AwsType(
        name=str(item.get("InstanceType")),
        efa=bool(network.get("EfaSupported")),
        max_efa=int((network.get("EfaInfo") or {}).get("MaximumEfaInterfaces") or 0),
        cards=tuple(
            AwsCard(
                index=int(card.get("NetworkCardIndex") or 0),
                interfaces=int(card.get("MaximumNetworkInterfaces") or 0),
                kinds=tuple(card.get("InterfaceTypes") or ()),
            )
            for card in network.get("NetworkCards") or ()
        ),
        vcpus=(item.get("VCpuInfo") or {}).get("DefaultVCpus"),
        gpus=sum(int(gpu.get("Count") or 0) for gpu in gpus),
        architectures=tuple((item.get("ProcessorInfo") or {}).get("SupportedArchitectures") or ()),
        usages=tuple(item.get("SupportedUsageClasses") or ()),
    )


def _image(item: Item) -> AwsImage:
    root = item.get("RootDeviceName")
    sizes = [
        (each.get("Ebs") or {}).get("VolumeSize")
        for each in item.get("BlockDeviceMappings") or ()
        if each.get("DeviceName") == root
    ]
    return AwsImage(
        id=str(item.get("ImageId")),
        name=str(item.get("Name") or ""),
        architecture=str(item.get("Architecture") or ""),
        state=str(item.get("State") or ""),
        root_device=str(root) if root else None,
        root_kind=str(item.get("RootDeviceType") or ""),
        root_gib=sizes[0] if sizes else None,
        platform=item.get("Platform") or None,
    )


def _prices(items: Sequence[Item] | None) -> dict[str, float] | None:
    """By type; a type with no price, or with several, is left out."""
    if items is None:
        return None
    found: dict[str, set[float]] = {}
    for item in items:
        for text in item.get("PriceList") or ():
            for kind, price in _dollars(text):
                found.setdefault(kind, set()).add(price)
    return {kind: amounts.pop() for kind, amounts in found.items() if len(amounts) == 1}


def _dollars(text: str) -> Iterator[tuple[str, float]]:
    """Type and price an hour of one product of the price list, which is JSON in a string."""
    try:
        product = json.loads(text)
        kind = str(product["product"]["attributes"]["instanceType"])
        for term in product["terms"]["OnDemand"].values():
            for dimension in term["priceDimensions"].values():
                price = float(dimension["pricePerUnit"]["USD"])
                if dimension["unit"] == "Hrs" and price > 0:
                    yield kind, price
    except (ValueError, KeyError, TypeError, AttributeError):
        return


def _group(item: Item) -> AwsGroup:
    return AwsGroup(
        id=str(item.get("GroupId")),
        vpc=item.get("VpcId"),
        ingress=_rules(item.get("IpPermissions")),
        egress=_rules(item.get("IpPermissionsEgress")),
    )


def _rules(items: Iterable[Item] | None) -> tuple[AwsRule, ...]:
    return tuple(
        AwsRule(
            protocol=str(item.get("IpProtocol")),
            groups=tuple(str(pair.get("GroupId")) for pair in item.get("UserIdGroupPairs") or ()),
            ranges=tuple(
                str(range.get(key))
                for name, key in (("IpRanges", "CidrIp"), ("Ipv6Ranges", "CidrIpv6"))
                for range in item.get(name) or ()
            ),
        )
        for item in items or ()
    )


def _subnets(parts: Mapping[str, Sequence[Item]]) -> tuple[AwsSubnet, ...] | None:
    found = parts.get("subnets")
    if found is None:
        return None
    tables = parts.get("routes")
    return tuple(
        AwsSubnet(
            id=str(item.get("SubnetId")),
            vpc=item.get("VpcId"),
            zone=item.get("AvailabilityZone"),
            free=item.get("AvailableIpAddressCount"),
            way_out=_way_out(item, tables or ()),
            routes_known=tables is not None,
        )
        for item in found
    )


def _way_out(subnet: Item, tables: Sequence[Item]) -> str | None:
    """Where 0.0.0.0/0 goes, by the subnet's own table, else by the VPC's main one."""
    main: Item | None = None
    for table in tables:
        for association in table.get("Associations") or ():
            if association.get("SubnetId") == subnet.get("SubnetId"):
                return _default(table)
            if association.get("Main") and table.get("VpcId") == subnet.get("VpcId"):
                main = table
    return None if main is None else _default(main)


_VIA = ("GatewayId", "NatGatewayId", "TransitGatewayId", "NetworkInterfaceId", "InstanceId")


def _default(table: Item) -> str | None:
    for route in table.get("Routes") or ():
        if route.get("DestinationCidrBlock") == "0.0.0.0/0" and route.get("State") != "blackhole":
            return next((str(route[key]) for key in _VIA if route.get(key)), "another way")
    return None


def _reservation(item: Item) -> AwsReservation:
    return AwsReservation(
        id=str(item.get("CapacityReservationId")),
        state=str(item.get("State") or ""),
        kind=str(item.get("ReservationType") or "default"),
        instance_type=str(item.get("InstanceType") or ""),
        zone=item.get("AvailabilityZone"),
        total=item.get("TotalInstanceCount"),
        available=item.get("AvailableInstanceCount"),
        ends_at=_time(item.get("EndDate")),
        match=item.get("InstanceMatchCriteria"),
        tenancy=item.get("Tenancy"),
    )


def _placement_group(item: Item) -> AwsPlacementGroup:
    return AwsPlacementGroup(str(item.get("GroupName")), str(item.get("Strategy") or ""))


def _quota(item: Item) -> AwsQuota:
    return AwsQuota(str(item.get("QuotaCode")), float(item.get("Value") or 0))


def _offered(items: Sequence[Item] | None) -> dict[str, tuple[str, ...]] | None:
    if items is None:
        return None
    found: dict[str, list[str]] = {}
    for item in items:
        found.setdefault(str(item.get("InstanceType")), []).append(str(item.get("Location")))
    return {kind: tuple(sorted(zones)) for kind, zones in found.items()}


def _time(value: object) -> float | None:
    return value.timestamp() if isinstance(value, datetime) else None
