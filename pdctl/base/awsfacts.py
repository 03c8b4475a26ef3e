"""Facts of AWS: what a deployment asks of it, and what EC2 says there is. Typed, frozen, saved.

Shaped after EC2's own answers. `observe.aws` fills them in; `doctor.rows.aws` judges. Times are
seconds since the epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pdctl.base.process import RoleName

CapacityKind = Literal["on-demand", "odcr", "capacity-block", "spot"]
AccessKind = Literal["elastic-ip", "private", "instance-connect", "ssm"]

DEPLOYMENT_TAG = "pdctl:deployment"
"""Tag of everything that belongs to a deployment, with its name."""
PROCESS_TAG = "pdctl:host"
"""Tag of an instance, with the name of the host that it is, such as `prefill-0`."""
MADE_TAG = "pdctl:made-by"
"""Tag of what pdctl itself made, with the id of that making. Nothing else is ever ended."""
LAUNCH_TAG = "pdctl:launch"
"""Tag of an instance, with the request that it came from: what is found again after a crash."""


QUOTAS: Mapping[str, Mapping[str, str]] = {
    # Running On-Demand and All Spot, of P and of G and VT instances.
    "on-demand": {"p": "L-417A185B", "g": "L-DB2E81BA"},
    "odcr": {"p": "L-417A185B", "g": "L-DB2E81BA"},
    "spot": {"p": "L-7212CCBC", "g": "L-3819A6DF"},
}
"""Quotas in vCPUs by kind of capacity and first letter of the type; a capacity block has none."""


@dataclass(frozen=True)
class WantedInstances:
    """Hosts of one role; `ids` are those to adopt."""

    role: RoleName
    instance_type: str
    count: int
    ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class AwsWant:
    """What a configuration asks of EC2.

    Attributes:
        deployment: its name, by whose tag its instances are found.
        roles: hosts by role.
        over_efa: KV goes over EFA.
        zones: in the order they are tried; empty for all.
        max_hours: after which hosts are to end by themselves.
        vpc, subnet, security_group, reservation: ids, where configured.
    """

    deployment: str
    region: str
    roles: tuple[WantedInstances, ...]
    over_efa: bool = True
    zones: tuple[str, ...] = ()
    capacity: CapacityKind = "on-demand"
    reservation: str | None = None
    max_hours: float | None = None
    vpc: str | None = None
    subnet: str | None = None
    security_group: str | None = None
    access: AccessKind = "private"

    @property
    def engines(self) -> tuple[WantedInstances, ...]:
        """Those of engines."""
        return tuple(each for each in self.roles if each.role != "router")


@dataclass(frozen=True)
class AwsInterface:
    """A network interface of an instance.

    Attributes:
        kind: `interface`, `efa` or `efa-only`.
        card, device: where it is attached.
        groups: ids of its security groups.
    """

    id: str
    kind: str
    card: int
    device: int
    groups: tuple[str, ...] = ()
    subnet: str | None = None
    private_ip: str | None = None
    public_ip: str | None = None

    @property
    def efa(self) -> bool:
        """It has an EFA device."""
        return self.kind in ("efa", "efa-only")

    @property
    def primary(self) -> bool:
        """It is the instance's first one."""
        return (self.card, self.device) == (0, 0)


@dataclass(frozen=True)
class AwsInstance:
    """One instance.

    Attributes:
        name: of the host that it is, such as `prefill-0`; its id where nothing says.
        role: None where nothing says.
        state: such as `running`.
        lifecycle: `capacity-block`, `spot`; None on demand.
        tokens: `required` is IMDSv2 only, `optional` allows the old way.
        system_status, instance_status: of the status checks, such as `ok`; None when not told.
        events: scheduled ones that are not over, such as `instance-retirement`.
        shutdown: what a shutdown from inside does: `stop` or `terminate`.
        protected: it cannot be terminated by the API.
        made_by: id of the making of pdctl that it came from; None for one of somebody else.
    """

    id: str
    name: str
    role: RoleName | None = None
    instance_type: str = ""
    state: str = ""
    zone: str | None = None
    vpc: str | None = None
    subnet: str | None = None
    private_ip: str | None = None
    public_ip: str | None = None
    lifecycle: str | None = None
    reservation: str | None = None
    placement_group: str | None = None
    tokens: str | None = None
    interfaces: tuple[AwsInterface, ...] = ()
    launched_at: float | None = None
    system_status: str | None = None
    instance_status: str | None = None
    events: tuple[str, ...] = ()
    shutdown: str | None = None
    protected: bool | None = None
    made_by: str | None = None

    @property
    def efa(self) -> tuple[AwsInterface, ...]:
        """Its interfaces with EFA."""
        return tuple(each for each in self.interfaces if each.efa)


