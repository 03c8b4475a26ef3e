"""EC2 instance types whose EFA is fit for this: which read by RDMA, and what they have.

No API says it: `DescribeInstanceTypes` has no Nitro version (its `Hypervisor` is just `nitro`) and
nothing of RDMA, so the list is needed before a host can be asked itself. Types, counts and RDMA as
in the EC2 User Guide (efa.html, "Supported instance types") and DescribeInstanceTypes, 2026-11.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class InstanceType:
    """What a type has.

    Attributes:
        nitro: version of its Nitro cards.
        gpus: how many.
        cards: network cards.
        efa: EFA interfaces it takes, at most one a card.
        rdma_read, rdma_write: of its EFA.
        efa_on_first_card: False where card 0 takes plain interfaces only.
    """

    nitro: int
    gpus: int
    cards: int
    efa: int
    rdma_read: bool = True
    rdma_write: bool = True
    efa_on_first_card: bool = True


INSTANCE_TYPES: dict[str, InstanceType] = {
    "p4d.24xlarge": InstanceType(3, 8, 4, 4, rdma_write=False),
    "p4de.24xlarge": InstanceType(3, 8, 4, 4, rdma_write=False),
    "p5.4xlarge": InstanceType(4, 1, 1, 1),
    "p5.48xlarge": InstanceType(4, 8, 32, 32),
    "p5e.48xlarge": InstanceType(4, 8, 32, 32),
    "p5en.48xlarge": InstanceType(5, 8, 16, 16),
    "p6-b200.48xlarge": InstanceType(6, 8, 8, 8),
    "p6-b300.48xlarge": InstanceType(6, 8, 17, 16, efa_on_first_card=False),
    "g6e.48xlarge": InstanceType(4, 8, 4, 4),
    "g7e.48xlarge": InstanceType(6, 8, 4, 4),
    "g5.48xlarge": InstanceType(3, 8, 1, 1, rdma_read=False, rdma_write=False),
}
"""Types whose numbers are known one by one."""

_READ_FAMILIES = {
    # family: smallest multiple of xlarge that has EFA
    "g6": 8,
    "g6e": 8,
    "gr6": 8,
    "g7": 8,
    "g7e": 8,
}


def rdma_read(instance_type: str) -> bool | None:
    """Whether the type's EFA reads by RDMA; None for a type that is not known here."""
    known = INSTANCE_TYPES.get(instance_type)
    if known is not None:
        return known.rdma_read
    family, _, size = instance_type.partition(".")
    smallest = _READ_FAMILIES.get(family)
    if smallest is None:
        return None
    times = size.removesuffix("xlarge")
    return times.isdigit() and int(times) >= smallest


def readers() -> tuple[str, ...]:
    """The types with GPUs and RDMA read that are known one by one, in order of their names."""
    return tuple(sorted(name for name, each in INSTANCE_TYPES.items() if each.rdma_read))
