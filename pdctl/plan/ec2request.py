"""The exact requests that make hosts, and what would be wrong with one. Pure.

Shapes are those of botocore's service model; a test compares them with it.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pdctl.base.awsfacts import DEPLOYMENT_TAG, LAUNCH_TAG, MADE_TAG, AwsInterface, AwsType
from pdctl.base.efalayout import wrong_interfaces
from pdctl.plan.ec2 import CloudPlan, Launch

Request = dict[str, Any]
Rules = list[dict[str, Any]]

_IOPS, _MIB_S = 6000, 500  # weights are read from this volume at every start
_MOST_TOKEN = 64


def tags_of(plan: CloudPlan, run: str, **more: str) -> list[dict[str, str]]:
    """The user's own, and pdctl's, which the user's do not replace."""
    own = {DEPLOYMENT_TAG: plan.name, MADE_TAG: run, "Name": f"pdctl {plan.name}"}
    found = {**plan.target.tags, **own, **more}
    return [{"Key": key, "Value": value} for key, value in found.items()]


def own_filters(deployment: str | None) -> list[dict[str, Any]]:
    """For what pdctl made: of one deployment, or of all."""
    filters = [{"Name": "tag-key", "Values": [MADE_TAG]}]
    if deployment is not None:
        filters.append({"Name": f"tag:{DEPLOYMENT_TAG}", "Values": [deployment]})
    return filters


def tag_specifications(
    kinds: Sequence[str], tags: Sequence[Mapping[str, str]]
) -> list[dict[str, Any]]:
    """The same tags for several kinds of things, from the first moment of their lives."""
    return [{"ResourceType": kind, "Tags": list(tags)} for kind in kinds]


def client_token(run: str, launch: Launch, zone: str, turn: int) -> str:
    """The same for the same request, so that one whose answer got lost is not done twice."""
    hosts = " ".join(each.name for each in launch.hosts)
    text = f"{run}/{launch.id}/{hosts}/{zone}/{turn}"
    return f"pdctl-{hashlib.sha256(text.encode()).hexdigest()[:40]}"


def run_request(
    plan: CloudPlan,
    launch: Launch,
    *,
    zone: str,
    subnet: str,
    group: str | None,
    key_name: str | None,
    run: str,
    token: str,
    user_data: str,
) -> Request:
    """RunInstances of one launch: all of its hosts, or none.

    Args:
        group: None only where the request is tried without doing it.
    """
    target, image = plan.target, plan.image
    assert image is not None
    tags = tags_of(plan, run, **{LAUNCH_TAG: launch.id})
    base: Request = {"SubnetId": subnet, "DeleteOnTermination": True}
    if group is not None:
        base["Groups"] = [group]
    request: Request = {
        "ImageId": image.id,
        "InstanceType": launch.instance_type,
        "MinCount": len(launch.hosts),
        "MaxCount": len(launch.hosts),
        "ClientToken": token,
        "Placement": {"AvailabilityZone": zone, "Tenancy": _tenancy(plan, launch)},
        "NetworkInterfaces": [
            {**base, "NetworkCardIndex": card, "DeviceIndex": device, "InterfaceType": kind}
            for card, device, kind in launch.interfaces
        ],
        "BlockDeviceMappings": [
            {
                "DeviceName": image.root_device,
                "Ebs": {
                    "VolumeSize": target.root_volume_gib,
                    "VolumeType": "gp3",
                    "Iops": _IOPS,
                    "Throughput": _MIB_S,
                    "Encrypted": True,
                    "DeleteOnTermination": True,
                },
            }
        ],
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpEndpoint": "enabled",
            "HttpPutResponseHopLimit": 2,
        },
        # Also without `max_hours`: a host that somebody shuts down is not to cost any more.
        "InstanceInitiatedShutdownBehavior": "terminate",
        "UserData": user_data,
        "TagSpecifications": tag_specifications(("instance", "volume", "network-interface"), tags),
    }
    if key_name is not None:
        request["KeyName"] = key_name
    if target.instance_profile is not None:
        by = "Arn" if target.instance_profile.startswith("arn:") else "Name"
        request["IamInstanceProfile"] = {by: target.instance_profile}
    return request | _capacity(plan, launch)


def _tenancy(plan: CloudPlan, launch: Launch) -> str:
    reserved = plan.reservation if launch.engines else None
    return (reserved.tenancy if reserved else None) or "default"


