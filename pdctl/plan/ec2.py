"""Which hosts a configuration makes on EC2, where, and what they cost. Pure.

`plan.ec2rules` says whether EC2 would let them be, `plan.ec2request` what exactly is sent.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pdctl.base import prices
from pdctl.base.awsfacts import (
    QUOTAS,
    AwsCard,
    AwsFacts,
    AwsImage,
    AwsInstance,
    AwsReservation,
    AwsSubnet,
    AwsType,
)
from pdctl.base.efalayout import wanted_interfaces
from pdctl.base.instances import INSTANCE_TYPES
from pdctl.base.process import RoleName
from pdctl.config.model import Config, Ec2Role, Ec2Target
from pdctl.engine import choices
from pdctl.plan.model import Instance, Plan

Interface = tuple[int, int, str]
"""Card, device, kind."""

BLOCK_MARGIN_S = 45 * 60.0
"""EC2 begins to end the instances of a capacity block 30 minutes before its end; hosts shut down
15 minutes before that."""


_SHORT_MINUTES = 30
_LEAST_MINUTES = 6
"""A minute and the five that processes have to finish."""


@dataclass(frozen=True)
class PlannedHost:
    """A host that is to be made."""

    name: str
    role: RoleName
    instance_type: str
    interfaces: tuple[Interface, ...]


@dataclass(frozen=True)
class Launch:
    """Hosts of one request: EC2 makes all of them or none."""

    id: str
    instance_type: str
    hosts: tuple[PlannedHost, ...]

    @property
    def engines(self) -> bool:
        """Whether they run engines, which all have to be in one zone."""
        return self.hosts[0].role != "router"

    @property
    def interfaces(self) -> tuple[Interface, ...]:
        """Those of each host."""
        return self.hosts[0].interfaces


@dataclass(frozen=True)
class ZoneChoice:
    """A zone and the subnet that is used there; None when it is not known."""

    zone: str
    subnet: str | None


@dataclass(frozen=True)
class CostLine:
    """One thing that costs; None when its price is not known."""

    what: str
    hourly_usd: float | None


@dataclass(frozen=True)
class Cost:
    """What the hosts cost.

    Attributes:
        as_of: date of the prices, or `live`.
        guessed: types whose price is that of another region.
    """

    lines: tuple[CostLine, ...]
    as_of: str
    guessed: tuple[str, ...] = ()

    @property
    def hourly_usd(self) -> float | None:
        """All of it an hour; None when a price is missing."""
        known = [line.hourly_usd for line in self.lines if line.hourly_usd is not None]
        return round(sum(known), 4) if len(known) == len(self.lines) else None


@dataclass(frozen=True)
class CloudPlan:
    """Hosts of a deployment on EC2, as they would be made.

    Attributes:
        launches: requests in order, engines first; empty when all hosts are adopted.
        there: names of the hosts that pdctl made before and that still run.
        adopted: instances that exist and are used as they are.
        zones: in the order they are tried.
        group: the security group that is named; None when one is made.
        quota: its code, the vCPUs it allows, and the vCPUs that are needed; None when unknown.
        ends_at: of the reservation, seconds since the epoch.
    """

    name: str
    target: Ec2Target
    over_efa: bool
    launches: tuple[Launch, ...]
    adopted: tuple[AwsInstance, ...]
    zones: tuple[ZoneChoice, ...]
    vpc: str | None
    image: AwsImage | None
    group: str | None
    reservation: AwsReservation | None
    cost: Cost
    quota: tuple[str, float | None, int] | None = None
    there: frozenset[str] = frozenset()

    @property
    def missing(self) -> tuple[Launch, ...]:
        """The launches with the hosts that are not there."""
        found = []
        for launch in self.launches:
            hosts = tuple(host for host in launch.hosts if host.name not in self.there)
            if hosts:
                found.append(replace(launch, hosts=hosts))
        return tuple(found)

    @property
    def hosts(self) -> tuple[PlannedHost, ...]:
        """All that are made."""
        return tuple(host for launch in self.launches for host in launch.hosts)

    @property
    def ends_at(self) -> float | None:
        """When the capacity block takes the hosts away; None when it does not."""
        block = self.target.capacity.kind == "capacity-block"
        return self.reservation.ends_at if block and self.reservation else None


def plan_cloud(config: Config, facts: AwsFacts) -> CloudPlan:
    """What would be made, as far as facts are known."""
    target = config.target
    assert isinstance(target, Ec2Target)
    over_efa = facts.want.over_efa
    adopted = _adopted(target, facts)
    launches = tuple(_launches(target, facts, adopted, over_efa=over_efa))
    zones = tuple(_zones(target, facts, launches))
    vpc = _vpc_of(target, facts)
    return CloudPlan(
        name=config.name,
        target=target,
        over_efa=over_efa,
        launches=launches,
        adopted=adopted,
        zones=zones,
        vpc=vpc,
        image=facts.image,
        group=target.network.security_group,
        reservation=facts.reservation,
        cost=_cost(target, facts, launches),
        quota=_quota(target, facts, launches),
        there=frozenset(
            each.name for each in facts.instances or () if each.made_by and each.state in _LIVE
        ),
    )


_LIVE = ("pending", "running")


# --- hosts ---------------------------------------------------------------------------------------


def _adopted(target: Ec2Target, facts: AwsFacts) -> tuple[AwsInstance, ...]:
    """Given by id, or tagged as this deployment's by somebody else than pdctl."""
    ids = {id for each in target.instance_ids.values() for id in each}
    if ids:
        return tuple(each for each in facts.instances or () if each.id in ids)
    return tuple(each for each in facts.instances or () if each.role and not each.made_by)