@dataclass(frozen=True)
class AwsCard:
    """A network card of an instance type: how many interfaces, and of which kinds."""

    index: int
    interfaces: int
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True)
class AwsType:
    """An instance type, by DescribeInstanceTypes.

    Attributes:
        architectures: such as `x86_64`.
        usages: ways to buy it: `on-demand`, `spot`, `capacity-block`.
    """

    name: str
    efa: bool
    max_efa: int = 0
    cards: tuple[AwsCard, ...] = ()
    vcpus: int | None = None
    gpus: int = 0
    architectures: tuple[str, ...] = ()
    usages: tuple[str, ...] = ()


@dataclass(frozen=True)
class AwsImage:
    """A machine image.

    Attributes:
        root_device: such as `/dev/sda1`; None when it has none.
        root_kind: `ebs` or `instance-store`.
        root_gib: size of its root volume.
        platform: `windows`; None for Linux.
    """

    id: str
    name: str = ""
    architecture: str = ""
    state: str = ""
    root_device: str | None = None
    root_kind: str = ""
    root_gib: int | None = None
    platform: str | None = None


@dataclass(frozen=True)
class AwsVpc:
    """A virtual network; `default` is the region's own."""

    id: str
    default: bool = False


@dataclass(frozen=True)
class AwsRule:
    """A rule of a security group: protocol (`-1` is all), and whom it lets through."""

    protocol: str
    groups: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()


@dataclass(frozen=True)
class AwsGroup:
    """A security group."""

    id: str
    vpc: str | None = None
    ingress: tuple[AwsRule, ...] = ()
    egress: tuple[AwsRule, ...] = ()


@dataclass(frozen=True)
class AwsSubnet:
    """A subnet.

    Attributes:
        free: addresses that are not used.
        way_out: target of its default route, such as `igw-…` or `nat-…`; None for none.
        routes_known: whether its routes could be read.
    """

    id: str
    vpc: str | None = None
    zone: str | None = None
    free: int | None = None
    way_out: str | None = None
    routes_known: bool = False


@dataclass(frozen=True)
class AwsReservation:
    """A capacity reservation or capacity block.

    Attributes:
        kind: `default` or `capacity-block`.
        ends_at: None when it has no end.
        match: `open` or `targeted`.
    """

    id: str
    state: str = ""
    kind: str = "default"
    instance_type: str = ""
    zone: str | None = None
    total: int | None = None
    available: int | None = None
    ends_at: float | None = None
    match: str | None = None
    tenancy: str | None = None


@dataclass(frozen=True)
class AwsPlacementGroup:
    """A placement group and its strategy: `cluster`, `partition`, `spread`."""

    name: str
    strategy: str


@dataclass(frozen=True)
class AwsQuota:
    """A limit of the account, in vCPUs."""

    code: str
    vcpus: float


@dataclass(frozen=True)
class AwsFacts:
    """What EC2 says; a part that could not be asked is None, and `problems` says why.

    Attributes:
        error: why nothing could be asked at all.
        problems: by part, such as `instances`.
        offered: zones that offer a type, by type.
        vpcs, image, keys, prices: asked only before something is made. `keys` are names of key
            pairs, `prices` are US dollars an hour by type, on demand.
    """

    want: AwsWant
    error: str | None = None
    instances: tuple[AwsInstance, ...] | None = None
    types: tuple[AwsType, ...] | None = None
    groups: tuple[AwsGroup, ...] | None = None
    subnets: tuple[AwsSubnet, ...] | None = None
    reservation: AwsReservation | None = None
    placement_groups: tuple[AwsPlacementGroup, ...] | None = None
    quotas: tuple[AwsQuota, ...] | None = None
    offered: Mapping[str, tuple[str, ...]] | None = None
    vpcs: tuple[AwsVpc, ...] | None = None
    image: AwsImage | None = None
    keys: tuple[str, ...] | None = None
    prices: Mapping[str, float] | None = None
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def engines(self) -> tuple[AwsInstance, ...]:
        """The instances that run engines; those of no known role count too."""
        return tuple(each for each in self.instances or () if each.role != "router")

    def type_of(self, name: str) -> AwsType | None:
        """A type by its name."""
        return next((each for each in self.types or () if each.name == name), None)