def _capacity(plan: CloudPlan, launch: Launch) -> Request:
    """Where the capacity comes from. Routers are small and always on demand."""
    capacity = plan.target.capacity
    if not launch.engines or capacity.kind == "on-demand":
        return {}
    if capacity.kind == "spot":
        options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        return {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": options}}
    target = {"CapacityReservationId": capacity.reservation_id}
    request: Request = {"CapacityReservationSpecification": {"CapacityReservationTarget": target}}
    if capacity.kind == "capacity-block":
        request["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
    return request


# --- the security group --------------------------------------------------------------------------


def group_request(plan: CloudPlan, run: str) -> Request:
    """CreateSecurityGroup."""
    return {
        "GroupName": group_name(plan.name),
        "Description": f"Hosts of the pdctl deployment {plan.name}",
        "VpcId": plan.vpc,
        "TagSpecifications": tag_specifications(("security-group",), tags_of(plan, run)),
    }


def group_name(deployment: str) -> str:
    """Of the group that pdctl makes."""
    return f"pdctl-{deployment}"


def inward_rules(plan: CloudPlan, group: str, router_port: int) -> Rules:
    """All from the group itself, as EFA needs; SSH and the router from the given sources only."""
    rules: Rules = [_all_of(group)]
    for source in plan.target.network.allow_from:
        kind, key = ("Ipv6Ranges", "CidrIpv6") if ":" in source else ("IpRanges", "CidrIp")
        for port in dict.fromkeys((plan.target.access.port or 22, router_port)):
            rules.append(
                {"IpProtocol": "tcp", "FromPort": port, "ToPort": port, kind: [{key: source}]}
            )
    return rules


def outward_rules(group: str) -> Rules:
    """All to the group itself; the rule that a new group has, all to everywhere, stays."""
    return [_all_of(group)]


def _all_of(group: str) -> dict[str, Any]:
    return {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}


# --- what would be wrong with a request ----------------------------------------------------------


def wrong_request(request: Mapping[str, Any], kind: AwsType | None) -> Iterator[str]:
    """What EC2 would refuse of RunInstances, or take and do something else. Sentences."""
    interfaces = request.get("NetworkInterfaces") or ()
    if not interfaces:
        yield "no network interface"
        return
    yield from _wrong_addresses(interfaces)
    yield from _wrong_cards(interfaces, kind)
    for key in ("SubnetId", "SecurityGroupIds", "SecurityGroups"):
        if key in request:
            yield f"`{key}` belongs into the interfaces, once there are any"
    token = str(request.get("ClientToken") or "")
    if not 1 <= len(token) <= _MOST_TOKEN or not token.isascii():
        yield f"the client token has {len(token)} characters, expected 1 to {_MOST_TOKEN} of ASCII"
    yield from _wrong_capacity(request)
    if (request.get("MetadataOptions") or {}).get("HttpTokens") != "required":
        yield "the old metadata service (IMDSv1) is open"
    for disk in request.get("BlockDeviceMappings") or ():
        if not disk.get("Ebs", {}).get("DeleteOnTermination"):
            yield f"{disk.get('DeviceName')} would outlive the instance, and cost"
        if not disk.get("Ebs", {}).get("Encrypted"):
            yield f"{disk.get('DeviceName')} is not encrypted"


def _wrong_addresses(interfaces: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for each in interfaces:
        where = f"card {each.get('NetworkCardIndex')} device {each.get('DeviceIndex')}"
        if len(interfaces) > 1 and each.get("AssociatePublicIpAddress"):
            yield f"{where}: no public address is given to a host with several interfaces"
        if each.get("InterfaceType") == "efa-only":
            for key in sorted(each):
                if key.startswith(("PrivateIp", "Ipv6", "Ipv4", "SecondaryPrivateIp")):
                    yield f"{where}: an efa-only interface has no address, and `{key}` is set"
        if not each.get("DeleteOnTermination"):
            yield f"{where}: the interface would outlive the instance"


def _wrong_cards(interfaces: Sequence[Mapping[str, Any]], kind: AwsType | None) -> Iterator[str]:
    for (number, device), count in Counter(map(_place, interfaces)).items():
        if count > 1:
            yield f"card {number} device {device} is there {count} times"
    if not any(_place(each) == (0, 0) for each in interfaces):
        yield "there is no first interface (card 0, device 0)"
    made = [
        AwsInterface(f"card {_place(each)[0]} device {_place(each)[1]}", _kind(each), *_place(each))
        for each in interfaces
    ]
    yield from wrong_interfaces(made, kind)
    efa = sum(each.efa for each in made)
    if kind is not None and efa > kind.max_efa:
        yield f"{efa} EFA interfaces, and {kind.name} takes {kind.max_efa}"


def _kind(interface: Mapping[str, Any]) -> str:
    return str(interface.get("InterfaceType") or "interface")


def _place(interface: Mapping[str, Any]) -> tuple[int, int]:
    return int(interface.get("NetworkCardIndex") or 0), int(interface.get("DeviceIndex") or 0)


def _wrong_capacity(request: Mapping[str, Any]) -> Iterator[str]:
    specification = request.get("CapacityReservationSpecification") or {}
    targeted = specification.get("CapacityReservationTarget")
    market = (request.get("InstanceMarketOptions") or {}).get("MarketType")
    if market == "capacity-block" and not targeted:
        yield "a capacity block has to be named by its id"
    if market == "spot" and targeted:
        yield "a spot instance cannot run in a reservation"
    if targeted and (request.get("Placement") or {}).get("GroupName"):
        yield "a placement group together with a reservation that was not made in it"