def _launches(
    target: Ec2Target, facts: AwsFacts, adopted: tuple[AwsInstance, ...], *, over_efa: bool
) -> Iterator[Launch]:
    there = {each.name for each in adopted}
    engines: dict[str, list[PlannedHost]] = {}
    for role in choices.ENGINE_ROLES:
        for host in _of_role(target, facts, role, over_efa=over_efa):
            if host.name not in there:
                engines.setdefault(host.instance_type, []).append(host)
    for kind, hosts in engines.items():
        yield Launch(f"engines-{kind.replace('.', '-')}", kind, tuple(hosts))
    routers = _of_role(target, facts, "router", over_efa=False)
    if wanted := tuple(host for host in routers if host.name not in there):
        yield Launch("routers", wanted[0].instance_type, wanted)


def _of_role(
    target: Ec2Target, facts: AwsFacts, role: RoleName, *, over_efa: bool
) -> tuple[PlannedHost, ...]:
    own: Ec2Role | None = getattr(target, role)
    if own is None or target.instance_ids.get(role):
        return ()
    kind = own.instance_type or target.instance_type
    interfaces: tuple[Interface, ...] = ((0, 0, "interface"),)
    if over_efa and (known := facts.type_of(kind) or packaged_type(kind)) is not None:
        interfaces = wanted_interfaces(known)
    return tuple(
        PlannedHost(f"{role}-{index}", role, kind, interfaces) for index in range(own.count)
    )


def packaged_type(name: str) -> AwsType | None:
    """A type as the package's own table has it, where EC2 was not asked; None for others."""
    known = INSTANCE_TYPES.get(name)
    if known is None:
        return None
    plain = ("interface",)
    cards = tuple(
        AwsCard(
            index,
            2,
            plain
            if index == 0 and not known.efa_on_first_card
            else ("interface", "efa", "efa-only"),
        )
        for index in range(known.cards)
    )
    return AwsType(name, True, known.efa, cards, gpus=known.gpus)


# --- where ---------------------------------------------------------------------------------------


def _vpc_of(target: Ec2Target, facts: AwsFacts) -> str | None:
    """As named, else the one that was looked at, else that of the subnet that is named."""
    if target.network.vpc or facts.vpcs:
        return target.network.vpc or (facts.vpcs or ())[0].id
    named = (each.vpc for each in facts.subnets or () if each.id == target.network.subnet)
    return next(named, None)


