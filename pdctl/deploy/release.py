"""Ending what pdctl made on EC2, and only that, and proving by tag that nothing is left."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pdctl.base.awserrors import AwsError
from pdctl.base.awsfacts import MADE_TAG
from pdctl.base.errors import BadAnswerError, PdctlError
from pdctl.base.events import Listener, Note, StepDone, StepFailed, StepStarted, ignore
from pdctl.deploy import audit
from pdctl.deploy.ec2things import (
    ENDED,
    OTHERS,
    Clock,
    Thing,
    made,
    made_instances,
    made_things,
    tags_in,
    until,
)
from pdctl.state.cloud import Cloud, CloudStore
from pdctl.targets.ec2 import Ec2

T = TypeVar("T")

END_LIMIT_S = 1200.0
"""A p5en takes minutes to end; its slot in a reservation is free only then."""
_DELETE_LIMIT_S = 300.0
_DELETE = {
    "address": ("release_address", "AllocationId", "release the elastic IPs"),
    "interface": ("delete_network_interface", "NetworkInterfaceId", "delete interfaces"),
    "volume": ("delete_volume", "VolumeId", "delete volumes"),
    "group": ("delete_security_group", "GroupId", "delete the security group"),
    "key-pair": ("delete_key_pair", "KeyName", "delete the key pair"),
}
_IN_USE = ("DependencyViolation", "InvalidIPAddress.InUse", "InvalidNetworkInterface.InUse")


@dataclass(frozen=True)
class Released:
    """What was ended and deleted, and what costs on, in sentences."""

    things: tuple[str, ...]
    still_bills: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """A part of `down --json`."""
        return {"released": list(self.things), "still_bills": list(self.still_bills)}


def release(
    room: Ec2,
    store: CloudStore,
    cloud: Cloud | None,
    *,
    clock: Clock,
    listen: Listener = ignore,
) -> Released:
    """End and delete everything that pdctl made for a deployment; the record goes last.

    Works without a record too: what pdctl made has its tags. Interrupted, it can be run again.

    Raises:
        AwsError: EC2 refused something.
        BadAnswerError: something is left; says what.
    """
    return _Release(room, store, cloud, clock, listen).apply()


def end_instances(
    room: Ec2, ids: Sequence[str], *, clock: Clock, listen: Listener, deployment: str
) -> None:
    """End instances that pdctl made, and wait until they have ended. Those that are gone are."""
    if not ids:
        return
    audit.note(deployment, f"terminate {' '.join(ids)}")
    _terminate(room, ids)

    def look() -> bool | None:
        left = [each for each in made_instances(room, deployment) if each.id in ids]
        return True if not left else None

    what = f"{', '.join(ids)} to end"
    until(clock, look, step="instances", what=what, limit=END_LIMIT_S, listen=listen)


def _terminate(room: Ec2, ids: Sequence[str]) -> None:
    """All at once; one that is gone already, or protected, must not keep the others alive."""
    try:
        room.ask("terminate_instances", InstanceIds=list(ids))
    except AwsError as error:
        gone = error.code == "InvalidInstanceID.NotFound"
        if not gone and (error.code != "OperationNotPermitted" or len(ids) == 1):
            raise
        if len(ids) > 1:
            each_of(ids, lambda id: _terminate(room, [id]))


def each_of(things: Iterable[T], do: Callable[[T], None]) -> None:
    """Do it with all of them, whatever becomes of one.

    Raises:
        PdctlError: the first failure; the messages of others are its detail.
    """
    errors: list[PdctlError] = []
    for each in things:
        try:
            do(each)
        except PdctlError as error:
            errors.append(error)
    if errors:
        first, *others = errors
        first.detail = (*first.detail, *dict.fromkeys(other.message for other in others))
        raise first


class _Release:
    def __init__(
        self, room: Ec2, store: CloudStore, cloud: Cloud | None, clock: Clock, listen: Listener
    ) -> None:
        self._room, self._store, self._cloud = room, store, cloud
        self._clock, self._listen = clock, listen
        self._done: list[str] = []

    def apply(self) -> Released:
        if self._cloud is not None and self._cloud.phase != "ending":
            self._cloud = replace(self._cloud, phase="ending")
            self._store.save(self._cloud)
        # What costs most goes first, whatever else cannot be asked or deleted.
        self._step("instances", "end the instances", self._instances(), self._end)
        each_of(OTHERS, self._delete_all)
        self._prove()
        self._store.remove()
        audit.note(self._store.name, "down: nothing that pdctl made is left on EC2")
        return Released(tuple(self._done), tuple(still_bills(self._cloud)))

    def _instances(self) -> list[Thing]:
        """By tag, and by the record: what was made a moment ago may not be found by its tag."""
        found = made_instances(self._room, self._store.name)
        known = {each.id for each in found}
        recorded = [h.id for h in (self._cloud.made if self._cloud else ()) if h.id not in known]
        for id in recorded:
            found += self._recorded(id)
        return found

    def _recorded(self, id: str) -> Iterator[Thing]:
        try:
            answer = self._room.all("describe_instances", "Reservations", InstanceIds=[id])
        except AwsError as error:
            if error.code.startswith("InvalidInstanceID"):
                return
            raise
        for item in (each for group in answer for each in group.get("Instances") or ()):
            state = str((item.get("State") or {}).get("Name"))
            if state == "terminated":
                continue
            if MADE_TAG not in tags_in(item):
                self._listen(
                    Note(f"{id} does not carry pdctl's tag any more; it is left alone", True)
                )
                continue
            yield Thing("instance", id, self._store.name, state=state, raw=item)

    def _step(
        self,
        id: str,
        what: str,
        things: Sequence[Thing],
        do: Callable[[Sequence[Thing]], None],
    ) -> None:
        if not things:
            return
        began = self._clock.monotonic()
        self._listen(StepStarted(id, what))
        try:
            do(things)
        except PdctlError as error:
            seconds = self._clock.monotonic() - began
            self._listen(StepFailed(id, what, seconds, error.message))
            raise
        names = ", ".join(each.host or each.id for each in things)
        self._listen(StepDone(id, what, self._clock.monotonic() - began, names))
        self._done += [f"{each.kind} {each.id}" for each in things]

    def _end(self, things: Sequence[Thing]) -> None:
        for each in things:
            if each.state not in ENDED:
                self._listen(Note(f"ending {each}"))
        ids = [each.id for each in things]
        name = self._store.name
        end_instances(self._room, ids, clock=self._clock, listen=self._listen, deployment=name)

    def _delete_all(self, kind: str) -> None:
        """What goes with an instance goes by itself, but a moment later; the rest is deleted."""
        operation, key, words = _DELETE[kind]

        def delete(thing: Thing) -> None:
            id = thing.raw.get("KeyName") if key == "KeyName" else thing.id
            self._delete(operation, **{key: str(id)})

        found = made(self._room, self._store.name, kind)
        self._step(kind, words, found, lambda things: each_of(things, delete))

    def _delete(self, operation: str, **which: str) -> None:
        """What is gone is gone; what something still uses is tried again for a while."""
        audit.note(self._store.name, f"{operation} {' '.join(which.values())}")

        def look() -> bool | None:
            try:
                self._room.ask(operation, **which)
            except AwsError as error:
                if error.code.endswith("NotFound"):
                    return True
                if error.code in (*_IN_USE, "VolumeInUse", "InvalidParameterValue"):
                    return None
                raise
            return True

        what = f"{', '.join(which.values())} to be let go"
        until(
            self._clock, look, step=operation, what=what, limit=_DELETE_LIMIT_S, listen=self._listen
        )

    def _prove(self) -> None:
        def look() -> list[Thing] | None:
            left = made_things(self._room, self._store.name)
            return None if left else []

        try:
            until(self._clock, look, step="prove", what="nothing to be left", limit=60.0)
        except PdctlError as error:
            left = made_things(self._room, self._store.name)
            raise BadAnswerError(
                "something that pdctl made is still there, and may cost",
                where=self._room.region,
                detail=[str(each) for each in left],
                hints=["run `pdctl down` again", "`pdctl orphans` lists it"],
            ) from error


def still_bills(cloud: Cloud | None) -> Iterator[str]:
    """What costs on although the hosts are gone: nothing of it is pdctl's to end."""
    if cloud is None:
        return
    for host in cloud.hosts.values():
        if not host.made:
            yield f"instance {host.id} ({host.name}) was adopted, still runs, and costs"
    if cloud.reservation is not None:
        yield (
            f"the reservation {cloud.reservation} costs as long as it is there, used or not; "
            "a capacity block is paid for already"
        )
