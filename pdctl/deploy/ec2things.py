"""What of pdctl's there is in a region, by tag; and calls that wait for EC2 to come to terms."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pdctl.base.awserrors import THROTTLED, AwsError
from pdctl.base.awsfacts import DEPLOYMENT_TAG, LAUNCH_TAG, MADE_TAG, PROCESS_TAG
from pdctl.base.errors import TemporaryError
from pdctl.base.events import Listener, StepWaiting, ignore
from pdctl.plan.ec2request import own_filters
from pdctl.targets.ec2 import Ec2

T = TypeVar("T")
Item = Mapping[str, Any]

ENDED = ("terminated", "shutting-down")
_WORD_EVERY_S = 15.0
SETTLE_S = 60.0
"""So long what was just made may not be known everywhere (InvalidInstanceID.NotFound)."""


@dataclass(frozen=True)
class Clock:
    """Time, so that tests can have their own.

    Attributes:
        now: wall clock, seconds since the epoch.
        poll_s: between two looks.
    """

    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    poll_s: float = 5.0


@dataclass(frozen=True)
class Thing:
    """One thing of pdctl's in EC2.

    Attributes:
        kind: `instance`, `volume`, `interface`, `address`, `group` or `key-pair`.
        state: as EC2 has it; empty where such a thing has none.
        raw: EC2's own description.
    """

    kind: str
    id: str
    deployment: str
    host: str = ""
    launch: str = ""
    made_by: str = ""
    state: str = ""
    raw: Item = field(default_factory=dict, repr=False, compare=False)

    def __str__(self) -> str:
        more = " ".join(each for each in (self.host, self.state) if each)
        return f"{self.kind} {self.id}" + (f" ({more})" if more else "")


def made_things(room: Ec2, deployment: str | None = None) -> list[Thing]:
    """Everything that pdctl made and that is still there; of all deployments without a name.

    Raises:
        AwsError: EC2 was not willing to say.
    """
    return [
        *made_instances(room, deployment),
        *(t for k in OTHERS for t in made(room, deployment, k)),
    ]


def made_instances(room: Ec2, deployment: str | None) -> list[Thing]:
    """Instances that pdctl made and that have not ended; those that are just ending count."""
    found = room.all("describe_instances", "Reservations", Filters=own_filters(deployment))
    instances = (each for group in found for each in group.get("Instances") or ())
    things = [_thing("instance", "InstanceId", each) for each in instances]
    return [each for each in things if each.state != "terminated"]


OTHERS = {
    "address": ("describe_addresses", "Addresses", "AllocationId"),
    "interface": ("describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId"),
    "volume": ("describe_volumes", "Volumes", "VolumeId"),
    "group": ("describe_security_groups", "SecurityGroups", "GroupId"),
    "key-pair": ("describe_key_pairs", "KeyPairs", "KeyPairId"),
}
"""What there may be besides instances, in the order in which it can be deleted."""


def made(room: Ec2, deployment: str | None, kind: str) -> list[Thing]:
    """Everything of one of the kinds in `OTHERS`."""
    operation, key, id = OTHERS[kind]
    return [
        _thing(kind, id, item) for item in room.all(operation, key, Filters=own_filters(deployment))
    ]


def _thing(kind: str, id_key: str, item: Item) -> Thing:
    tags = tags_in(item)
    state = item.get("State") or item.get("Status") or ""
    return Thing(
        kind,
        str(item.get(id_key)),
        tags.get(DEPLOYMENT_TAG, ""),
        host=tags.get(PROCESS_TAG, ""),
        launch=tags.get(LAUNCH_TAG, ""),
        made_by=tags.get(MADE_TAG, ""),
        state=str(state.get("Name") if isinstance(state, Mapping) else state),
        raw=item,
    )


def tags_in(item: Item) -> dict[str, str]:
    """Tags of one thing."""
    return {str(tag.get("Key")): str(tag.get("Value")) for tag in item.get("Tags") or ()}


def until(
    clock: Clock,
    look: Callable[[], T | None],
    *,
    step: str,
    what: str,
    limit: float,
    listen: Listener = ignore,
) -> T:
    """Look again and again until there is an answer; being asked to slow down is no answer.

    Raises:
        TemporaryError: the limit passed.
    """
    began = clock.monotonic()
    told = 0.0
    while True:
        try:
            if (answer := look()) is not None:
                return answer
        except AwsError as error:
            if error.code not in THROTTLED:
                raise
        elapsed = clock.monotonic() - began
        if elapsed >= limit:
            raise TemporaryError(
                f"{what}: not within {limit:.0f} s",
                hints=["run the same command again: it goes on where it stopped"],
            )
        if elapsed - told >= _WORD_EVERY_S:
            told = elapsed
            listen(StepWaiting(step, what, elapsed, limit))
        clock.sleep(clock.poll_s)


def settled(clock: Clock, call: Callable[[], T], *, also: tuple[str, ...] = ()) -> T:
    """Make a call about something just made: EC2 may not know it everywhere yet.

    Args:
        also: more codes after which the same call may work a moment later.
    """
    began = clock.monotonic()
    while True:
        try:
            return call()
        except AwsError as error:
            late = error.code.endswith("NotFound") or error.code in also
            if not late or clock.monotonic() - began >= SETTLE_S:
                raise
        clock.sleep(min(clock.poll_s, 2.0))
