"""Asking EC2 what there is. Reads only, and the only module that knows boto3.

Answers are EC2's own, as boto3 gives them; `observe.aws` makes facts of them. What could not be
asked costs its own part only: a permission that is missing is named, never a crash.
"""

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pdctl.base.awscall import AwsCall
from pdctl.targets import ec2_ground

CONNECT_S = 5.0
READ_S = 15.0
ATTEMPTS = 4  # with boto3's own growing pauses between them, which is how throttling is met
LIMIT_S = 45.0

_DENIED = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"})
_BAD_LOGIN = frozenset(
    {
        "AuthFailure",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidClientTokenId",
        "OptInRequired",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)

Clients = Callable[[str], Any]
"""Gives a client by the name of a service."""


@dataclass(frozen=True)
class Ec2Query:
    """What to look for.

    Attributes:
        ids, addresses, tags: the instances: by id, by private address, by all of these tags.
        types: instance types to ask about.
        groups, subnets: ids that are asked about besides those of the instances.
        reservation: id of a capacity reservation.
        quotas: codes.
        network: find the VPC (`vpc`, or else the default one) and its subnets too.
        image: id of one, or with a `/` the name of the SSM parameter that has it.
        key_name: a key pair.
        prices: ask for the prices of `types` in the region.
    """

    ids: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    types: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    subnets: tuple[str, ...] = ()
    reservation: str | None = None
    quotas: tuple[str, ...] = ()
    network: bool = False
    vpc: str | None = None
    image: str | None = None
    key_name: str | None = None
    prices: bool = False
    region: str = ""


@dataclass(frozen=True)
class Ec2Answers:
    """EC2's answers by part, the reasons for parts that have none, or why there is none at all.

    Attributes:
        calls: what was asked, each with its part as the reason.
    """

    parts: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None
    calls: Sequence[AwsCall] = ()


class _NoAnswerError(Exception):
    """Nothing can be asked: no login, or no way there."""


def clients_of(region: str, profile: str | None = None) -> Clients:
    """boto3's clients with limits. Imported here, because it takes a good part of a second."""
    import boto3
    from botocore.config import Config

    config = Config(
        region_name=region,
        connect_timeout=CONNECT_S,
        read_timeout=READ_S,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
    )
    session = boto3.Session(profile_name=profile, region_name=region)

    # The price list has endpoints in a few regions only; what it says is about all of them.
    elsewhere = {"pricing": config.merge(Config(region_name="us-east-1"))}

    @functools.cache  # making one takes longer than what is asked
    def client(service: str) -> Any:
        return session.client(  # type: ignore[call-overload]
            service, config=elsewhere.get(service, config)
        )

    return client


def read_ec2(
    query: Ec2Query,
    region: str,
    profile: str | None = None,
    *,
    clients: Clients | None = None,
    limit: float = LIMIT_S,
) -> Ec2Answers:
    """Ask everything; never raises.

    Args:
        clients: for tests; by default boto3's own.
        limit: seconds after which nothing more is asked.
    """
    calls: list[AwsCall] = []
    try:
        reader = Reader(clients or clients_of(region, profile), time.monotonic() + limit, calls)
        _ask(reader, query)
    except _NoAnswerError as error:
        return Ec2Answers(error=str(error), calls=calls)
    except Exception as error:  # boto3 has many, such as for a profile that does not exist
        return Ec2Answers(error=f"{type(error).__name__}: {error}", calls=calls)
    return Ec2Answers(reader.parts, reader.problems, calls=calls)


class Reader:
    """Asks one thing after the other and keeps answers, problems and what was asked."""

    def __init__(self, clients: Clients, deadline: float, calls: list[AwsCall]) -> None:
        self._clients = clients
        self._deadline = deadline
        self._calls = calls
        self.parts: dict[str, list[dict[str, Any]]] = {}
        self.problems: dict[str, str] = {}

    def pages(
        self, part: str, operation: str, key: str, service: str = "ec2", **arguments: Any
    ) -> list[dict[str, Any]]:
        """All items of all pages; empty, with a problem, when there is no answer."""

        def ask(client: Any) -> list[dict[str, Any]]:
            if not client.can_paginate(operation):
                return list(getattr(client, operation)(**arguments).get(key) or ())
            pages = client.get_paginator(operation).paginate(**arguments)
            return [item for page in pages for item in page.get(key) or ()]

        return self._ask(AwsCall(permission(service, operation), arguments, part), service, ask)

    def one(
        self, part: str, operation: str, key: str | None, service: str = "ec2", **arguments: Any
    ) -> list[dict[str, Any]]:
        """A call that gives one thing."""

        def ask(client: Any) -> list[dict[str, Any]]:
            answer = getattr(client, operation)(**arguments)
            return [answer[key] if key else answer]

        return self._ask(AwsCall(permission(service, operation), arguments, part), service, ask)

    def _ask(
        self, call: AwsCall, service: str, ask: Callable[[Any], list[dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        part = call.why
        if time.monotonic() > self._deadline:
            self.problems[part] = "it was not asked: the time limit had passed"
            return []
        self._calls.append(call)
        try:
            found = ask(self._clients(service))
        except ClientError as error:
            self.problems[part] = _said(error.response.get("Error", {}), call.action)
            return []
        except ResponseParserError:  # a server in between, or one that only looks like AWS
            self.problems[part] = f"the answer to {call.action} is none of AWS's"
            return []
        except BotoCoreError as error:
            if service == "ec2":
                raise _NoAnswerError(_no_answer(error)) from error
            self.problems[part] = _no_answer(error)  # an endpoint that only this one lacks
            return []
        self.parts.setdefault(part, []).extend(found)
        return found


def _said(error: Mapping[str, Any], action: str) -> str:
    code = str(error.get("Code") or "")
    if code in _BAD_LOGIN:
        raise _NoAnswerError(f"AWS refuses the login ({code}): {error.get('Message')}")
    if code in _DENIED:
        return f"no permission for {action}"
    if code in ("RequestLimitExceeded", "Throttling", "ThrottlingException"):
        return f"AWS asks to slow down ({code}), {ATTEMPTS} times"
    return f"{code}: {error.get('Message')}"


def _no_answer(error: Exception) -> str:
    name = type(error).__name__
    if name in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"):
        return f"there are no AWS credentials: {error}"
    return f"{name}: {error}"


def permission(service: str, operation: str) -> str:
    """The IAM action of a call: `ec2:DescribeInstances`."""
    name = {"service-quotas": "servicequotas"}.get(service, service)
    return f"{name}:{''.join(word.capitalize() for word in operation.split('_'))}"


def _ask(reader: Reader, query: Ec2Query) -> None:
    instances = list(_instances(reader, query))
    ids = [each["InstanceId"] for each in instances]
    if ids:
        _of_instances(reader, ids)
    types = sorted({*query.types, *(each.get("InstanceType", "") for each in instances)} - {""})
    if types:
        reader.pages("types", "describe_instance_types", "InstanceTypes", InstanceTypes=types)
        reader.pages(
            "offered",
            "describe_instance_type_offerings",
            "InstanceTypeOfferings",
            LocationType="availability-zone",
            Filters=[{"Name": "instance-type", "Values": types}],
        )
    subnets = ec2_ground.vpc(reader, query) if query.network else ()
    _network(reader, query, instances, subnets)
    if query.image:
        ec2_ground.image(reader, query.image)
    if query.key_name:
        ec2_ground.key(reader, query.key_name)
    if query.prices:
        ec2_ground.prices(reader, query)
    if query.reservation:
        reader.pages(
            "reservation",
            "describe_capacity_reservations",
            "CapacityReservations",
            CapacityReservationIds=[query.reservation],
        )
    for code in query.quotas:
        reader.one(
            "quotas",
            "get_service_quota",
            "Quota",
            "service-quotas",
            ServiceCode="ec2",
            QuotaCode=code,
        )


def _instances(reader: Reader, query: Ec2Query) -> Iterator[dict[str, Any]]:
    """By id, else by address, else by tag. Those that ended long ago are still told for a while."""
    filters: list[dict[str, Any]] = []
    if query.addresses:
        filters.append({"Name": "private-ip-address", "Values": list(query.addresses)})
    else:
        filters += [{"Name": f"tag:{key}", "Values": [v]} for key, v in query.tags.items()]
    if not query.ids and not filters:
        reader.parts["instances"] = []
        return
    arguments: dict[str, Any] = {"Filters": filters}
    if query.ids:
        arguments = {"InstanceIds": list(query.ids)}
    kept = []
    for each in reader.pages("instances", "describe_instances", "Reservations", **arguments):
        for instance in each.get("Instances") or ():
            gone = instance.get("State", {}).get("Name") == "terminated"
            if query.ids or not gone:
                kept.append(instance)
    if "instances" in reader.parts:
        reader.parts["instances"] = kept
    yield from kept


def _of_instances(reader: Reader, ids: Sequence[str]) -> None:
    reader.pages(
        "statuses",
        "describe_instance_status",
        "InstanceStatuses",
        InstanceIds=list(ids),
        IncludeAllInstances=True,
    )
    # DescribeInstances tells interfaces too, but not always all of them with their cards.
    reader.pages(
        "interfaces",
        "describe_network_interfaces",
        "NetworkInterfaces",
        Filters=[{"Name": "attachment.instance-id", "Values": list(ids)}],
    )
    for id in ids:
        for attribute in ("instanceInitiatedShutdownBehavior", "disableApiTermination"):
            reader.one(
                "attributes",
                "describe_instance_attribute",
                None,
                InstanceId=id,
                Attribute=attribute,
            )


def _network(
    reader: Reader,
    query: Ec2Query,
    instances: Sequence[Mapping[str, Any]],
    more: Sequence[str] = (),
) -> None:
    interfaces = reader.parts.get("interfaces") or [
        each for instance in instances for each in instance.get("NetworkInterfaces") or ()
    ]
    found = {group.get("GroupId") for each in interfaces for group in each.get("Groups") or ()}
    groups = sorted({*query.groups, *(each for each in found if each)})
    if groups:
        reader.pages("groups", "describe_security_groups", "SecurityGroups", GroupIds=groups)
    subnets = sorted(
        {*query.subnets, *more, *(each["SubnetId"] for each in instances if each.get("SubnetId"))}
    )
    if subnets:
        answers = reader.pages("subnets", "describe_subnets", "Subnets", SubnetIds=subnets)
        vpcs = sorted({each["VpcId"] for each in answers if each.get("VpcId")})
        if vpcs:
            reader.pages(
                "routes",
                "describe_route_tables",
                "RouteTables",
                Filters=[{"Name": "vpc-id", "Values": vpcs}],
            )
    placed = {each.get("Placement", {}).get("GroupName") for each in instances}
    names = sorted(each for each in placed if each)
    if names:
        reader.pages(
            "placement_groups",
            "describe_placement_groups",
            "PlacementGroups",
            Filters=[{"Name": "group-name", "Values": names}],
        )
