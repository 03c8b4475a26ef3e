"""A region of moto with a network, and what moto does not do itself put right.

moto knows no client tokens, no reservations, no kinds of interfaces; it starts an instance at once,
and never lacks capacity. `Region` adds what a test needs of that. Nothing was run on EC2.
"""

import contextlib
import functools
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import yaml
from botocore.exceptions import ClientError
from moto import mock_aws
from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2 import ec2_backends

from pdctl.base.awsfacts import DEPLOYMENT_TAG, MADE_TAG
from pdctl.config.model import Config
from pdctl.deploy.ec2things import Clock
from pdctl.render.check import load_checked

REGION = "us-west-2"
NAME = "demo"
IMAGE = "ami-1e749f67"
"""An Ubuntu that moto has."""
EXAMPLE = Path(__file__).parents[2] / "examples" / "p5en-1p1d.yaml"


class Crash(BaseException):
    """The machine that pdctl runs on loses its power."""


class Region:
    """boto3's clients of a moto region, watched, and made to fail on demand.

    Attributes:
        calls: operations that were asked for, in order.
        refusals: by operation, errors to give instead of an answer, in order.
        crash: says around which call power is lost; None for never.
        crash_after: lose it after the call was done, its answer lost; else before.
        requests: RunInstances that were really made.
        unseen: in so many looks by tag a new instance is not found yet.
    """

    def __init__(self, subnets: dict[str, str], vpc: str, image: str) -> None:
        self.subnets, self.vpc, self.image = subnets, vpc, image
        self.calls: list[str] = []
        self.actions: set[str] = set()
        self.refusals: dict[str, list[ClientError]] = {}
        self.crash: Callable[[str, dict[str, Any]], bool] | None = None
        self.crash_after = False
        self.requests: list[dict[str, Any]] = []
        self.unseen = 0
        self._clients: dict[str, Any] = {}
        self._tokens: dict[str, tuple[str, list[str]]] = {}
        self._kinds: dict[str, list[dict[str, Any]]] = {}
        self._fresh: dict[str, int] = {}

    def client(self, service: str) -> Any:
        if service not in self._clients:
            region = "us-east-1" if service == "pricing" else REGION
            self._clients[service] = Watched(self, service, self.unwatched(service, region))
        return self._clients[service]

    def refuse(self, operation: str, code: str, message: str = "no", times: int = 1) -> None:
        error = self._error(code, operation, message)
        self.refusals.setdefault(operation, []).extend([error] * times)

    def around(self, operation: str, arguments: dict[str, Any], do: Callable[[], Any]) -> Any:
        self.calls.append(operation)
        self.actions.add(operation)
        if waiting := self.refusals.get(operation):
            raise waiting.pop(0)
        lost = self.crash is not None and self.crash(operation, arguments)
        if lost and not self.crash_after:
            raise Crash
        answer = do()
        if lost:
            raise Crash
        return answer

    def done(self, operation: str, arguments: dict[str, Any], real: Callable[..., Any]) -> Any:
        """What EC2 would answer: moto's answer, where moto is right."""
        if operation == "run_instances" and not arguments.get("DryRun"):
            return self._run(arguments, real)
        answer = real(**arguments)
        if operation == "describe_network_interfaces":
            self._give_kinds(answer["NetworkInterfaces"])
        if operation == "describe_instances" and "Filters" in arguments:
            answer = self._hide(answer)
        return answer

    def _run(self, arguments: dict[str, Any], real: Callable[..., Any]) -> Any:
        """The same token gives the same instances, and never those of another request."""
        self.requests.append(arguments)
        token, text = arguments["ClientToken"], json.dumps(arguments, sort_keys=True)
        if token in self._tokens:
            before, ids = self._tokens[token]
            if before != text:
                raise self._error("IdempotentParameterMismatch", "run_instances")
            found = self.ec2.describe_instances(InstanceIds=ids)["Reservations"][0]
            if any(each["State"]["Name"] == "terminated" for each in found["Instances"]):
                raise self._error("IdempotentInstanceTerminated", "run_instances")
            return found
        answer = real(**arguments)
        ids = [each["InstanceId"] for each in answer["Instances"]]
        self._tokens[token] = text, ids
        for id in ids:
            self._kinds[id] = arguments["NetworkInterfaces"]
            self._fresh[id] = self.unseen
        return answer

    def _give_kinds(self, items: list[dict[str, Any]]) -> None:
        """moto forgets kinds and cards: it has as many interfaces as were asked for, in order."""
        for id, wanted in self._kinds.items():
            own = [each for each in items if each.get("Attachment", {}).get("InstanceId") == id]
            for item, asked in zip(own, wanted, strict=False):
                item["InterfaceType"] = asked["InterfaceType"]
                item["Attachment"]["NetworkCardIndex"] = asked["NetworkCardIndex"]
                item["Attachment"]["DeviceIndex"] = asked["DeviceIndex"]

    def _hide(self, answer: Any) -> Any:
        """What was just made is not found by its tags at once."""
        for reservation in answer["Reservations"]:
            kept = []
            for each in reservation["Instances"]:
                id = each["InstanceId"]
                if self._fresh.get(id, 0) > 0:
                    self._fresh[id] -= 1
                else:
                    kept.append(each)
            reservation["Instances"] = kept
        return answer

    @staticmethod
    def _error(code: str, operation: str, message: str = "no") -> ClientError:
        return ClientError({"Error": {"Code": code, "Message": message}}, operation)

    @functools.cached_property
    def ec2(self) -> Any:
        """EC2 without anybody watching."""
        return self.unwatched("ec2", REGION)

    @staticmethod
    @functools.cache
    def unwatched(service: str, region: str) -> Any:
        """One for all tests: it takes long to make."""
        return boto3.client(service, region_name=region)  # type: ignore[call-overload]

    def running(self) -> list[dict[str, Any]]:
        running = [{"Name": "instance-state-name", "Values": ["running"]}]
        found = self.ec2.describe_instances(Filters=running)["Reservations"]
        return [each for group in found for each in group["Instances"]]

    def leave_behind(self) -> None:
        """An interface and a volume of pdctl's that outlived their instance."""
        tags = [{"Key": DEPLOYMENT_TAG, "Value": NAME}, {"Key": MADE_TAG, "Value": "old"}]
        zone, subnet = next(iter(self.subnets.items()))
        self.ec2.create_volume(
            AvailabilityZone=zone,
            Size=1,
            TagSpecifications=[{"ResourceType": "volume", "Tags": tags}],
        )
        self.ec2.create_network_interface(
            SubnetId=subnet, TagSpecifications=[{"ResourceType": "network-interface", "Tags": tags}]
        )

    def clear(self) -> None:
        """End what a test left, as the one that failed did."""
        if ids := [each["InstanceId"] for each in self.running()]:
            self.ec2.terminate_instances(InstanceIds=ids)
        # As EC2 does after an hour; else each test is slower than the one before.
        ec2_backends[DEFAULT_ACCOUNT_ID][REGION].reservations.clear()
        for each in self.ec2.describe_addresses()["Addresses"]:
            self.ec2.release_address(AllocationId=each["AllocationId"])
        for each in self.ec2.describe_security_groups()["SecurityGroups"]:
            if each["GroupName"] != "default":
                self.ec2.delete_security_group(GroupId=each["GroupId"])
        for each in self.ec2.describe_key_pairs()["KeyPairs"]:
            self.ec2.delete_key_pair(KeyName=each["KeyName"])

    def left(self) -> list[str]:
        """Everything there is that somebody made in a test."""
        groups = self.ec2.describe_security_groups()["SecurityGroups"]
        return [
            *(each["InstanceId"] for each in self.running()),
            *(each["AllocationId"] for each in self.ec2.describe_addresses()["Addresses"]),
            *(each["GroupId"] for each in groups if each["GroupName"] != "default"),
            *(each["KeyPairId"] for each in self.ec2.describe_key_pairs()["KeyPairs"]),
            *(each["VolumeId"] for each in self.ec2.describe_volumes()["Volumes"]),
        ]


