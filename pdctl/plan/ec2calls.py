"""Every call to AWS that `up` would make, in order, with the reason for each. Pure.

Ids of things that are not there yet are in angle brackets, or left out where the call is also tried
without being done (`DryRun`).
"""

from collections.abc import Iterator

from pdctl.base.awscall import AwsCall
from pdctl.base.awsfacts import MADE_TAG, PROCESS_TAG
from pdctl.plan.ec2 import BLOCK_MARGIN_S, CloudPlan, Launch
from pdctl.plan.ec2request import (
    client_token,
    group_name,
    group_request,
    inward_rules,
    outward_rules,
    own_filters,
    run_request,
    tag_specifications,
    tags_of,
)
from pdctl.render.user_data import user_data

_RUN = "0" * 16
_GROUP = "<the security group>"
_PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFmMvJr0iM7pY0s0H0b0mB2bq5Yt2q4w7mV7QqVd0w3r"
_KINDS = {
    "Instances": "instances",
    "Addresses": "elastic IPs",
    "NetworkInterfaces": "network interfaces",
    "Volumes": "volumes",
    "SecurityGroups": "security groups",
    "KeyPairs": "key pairs",
}


def calls(plan: CloudPlan, *, router_port: int, recorded: bool) -> Iterator[AwsCall]:
    """What `up` asks for, for the first zone.

    Args:
        recorded: there is a record of an earlier `up`; else what it made is looked for by tag.
    """
    if not recorded:
        for what, words in _KINDS.items():
            why = f"whether there are {words} of an `up` whose record is lost"
            yield _by_tag(plan, f"ec2:Describe{what}", why)
    if not plan.launches:
        return
    yield from _group(plan, router_port)
    if plan.target.key_name is None and not plan.there:
        yield AwsCall("ec2:ImportKeyPair", _key(plan), "so that the hosts let you in")
    yield _by_tag(plan, "ec2:DescribeInstances", "which hosts are there")
    for launch in plan.missing:
        yield from _launch(plan, launch)
    ids = {"InstanceIds": [f"<instance of {host.name}>" for host in plan.hosts]}
    yield AwsCall("ec2:DescribeInstances", ids, "again and again, until all run")
    if plan.target.network.access == "elastic-ip":
        yield from _addresses(plan)
    yield from _interfaces(plan)


def _by_tag(plan: CloudPlan, action: str, why: str) -> AwsCall:
    return AwsCall(action, {"Filters": own_filters(plan.name)}, why)


def _group(plan: CloudPlan, router_port: int) -> Iterator[AwsCall]:
    if plan.group is not None:
        return
    filters = [
        {"Name": "group-name", "Values": [group_name(plan.name)]},
        {"Name": "vpc-id", "Values": [plan.vpc]},
    ]
    why = "whether the security group is there"
    yield AwsCall("ec2:DescribeSecurityGroups", {"Filters": filters}, why)
    if not plan.there:
        yield AwsCall(
            "ec2:CreateSecurityGroup", group_request(plan, _RUN), "who may reach the hosts"
        )
    own, *outside = inward_rules(plan, _GROUP, router_port)
    for rule, why in (
        (own, "all from each other, as EFA needs"),
        *((rule, "SSH or the router, from `network.allow_from`") for rule in outside),
    ):
        rules = {"GroupId": _GROUP, "IpPermissions": [rule]}
        yield AwsCall("ec2:AuthorizeSecurityGroupIngress", rules, why)
    for rule in outward_rules(_GROUP):
        rules = {"GroupId": _GROUP, "IpPermissions": [rule]}
        yield AwsCall("ec2:AuthorizeSecurityGroupEgress", rules, "all to each other, as EFA needs")


def _key(plan: CloudPlan) -> dict[str, object]:
    tags = tag_specifications(("key-pair",), tags_of(plan, _RUN))
    name = f"pdctl-{plan.name}"
    return {"KeyName": name, "PublicKeyMaterial": _PUBLIC_KEY, "TagSpecifications": tags}


def _launch(plan: CloudPlan, launch: Launch) -> Iterator[AwsCall]:
    names = ", ".join(host.name for host in launch.hosts)
    if plan.image is not None and plan.zones and plan.zones[0].subnet:
        yield AwsCall("ec2:RunInstances", _request(plan, launch), f"start {names}")
    for host in launch.hosts:
        tags = [{"Key": PROCESS_TAG, "Value": host.name}]
        asked = {"Resources": [f"<instance of {host.name}>"], "Tags": tags}
        yield AwsCall("ec2:CreateTags", asked, "which instance is which host")


def _request(plan: CloudPlan, launch: Launch) -> dict[str, object]:
    zone, end = plan.zones[0], plan.ends_at
    assert zone.subnet is not None
    return run_request(
        plan,
        launch,
        zone=zone.zone,
        subnet=zone.subnet,
        group=plan.group,
        key_name=plan.target.key_name,
        run=_RUN,
        token=client_token(_RUN, launch, zone.zone, 0),
        user_data=user_data(
            plan.name, plan.target, ends_at=None if end is None else end - BLOCK_MARGIN_S
        ),
    )


def _addresses(plan: CloudPlan) -> Iterator[AwsCall]:
    missing = {host.name for launch in plan.missing for host in launch.hosts}
    for host in plan.hosts:
        name = host.name
        filters = [
            {"Name": f"tag:{MADE_TAG}", "Values": ["<id of this making>"]},
            {"Name": f"tag:{PROCESS_TAG}", "Values": [name]},
        ]
        why = f"whether {name} has its address"
        yield AwsCall("ec2:DescribeAddresses", {"Filters": filters}, why)
        if name in missing:
            tags = tags_of(plan, _RUN, **{PROCESS_TAG: name})
            asked = {
                "Domain": "vpc",
                "TagSpecifications": tag_specifications(("elastic-ip",), tags),
            }
            yield AwsCall("ec2:AllocateAddress", asked, f"an address for {name}")
            attach = {
                "AllocationId": f"<address of {name}>",
                "NetworkInterfaceId": f"<first interface of {name}>",
                "AllowReassociation": True,
            }
            yield AwsCall("ec2:AssociateAddress", attach, f"{name} gets it")


def _interfaces(plan: CloudPlan) -> Iterator[AwsCall]:
    for host in plan.hosts if plan.over_efa else ():
        if any(kind != "interface" for _, _, kind in host.interfaces):
            id = f"<instance of {host.name}>"
            filters = [{"Name": "attachment.instance-id", "Values": [id]}]
            why = f"whether {host.name} got its EFA interfaces"
            yield AwsCall("ec2:DescribeNetworkInterfaces", {"Filters": filters}, why)
