"""What pdctl remembers of the hosts it made or adopted on EC2, in a file of its own.

It is written before the first call that makes something and after every thing that was made, and
it outlives the processes' state: it goes last, when nothing is left that costs money.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from pdctl.base import paths
from pdctl.base.process import RoleName
from pdctl.state.store import DamagedStateError, explained, write_private

FILE_NAME = "cloud.json"
KEY_FILE = "ec2-key"
KNOWN_HOSTS = "known_hosts"

CloudPhase = Literal["making", "ready", "ending"]
"""`making` from the first request of `up` until all hosts run; `ending` from `down` on."""


@dataclass(frozen=True)
class CloudHost:
    """One instance.

    Attributes:
        name: of the host, such as `prefill-0`.
        made: by pdctl; False for one that was adopted, which is never ended.
        interface: id of its first network interface.
        address: id of the elastic IP that was made for it.
    """

    name: str
    role: RoleName
    instance_type: str
    id: str
    made: bool = True
    interface: str | None = None
    private_ip: str | None = None
    public_ip: str | None = None
    address: str | None = None
    launched_at: float | None = None


@dataclass(frozen=True)
class Attempt:
    """A zone that was tried and what EC2 said."""

    zone: str
    code: str
    message: str


@dataclass(frozen=True)
class Cloud:
    """Everything that `up` and `down` must know of a deployment's hosts.

    Attributes:
        run: id of this making; part of every client token and tag.
        turn: counts the zones that were given up, so that no client token is used twice.
        zone, subnet: where the hosts are, once one of them is.
        group, key_name: security group and key pair in use.
        made_group, made_key: whether pdctl made them.
        attempts: zones that had no capacity.
        hourly_usd: cost of the instances that pdctl made; None when no price is known.
        max_hours: after which hosts end by themselves.
        ends_at: of the capacity block or reservation, seconds since the epoch.
    """

    name: str
    region: str
    run: str
    created_at: float
    profile: str | None = None
    phase: CloudPhase = "making"
    turn: int = 0
    zone: str | None = None
    subnet: str | None = None
    group: str | None = None
    key_name: str | None = None
    made_group: bool = False
    made_key: bool = False
    hosts: Mapping[str, CloudHost] = field(default_factory=dict)
    attempts: tuple[Attempt, ...] = ()
    hourly_usd: float | None = None
    max_hours: float | None = None
    reservation: str | None = None
    ends_at: float | None = None

    def with_host(self, host: CloudHost) -> "Cloud":
        """The same with one host added or replaced."""
        return replace(self, hosts={**self.hosts, host.name: host})

    @property
    def made(self) -> tuple[CloudHost, ...]:
        """The hosts that pdctl made."""
        return tuple(each for each in self.hosts.values() if each.made)


_ADAPTER = TypeAdapter(Cloud)


class CloudStore:
    """The file of one deployment's hosts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.directory = paths.deployment_dir(name)
        self.path = self.directory / FILE_NAME

    def load(self) -> Cloud | None:
        """What was saved last; None when there is nothing.

        Raises:
            DamagedStateError: the file is there and cannot be used.
            PermissionDeniedError: it may not be read.
        """
        # os.path's answer is no, not an error, for a name that no folder can have.
        if not os.path.exists(self.path):
            return None
        with explained(self.path):
            content = self.path.read_bytes()
        try:
            return _ADAPTER.validate_json(content)
        except ValidationError as error:
            raise DamagedStateError(
                f"the record of the hosts of `{self.name}` is damaged",
                where=str(self.path),
                expected="what pdctl wrote; it was left as it is",
                hints=[
                    "the hosts are found by their tags without it: "
                    f"`pdctl down --name {self.name} --region REGION --forget-damaged-state` "
                    "ends them",
                    "to keep them, move the file away and run `pdctl up`",
                ],
            ) from error

    def save(self, cloud: Cloud) -> None:
        """Replace the file, whole or not at all."""
        content = json.dumps(_ADAPTER.dump_python(cloud, mode="json"), indent=1).encode()
        write_private(self.path, content + b"\n")

    def remove(self) -> None:
        """Forget the hosts, their keys and the key pair's private half."""
        for name in (FILE_NAME, KEY_FILE, f"{KEY_FILE}.pub", KNOWN_HOSTS):
            with explained(self.path):
                (self.directory / name).unlink(missing_ok=True)
