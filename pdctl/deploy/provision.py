"""Making the hosts of a deployment on EC2, such that a crash anywhere loses nothing.

Everything is tagged in the very request that makes it, requests carry a client token, and the
record is written before the first one and after each. Run again, it finds what there is, by the
record or by the tags alone, and makes only what is missing.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pdctl.base.awserrors import AwsError
from pdctl.base.awsfacts import MADE_TAG, PROCESS_TAG, AwsFacts
from pdctl.base.errors import BugError, PdctlError, TemporaryError, UsageError
from pdctl.base.events import Listener, Note, StepDone, StepFailed, StepStarted, ignore
from pdctl.base.exits import ExitCode
from pdctl.config.model import Config
from pdctl.deploy import audit
from pdctl.deploy.ec2things import (
    ENDED,
    Clock,
    Thing,
    made_instances,
    made_things,
    settled,
    tags_in,
    until,
)
from pdctl.deploy.interrupt import Interrupts
from pdctl.deploy.release import end_instances
from pdctl.plan.ec2 import BLOCK_MARGIN_S, CloudPlan, Launch, PlannedHost, ZoneChoice
from pdctl.plan.ec2request import (
    client_token,
    group_name,
    group_request,
    inward_rules,
    outward_rules,
    run_request,
    tag_specifications,
    tags_of,
    wrong_request,
)
from pdctl.render.user_data import user_data
from pdctl.state.cloud import KEY_FILE, KNOWN_HOSTS, Attempt, Cloud, CloudHost, CloudStore
from pdctl.state.store import write_private
from pdctl.targets.ec2 import Ec2
from pdctl.targets.ssh.newkey import new_key, public_of

RUN_LIMIT_S = 900.0


@dataclass(frozen=True)
class Order:
    """What is to be made.

    Attributes:
        config: without problems.
        plan: of it, without refusals.
        facts: that the plan was made with.
    """

    config: Config
    plan: CloudPlan
    facts: AwsFacts


def provision(
    room: Ec2,
    store: CloudStore,
    order: Order,
    *,
    clock: Clock,
    listen: Listener = ignore,
    on_launch: Callable[[], None] = lambda: None,
) -> Cloud:
    """Make what is missing; gives the record.

    Args:
        on_launch: called when instances were made.

    Raises:
        AwsError: EC2 refused something; the record has what was made before.
        TemporaryError: no zone has room, or a limit passed.
        UsageError: the record is of another region, or `down` was begun.
    """
    with Interrupts() as interrupts:
        making = _Making(room, store, order, clock, listen, on_launch, interrupts)
        try:
            return making.apply()
        except (PdctlError, KeyboardInterrupt):
            making.tell_what_runs()
            raise


def begin(
    room: Ec2, store: CloudStore, order: Order, *, clock: Clock, listen: Listener = ignore
) -> Cloud:
    """The record that there is, or one from the tags, or a new one.

    Raises:
        UsageError: it is of another region, or `down` was begun.
    """
    target = order.plan.target
    cloud = store.load()
    if cloud is None:
        found = made_things(room, store.name)
        runs = sorted({each.made_by for each in found})
        if found:
            listen(
                Note(
                    f"{len(found)} things on EC2 carry the tags of `{store.name}`, and there is no "
                    "record of them here; this goes on with them",
                    warning=True,
                )
            )
        return Cloud(
            name=store.name,
            region=target.region,
            profile=target.profile,
            run=runs[0] if runs else secrets.token_hex(8),
            created_at=clock.now(),
            # Without the record nobody knows which tokens were used.
            turn=int(clock.now()) if runs else 0,
        )
    if error := conflict(cloud, target.region):
        raise error
    return cloud


def conflict(cloud: Cloud, region: str) -> UsageError | None:
    """Why an `up` in a region may not go on with what is recorded; None when it may."""
    if cloud.region != region:
        return UsageError(
            f"the hosts of `{cloud.name}` are in {cloud.region}, and the file says {region}",
            where="key `target.region`",
            hints=["`pdctl down` first, with the region as it was"],
        )
    if cloud.phase == "ending":
        return UsageError(
            f"`pdctl down` of `{cloud.name}` was begun and did not end",
            hints=["run `pdctl down` again, then `pdctl up`"],
        )
    return None


class _Making:
    def __init__(
        self,
        room: Ec2,
        store: CloudStore,
        order: Order,
        clock: Clock,
        listen: Listener,
        on_launch: Callable[[], None],
        interrupts: Interrupts,
    ) -> None:
        self._room, self._store, self._clock, self._listen = room, store, clock, listen
        self._on_launch, self._interrupts = on_launch, interrupts
        self._under_way = ""
        self._config, self._plan, self._facts = order.config, order.plan, order.facts
        self._target = order.plan.target
        self._cloud = begin(room, store, order, clock=clock, listen=listen)

    def apply(self) -> Cloud:
        plan, capacity = self._plan, self._target.capacity
        self._save(
            replace(
                self._cloud,
                phase="making",
                hourly_usd=plan.cost.hourly_usd,
                max_hours=capacity.max_hours,
                reservation=capacity.reservation_id,
                ends_at=plan.ends_at,
            )
        )
        self._adopt()
        if plan.launches:
            with self._step("group", "see to the security group"):
                self._group()
            with self._step("key-pair", "see to the key pair"):
                self._key()
            with self._step("launch", "start the instances"):
                self._hosts()
            with self._step("running", "wait until the instances run"):
                self._wait_running()
            if self._target.network.access == "elastic-ip":
                with self._step("addresses", "give the hosts elastic IP addresses"):
                    self._addresses()
            self._look_at_interfaces()
        self._save(replace(self._cloud, phase="ready"))
        return self._cloud

    def tell_what_runs(self) -> None:
        """After a failure: never leave what costs unsaid."""
        made = self._cloud.made
        if made:
            hourly = self._cloud.hourly_usd
            cost = f", about ${hourly:.2f} an hour" if hourly else ""
            names = ", ".join(f"{each.name} {each.id}" for each in made)
            self._listen(Note(f"on EC2 there {_are(made)} now: {names}{cost}", warning=True))
        if self._under_way:
            self._listen(
                Note(
                    f"a request for {self._under_way} was under way, and may have been done: "
                    "`pdctl up` goes on with what came of it, `pdctl down` ends it",
                    warning=True,
                )
            )

    # --- what exists already ----------------------------------------------------------------

    def _adopt(self) -> None:
        cloud = self._cloud
        for each in self._plan.adopted:
            cloud = cloud.with_host(
                CloudHost(
                    name=each.name,
                    role=each.role or "prefill",
                    instance_type=each.instance_type,
                    id=each.id,
                    made=False,
                    private_ip=each.private_ip,
                    public_ip=each.public_ip,
                    launched_at=each.launched_at,
                )
            )
            cloud = replace(cloud, zone=each.zone or cloud.zone)
        self._save(cloud)

    # --- security group and key pair --------------------------------------------------------

    def _group(self) -> None:
        if self._plan.group is not None:
            self._save(replace(self._cloud, group=self._plan.group, made_group=False))
            return
        group = self._own_group() or self._make_group()
        self._save(replace(self._cloud, group=group, made_group=True))
        self._allow(group)

    def _own_group(self) -> str | None:
        found = self._room.all(
            "describe_security_groups",
            "SecurityGroups",
            Filters=[
                {"Name": "group-name", "Values": [group_name(self._plan.name)]},
                {"Name": "vpc-id", "Values": [self._plan.vpc or ""]},
            ],
        )
        for each in found:
            if MADE_TAG not in tags_in(each):
                raise UsageError(
                    f"there is a security group `{each.get('GroupName')}` that pdctl did not make",
                    where=str(each.get("GroupId")),
                    hints=["delete it, or name it in `network.security_group` to use it"],
                )
        return str(found[0]["GroupId"]) if found else None

    def _make_group(self) -> str:
        request = group_request(self._plan, self._cloud.run)
        group = str(self._room.ask("create_security_group", **request)["GroupId"])
        self._audit(f"create security group {group}")
        return group

    def _allow(self, group: str) -> None:
        """Rule by rule: those that are there already are no error."""
        inward = inward_rules(self._plan, group, self._config.router.port)
        for rule in inward:
            self._rule("authorize_security_group_ingress", group, rule)
        for rule in outward_rules(group):
            self._rule("authorize_security_group_egress", group, rule)

    def _rule(self, operation: str, group: str, rule: dict[str, Any]) -> None:
        try:
            settled(
                self._clock,
                lambda: self._room.ask(operation, GroupId=group, IpPermissions=[rule]),
            )
        except AwsError as error:
            if error.code != "InvalidPermission.Duplicate":
                raise

    def _key(self) -> None:
        if self._target.key_name is not None:
            self._save(replace(self._cloud, key_name=self._target.key_name, made_key=False))
            return
        if self._cloud.made_key and own_key_file(self._store).exists():
            return
        public = self._public_key()
        name = f"pdctl-{self._plan.name}-{hashlib.sha256(public.encode()).hexdigest()[:10]}"
        try:
            self._room.ask(
                "import_key_pair",
                KeyName=name,
                PublicKeyMaterial=public.encode(),
                TagSpecifications=tag_specifications(
                    ("key-pair",), tags_of(self._plan, self._cloud.run)
                ),
            )
            self._audit(f"import key pair {name}")
        except AwsError as error:
            if error.code != "InvalidKeyPair.Duplicate":  # its name is that of its content
                raise
        self._save(replace(self._cloud, key_name=name, made_key=True))

    def _public_key(self) -> str:
        """Of the key that the file names, else of one that is made here and stays here."""
        if self._target.access.key_file is not None:
            return public_of(self._target.access.key_file)
        path = own_key_file(self._store)
        if not path.exists():
            private, public = new_key(f"pdctl {self._plan.name}")
            write_private(path.with_name(f"{path.name}.pub"), public)
            write_private(path, private)
        return public_of(path)

    # --- instances --------------------------------------------------------------------------

    def _hosts(self) -> None:
        found = self._existing()
        self._name(found)
        engines = [each for each in self._plan.launches if each.engines]
        if missing := self._missing(engines):
            self._in_some_zone(missing)
        if missing := self._missing([e for e in self._plan.launches if not e.engines]):
            zone = self._zones()[0]
            for launch in missing:
                self._launch(launch, zone)

    def _existing(self) -> list[Thing]:
        found = [e for e in made_instances(self._room, self._store.name) if e.state not in ENDED]
        stopped = [each for each in found if each.state in ("stopped", "stopping")]
        if stopped:
            ids = " ".join(each.id for each in stopped)
            raise UsageError(
                f"{', '.join(map(str, stopped))}: stopped by somebody",
                where=self._room.region,
                hints=[f"aws ec2 start-instances --instance-ids {ids}", "or `pdctl down`"],
            )
        live = {each.id for each in found}
        gone = [each for each in self._cloud.made if each.id not in live and self._is_gone(each.id)]
        for each in gone:
            self._listen(Note(f"{each.name} ({each.id}) has ended; another one is started", True))
        if gone:
            names = {each.name for each in gone}
            hosts = {n: h for n, h in self._cloud.hosts.items() if n not in names}
            # What was ended must not come back by its old client token.
            turn = self._cloud.turn + 1
            self._save(replace(self._cloud, hosts=hosts, turn=turn))
        return found

    def _is_gone(self, id: str) -> bool:
        """Not found by its tag: it ended, or is so new that not all of EC2 knows it."""
        state = self._states([id]).get(id)
        return state is None or state in ENDED

    def _states(self, ids: Sequence[str]) -> dict[str, str]:
        return {
            str(item["InstanceId"]): str((item.get("State") or {}).get("Name"))
            for item in self._described(ids)
        }

    def _described(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        found = settled(
            self._clock,
            lambda: self._room.all("describe_instances", "Reservations", InstanceIds=list(ids)),
        )
        return [item for group in found for item in group.get("Instances") or ()]

    def _name(self, found: Sequence[Thing]) -> None:
        """Which instance is which host: those of one request are alike until they are named."""
        for launch in self._plan.launches:
            things = [each for each in found if each.launch == launch.id]
            names = {each.id: name for name, each in self._cloud.hosts.items()}
            named = {h: t for t in things if (h := t.host or names.get(t.id, ""))}
            for each in (*named.values(), *(t for t in things if t not in named.values())):
                host = self._host_for(launch, each, named)
                if host is None:
                    self._listen(
                        Note(f"{each} is one more than is needed; `pdctl down` ends it", True)
                    )
                    continue
                named[host.name] = each
                self._record(host, each)
                self._tag(host, each)

    def _host_for(
        self, launch: Launch, thing: Thing, named: dict[str, Thing]
    ) -> PlannedHost | None:
        recorded = (each.name for each in self._cloud.made if each.id == thing.id)
        if name := thing.host or next(recorded, None):
            return next((each for each in launch.hosts if each.name == name), None)
        return next((each for each in launch.hosts if each.name not in named), None)

    def _record(self, host: PlannedHost, thing: Thing) -> None:
        """Before the name: a crash in between leaves what is found again."""
        old = self._cloud.hosts.get(host.name)
        if old is None or old.id != thing.id:
            made = CloudHost(
                name=host.name, role=host.role, instance_type=host.instance_type, id=thing.id
            )
            zone = (thing.raw.get("Placement") or {}).get("AvailabilityZone")
            cloud = replace(
                self._cloud,
                zone=zone or self._cloud.zone,
                subnet=thing.raw.get("SubnetId") or self._cloud.subnet,
            )
            self._save(cloud.with_host(made))
            # Another machine at an address that was used before has another key.
            (self._store.directory / KNOWN_HOSTS).unlink(missing_ok=True)

    def _tag(self, host: PlannedHost, thing: Thing) -> None:
        if not thing.host:
            tags = [
                {"Key": PROCESS_TAG, "Value": host.name},
                {"Key": "Name", "Value": f"pdctl {self._plan.name} {host.name}"},
            ]
            settled(
                self._clock,
                lambda: self._room.ask("create_tags", Resources=[thing.id], Tags=tags),
            )

    def _missing(self, launches: Sequence[Launch]) -> list[Launch]:
        """What is still to be started."""
        found = []
        for launch in launches:
            hosts = tuple(each for each in launch.hosts if each.name not in self._cloud.hosts)
            if hosts:
                found.append(replace(launch, hosts=hosts))
        return found

    def _zones(self) -> list[ZoneChoice]:
        """Where one host is, all have to be."""
        zone = self._cloud.zone
        if zone is None:
            return list(self._plan.zones)
        subnet = self._cloud.subnet
        known = next((each.subnet for each in self._plan.zones if each.zone == zone), None)
        return [ZoneChoice(zone, subnet or known)]

    def _in_some_zone(self, launches: Sequence[Launch]) -> None:
        errors: list[AwsError] = []
        for choice in self._zones():
            try:
                for launch in launches:
                    self._launch(launch, choice)
                return
            except AwsError as error:
                if not error.elsewhere:
                    raise
                errors.append(error)
                self._gave_up(choice, error, launches)
        raise self._no_room(errors)

    def _gave_up(self, choice: ZoneChoice, error: AwsError, launches: Sequence[Launch]) -> None:
        """A zone has no room, for one of the requests at least."""
        said = error.detail[0] if error.detail else error.message
        self._listen(Note(f"{choice.zone}: {error.code}", warning=True))
        attempt = Attempt(choice.zone, error.code, said)
        self._save(
            replace(
                self._cloud,
                attempts=(*self._cloud.attempts, attempt),
                turn=self._cloud.turn + 1,
            )
        )
        wanted = {host.name for launch in launches for host in launch.hosts}
        part = [each for each in self._cloud.made if each.name in wanted]
        if not part:
            if not self._cloud.hosts:
                self._save(replace(self._cloud, zone=None, subnet=None))
            return
        names = ", ".join(f"{each.name} ({each.id})" for each in part)
        if self._target.capacity.on_failure == "keep":
            raise TemporaryError(
                f"only {names} could be started in {choice.zone}; kept, as "
                "`capacity.on_failure: keep` says, and costing",
                where=self._room.region,
                detail=[f"{choice.zone}: {said}"],
                hints=["run `pdctl up` again for the rest", "`pdctl down` ends what there is"],
            ) from error
        self._listen(Note(f"only {names} could be started in {choice.zone}; ended again", True))
        end_instances(
            self._room,
            [each.id for each in part],
            clock=self._clock,
            listen=self._listen,
            deployment=self._store.name,
        )
        hosts = {n: h for n, h in self._cloud.hosts.items() if n not in wanted}
        left = replace(self._cloud, hosts=hosts)
        self._save(left if hosts else replace(left, zone=None, subnet=None))

    def _no_room(self, errors: Sequence[AwsError]) -> PdctlError:
        hints = dict.fromkeys(hint for error in errors for hint in error.hints)
        return TemporaryError(
            "no zone has the hosts that are wanted; nothing runs because of it",
            where=self._room.region,
            detail=[
                f"{each.zone}: {each.code}: {each.message}"
                for each in self._cloud.attempts[-len(errors) :]
            ],
            hints=[*hints],
        )

    def _launch(self, launch: Launch, choice: ZoneChoice) -> None:
        if choice.subnet is None:
            raise UsageError(
                f"there is no subnet for {choice.zone}",
                where="key `target.network.subnet`",
                hints=["name one"],
            )
        request = self.request(launch, choice)
        wrong = list(wrong_request(request, self._facts.type_of(launch.instance_type)))
        if wrong:
            raise BugError("pdctl made a request that EC2 would refuse", detail=wrong)
        names = ", ".join(each.name for each in launch.hosts)
        self._audit(f"run instances {names} in {choice.zone} token={request['ClientToken']}")
        with self._interrupts.held():  # what costs is written down before anything else happens
            things = self._run(launch, request)
            taken = {each.id for each in self._cloud.hosts.values()}
            free = [h for h in launch.hosts if h.name not in self._cloud.hosts]
            fresh = list(zip(free, (t for t in things if t.id not in taken), strict=False))
            for host, thing in fresh:
                self._record(host, thing)
            self._under_way = ""
        self._audit(f"made {', '.join(each.id for each in things)}")
        for host, thing in fresh:
            self._tag(host, thing)

    def _run(self, launch: Launch, request: dict[str, Any]) -> list[Thing]:
        """RunInstances. When its answer is lost, nobody knows whether it was done."""
        self._under_way = ", ".join(each.name for each in launch.hosts)
        try:
            answer = self._room.ask("run_instances", **request)
        except AwsError as error:
            if error.exit_code != ExitCode.UNREACHABLE:
                self._under_way = ""
            raise
        self._on_launch()
        return [
            Thing(
                "instance",
                str(item["InstanceId"]),
                self._store.name,
                host=tags_in(item).get(PROCESS_TAG, ""),
                launch=launch.id,
                raw=item,
            )
            for item in sorted(answer["Instances"], key=lambda i: i.get("AmiLaunchIndex", 0))
        ]

    def request(self, launch: Launch, choice: ZoneChoice) -> dict[str, Any]:
        """RunInstances of one launch."""
        assert choice.subnet is not None
        end = self._plan.ends_at
        return run_request(
            self._plan,
            launch,
            zone=choice.zone,
            subnet=choice.subnet,
            group=self._cloud.group,
            key_name=self._cloud.key_name,
            token=client_token(self._cloud.run, launch, choice.zone, self._cloud.turn),
            run=self._cloud.run,
            user_data=user_data(
                self._plan.name,
                self._target,
                ends_at=None if end is None else end - BLOCK_MARGIN_S,
            ),
        )

    # --- until they run ---------------------------------------------------------------------

    def _wait_running(self) -> None:
        ids = [each.id for each in self._cloud.made]

        def look() -> list[dict[str, Any]] | None:
            items = self._described(ids)
            for item in items:
                if (item.get("State") or {}).get("Name") in ENDED:
                    raise _ended_at_once(item)
            running = [i for i in items if (i.get("State") or {}).get("Name") == "running"]
            return running if len(running) == len(ids) else None

        items = until(
            self._clock,
            look,
            step="running",
            what=f"{len(ids)} instances to run",
            limit=RUN_LIMIT_S,
            listen=self._listen,
        )
        by_id = {str(item["InstanceId"]): item for item in items}
        cloud = self._cloud
        for host in cloud.made:
            item = by_id[host.id]
            launched = item.get("LaunchTime")
            cloud = cloud.with_host(
                replace(
                    host,
                    private_ip=item.get("PrivateIpAddress"),
                    public_ip=host.public_ip or item.get("PublicIpAddress"),
                    interface=_first_interface(item),
                    launched_at=launched.timestamp() if launched else None,
                )
            )
        self._save(cloud)

    def _addresses(self) -> None:
        for host in self._cloud.made:
            found = self._address_of(host) or self._allocate(host)
            address = str(found["AllocationId"])
            self._save(
                self._cloud.with_host(
                    replace(host, address=address, public_ip=str(found["PublicIp"]))
                )
            )
            if found.get("NetworkInterfaceId") != host.interface:
                settled(
                    self._clock,
                    lambda a=address, h=host: self._room.ask(  # type: ignore[misc]
                        "associate_address",
                        AllocationId=a,
                        NetworkInterfaceId=h.interface,
                        # Ours, and still with a host of this name that has ended.
                        AllowReassociation=True,
                    ),
                )

    def _address_of(self, host: CloudHost) -> dict[str, Any] | None:
        found = self._room.all(
            "describe_addresses",
            "Addresses",
            Filters=[
                {"Name": f"tag:{MADE_TAG}", "Values": [self._cloud.run]},
                {"Name": f"tag:{PROCESS_TAG}", "Values": [host.name]},
            ],
        )
        return found[0] if found else None

    def _allocate(self, host: CloudHost) -> dict[str, Any]:
        tags = tags_of(self._plan, self._cloud.run, **{PROCESS_TAG: host.name})
        found = self._room.ask(
            "allocate_address",
            Domain="vpc",
            TagSpecifications=tag_specifications(("elastic-ip",), tags),
        )
        self._audit(f"allocate {found.get('AllocationId')} for {host.name}")
        return found

    def _look_at_interfaces(self) -> None:
        """What EC2 made of the request; `doctor` judges it, this only says it early."""
        if not self._plan.over_efa:
            return
        wanted = {
            h.name: sum(k != "interface" for _, _, k in h.interfaces) for h in self._plan.hosts
        }
        for host in self._cloud.made:
            if not wanted.get(host.name):
                continue
            try:
                found = self._room.all(
                    "describe_network_interfaces",
                    "NetworkInterfaces",
                    Filters=[{"Name": "attachment.instance-id", "Values": [host.id]}],
                )
            except AwsError as error:
                self._listen(Note(f"interfaces were not looked at: {error.message}", True))
                return
            efa = sum(str(each.get("InterfaceType")).startswith("efa") for each in found)
            if efa != wanted[host.name]:
                self._listen(
                    Note(
                        f"{host.name} has {efa} EFA interfaces, expected {wanted[host.name]}; "
                        "`pdctl doctor` says more",
                        warning=True,
                    )
                )

    # --- small things -----------------------------------------------------------------------

    @contextmanager
    def _step(self, id: str, what: str) -> Iterator[None]:
        began = self._clock.monotonic()
        self._listen(StepStarted(id, what))
        try:
            yield
        except PdctlError as error:
            seconds = self._clock.monotonic() - began
            self._listen(StepFailed(id, what, seconds, error.message))
            raise
        self._listen(StepDone(id, what, self._clock.monotonic() - began))

    def _save(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._store.save(cloud)

    def _audit(self, change: str) -> None:
        audit.note(self._store.name, change)


def own_key_file(store: CloudStore) -> Path:
    """The private key that pdctl makes where no key is named."""
    return store.directory / KEY_FILE


def _first_interface(item: dict[str, Any]) -> str | None:
    for each in item.get("NetworkInterfaces") or ():
        attachment = each.get("Attachment") or {}
        if not attachment.get("DeviceIndex") and not attachment.get("NetworkCardIndex"):
            return str(each.get("NetworkInterfaceId"))
    return None


def _ended_at_once(item: dict[str, Any]) -> TemporaryError:
    reason = item.get("StateReason") or {}
    return TemporaryError(
        f"instance {item.get('InstanceId')} ended while it was starting",
        detail=[f"EC2 says: {reason.get('Code', '')}: {reason.get('Message', 'nothing')}"],
        hints=["run `pdctl up` again: it starts another one"],
    )


def _are(things: Sequence[object]) -> str:
    return "is" if len(things) == 1 else "are"