def _zones(
    target: Ec2Target, facts: AwsFacts, launches: tuple[Launch, ...]
) -> Iterator[ZoneChoice]:
    names = list(target.zones) or _offering(facts, launches)
    named = next((s for s in facts.subnets or () if s.id == target.network.subnet), None)
    if facts.reservation is not None and facts.reservation.zone:
        names = [facts.reservation.zone]
    elif named is not None and named.zone:
        names = [named.zone]
    elif adopted := {i.zone for i in facts.instances or () if i.role and not i.made_by and i.zone}:
        names = sorted(adopted)
    for zone in names:
        subnet = target.network.subnet or _subnet_in(target, facts, zone)
        if subnet is not None or facts.subnets is None:
            yield ZoneChoice(zone, subnet)


def _offering(facts: AwsFacts, launches: tuple[Launch, ...]) -> list[str]:
    """Zones that offer all types, in order of their names."""
    offered = facts.offered or {}
    sets = [set(offered.get(launch.instance_type, ())) for launch in launches]
    return sorted(set.intersection(*sets)) if sets else []


def _subnet_in(target: Ec2Target, facts: AwsFacts, zone: str) -> str | None:
    """With a way out that fits how hosts are reached, and then with most room."""
    vpc = _vpc_of(target, facts)
    inside = [each for each in facts.subnets or () if each.zone == zone and vpc in (None, each.vpc)]
    if not inside:
        return None
    public = target.network.access == "elastic-ip"

    def fitness(each: AwsSubnet) -> tuple[bool, bool, int]:
        way = each.way_out or ""
        return way.startswith("igw-") == public, bool(way), each.free or 0

    return max(inside, key=fitness).id


# --- cost ----------------------------------------------------------------------------------------


def _cost(target: Ec2Target, facts: AwsFacts, launches: tuple[Launch, ...]) -> Cost:
    lines: list[CostLine] = []
    guessed: list[str] = []
    live = facts.prices or {}
    count = 0
    for launch in launches:
        kind, number = launch.instance_type, len(launch.hosts)
        price, exact = prices.listed_price(kind, target.region)
        if kind in live:
            price, exact = live[kind], True
        if price is not None and not exact:
            guessed.append(kind)
        count += number
        lines.append(CostLine(f"{number} × {kind}", None if price is None else price * number))
    if count:
        disks = target.root_volume_gib * count
        lines.append(
            CostLine(f"{disks} GiB of gp3", disks * prices.GP3_GIB_MONTH / prices.HOURS_A_MONTH)
        )
        if target.network.access == "elastic-ip":
            lines.append(CostLine(f"{count} elastic IP addresses", count * prices.ADDRESS_HOUR))
    all_live = bool(launches) and all(launch.instance_type in live for launch in launches)
    return Cost(tuple(lines), "live" if all_live else prices.AS_OF, tuple(guessed))


def _quota(
    target: Ec2Target, facts: AwsFacts, launches: tuple[Launch, ...]
) -> tuple[str, float | None, int] | None:
    needed: dict[str, int] = {}
    for launch in launches:
        code = QUOTAS.get(target.capacity.kind, {}).get(launch.instance_type[:1])
        known = facts.type_of(launch.instance_type)
        vcpus = known.vcpus if known and known.vcpus else _VCPUS.get(launch.instance_type)
        if code and vcpus and launch.engines:
            needed[code] = needed.get(code, 0) + vcpus * len(launch.hosts)
    if not needed:
        return None
    code, count = next(iter(needed.items()))
    limit = next((q.vcpus for q in facts.quotas or () if q.code == code), None)
    return code, limit, count


_VCPUS = {"p5en.48xlarge": 192, "p5e.48xlarge": 192, "p5.48xlarge": 192}


# --- what is shown -------------------------------------------------------------------------------