class Watched:
    """A client whose calls a region watches."""

    def __init__(self, region: Region, service: str, real: Any) -> None:
        self._region, self._service, self._real = region, service, real

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if name in ("can_paginate", "meta", "exceptions"):
            return real
        if name == "get_paginator":
            return lambda operation: Pages(self._region, operation, real(operation))
        region = self._region
        return lambda **arguments: region.around(
            name, arguments, lambda: region.done(name, arguments, real)
        )


class Pages:
    """A paginator that counts as one call."""

    def __init__(self, region: Region, operation: str, real: Any) -> None:
        self._region, self._operation, self._real = region, operation, real

    def paginate(self, **arguments: Any) -> Any:
        region, name = self._region, self._operation

        def real(**given: Any) -> Any:
            return self._real.paginate(**given).build_full_result()

        return [region.around(name, arguments, lambda: region.done(name, arguments, real))]


@contextmanager
def moto_network() -> Iterator[tuple[dict[str, str], str, str]]:
    """An account with a default VPC that has a way out, and an image: what a `Region` takes."""
    with mock_aws():
        ec2 = boto3.client("ec2", region_name=REGION)
        vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
        yield network(ec2, vpc)


@contextmanager
def moto_server(*addresses: str) -> Iterator[str]:
    """moto as a server of its own, at this URL.

    Args:
        addresses: of hosts that really exist, for the first instances.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.ec2.server", str(port), *addresses],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def network(ec2: Any, vpc: str) -> tuple[dict[str, str], str, str]:
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    filters = [{"Name": "vpc-id", "Values": [vpc]}]
    table = ec2.describe_route_tables(Filters=filters)["RouteTables"][0]["RouteTableId"]
    ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
    found = ec2.describe_subnets(Filters=filters)["Subnets"]
    subnets = {each["AvailabilityZone"]: each["SubnetId"] for each in found}
    return subnets, vpc, IMAGE


def document(image: str, **target: Any) -> dict[str, Any]:
    """The p5en example, as far as moto can follow: on demand, with an image that it has."""
    found: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    found["name"] = NAME
    found["target"] |= {"image": image, "capacity": {"kind": "on-demand", "max_hours": 8}}
    del found["target"]["key_name"]
    found["target"] |= target
    return found


def write(folder: Path, content: dict[str, Any]) -> Path:
    file = folder / "pd.yaml"
    (folder / "api-keys.txt").write_text("sk-1\n")
    file.write_text(json.dumps(content))
    return file


def config_of(folder: Path, content: dict[str, Any]) -> Config:
    return load_checked(write(folder, content)).config


def quick_clock() -> Clock:
    """A clock that sleeps no time at all, though it says it did."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    return Clock(now=lambda: 1_795_000_000.0 + now[0], monotonic=lambda: now[0], sleep=sleep)
