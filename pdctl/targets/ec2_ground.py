"""What else is asked before hosts are made: the network, the image, the key pair, prices."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pdctl.targets.ec2_read import Ec2Query, Reader


def vpc(reader: "Reader", query: "Ec2Query") -> tuple[str, ...]:
    """The VPC; gives the ids of its subnets."""
    id = query.vpc
    if not id and query.subnets:  # a subnet that is named says in which VPC it is
        found = reader.pages("named", "describe_subnets", "Subnets", SubnetIds=list(query.subnets))
        reader.parts.pop("named", None)
        if not found:
            return query.subnets
        id = found[0]["VpcId"]
    which: dict[str, Any] = {"VpcIds": [id]}
    if not id:
        which = {"Filters": [{"Name": "is-default", "Values": ["true"]}]}
    vpcs = reader.pages("vpcs", "describe_vpcs", "Vpcs", **which)
    id = vpcs[0]["VpcId"] if vpcs else id
    if not id:
        return query.subnets
    inside = reader.pages(
        "inside", "describe_subnets", "Subnets", Filters=[{"Name": "vpc-id", "Values": [id]}]
    )
    reader.parts.pop("inside", None)
    return tuple(each["SubnetId"] for each in inside)


def image(reader: "Reader", named: str) -> None:
    """By its id, or by the name of the parameter that has it."""
    if "/" in named:
        found = reader.one("image", "get_parameter", "Parameter", "ssm", Name=named)
        reader.parts.pop("image", None)
        if not found:
            return
        named = str(found[0].get("Value"))
    reader.pages("image", "describe_images", "Images", ImageIds=[named])


def key(reader: "Reader", name: str) -> None:
    """Whether there is a key pair of this name."""
    reader.pages("keys", "describe_key_pairs", "KeyPairs", KeyNames=[name])


def prices(reader: "Reader", query: "Ec2Query") -> None:
    """On demand, Linux, shared hosts. The price list answers in two regions only."""
    terms = {
        "regionCode": query.region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    for kind in query.types:
        filters = [
            {"Type": "TERM_MATCH", "Field": name, "Value": value}
            for name, value in {"instanceType": kind, **terms}.items()
        ]
        reader.one(
            "prices", "get_products", None, "pricing", ServiceCode="AmazonEC2", Filters=filters
        )