def created(plan: CloudPlan, router_port: int) -> Iterator[str]:
    """What would be made, in words."""
    if not plan.missing:
        return
    target, zones = plan.target, ", ".join(each.zone for each in plan.zones) or "a zone"
    if plan.group is None and not plan.there:
        sources = ", ".join(target.network.allow_from) or "nobody outside"
        yield (
            f"a security group: all traffic from and to itself; SSH and port {router_port} from "
            f"{sources}"
        )
    if target.key_name is None and not plan.there:
        yield "a key pair, whose private half stays on this machine"
    for launch in plan.missing:
        names = ", ".join(host.name for host in launch.hosts)
        efa = sum(kind != "interface" for _, _, kind in launch.interfaces)
        yield (
            f"{len(launch.hosts)} × {launch.instance_type} ({names}) in {zones}, with "
            f"{len(launch.interfaces)} network interfaces each, {efa} of them EFA, and "
            f"{target.root_volume_gib} GiB of encrypted gp3, deleted with the instance"
        )
    if target.network.access == "elastic-ip":
        yield f"{sum(len(each.hosts) for each in plan.missing)} elastic IP addresses"


def reused(plan: CloudPlan) -> Iterator[str]:
    """What is there already and is used, in words."""
    target = plan.target
    for each in plan.adopted:
        yield f"instance {each.id} as {each.name}, {each.state}, never ended by pdctl"
    if not plan.launches:
        return
    yield f"VPC {plan.vpc or '(not known)'}"
    for choice in plan.zones:
        yield f"subnet {choice.subnet or '(not known)'} in {choice.zone}"
    image = plan.image
    yield f"image {image.id} ({image.name})" if image else f"image {target.image or '(not known)'}"
    if plan.group is not None:
        yield f"security group {plan.group}"
    if target.key_name is not None:
        yield f"key pair `{target.key_name}`"
    if target.capacity.reservation_id is not None:
        what = target.capacity.kind.replace("odcr", "capacity reservation").replace("-", " ")
        yield f"{what} {target.capacity.reservation_id}"


def warnings(plan: CloudPlan) -> Iterator[str]:
    """What EC2 would do, and what is worth a second thought."""
    capacity = plan.target.capacity
    if not plan.launches:
        return
    if capacity.max_hours is None:
        yield (
            "the hosts do NOT end by themselves: set `capacity.max_hours`, so that a lost laptop "
            "costs hours and not weeks"
        )
    elif capacity.max_hours * 60 < _SHORT_MINUTES:
        yield (
            f"the hosts end {max(_LEAST_MINUTES, capacity.max_hours * 60):.0f} minutes after they "
            "start, which may be before engines have started (`capacity.max_hours`)"
        )
    if capacity.kind == "spot":
        yield "spot: AWS ends the hosts with two minutes' warning whenever it wants them back"
    if capacity.kind == "on-demand" and any(launch.engines for launch in plan.launches):
        yield "on demand such hosts are rarely to be had; a reservation or a capacity block is sure"
    if capacity.kind == "capacity-block" and plan.reservation is None:
        yield "the end of the capacity block is not known: nothing shuts down in order before it"
    if plan.cost.guessed:
        kinds = ", ".join(dict.fromkeys(plan.cost.guessed))
        yield f"the price of {kinds} is that of {prices.REGION}"
    if len(plan.launches) > 1 and capacity.kind in ("odcr", "capacity-block"):
        yield "the reservation is for engine hosts; routers are on demand"


def in_plan(plan: Plan, cloud: CloudPlan) -> Plan:
    """The plan of what runs, with the machines that it needs."""
    zone = cloud.zones[0].zone if len(cloud.zones) == 1 else None
    return replace(
        plan,
        instances=tuple(
            Instance(host.role, host.instance_type, zone, host.interfaces) for host in cloud.hosts
        ),
        hourly_usd=cloud.cost.hourly_usd,
        as_of=cloud.cost.as_of,
    )
