"""What hosts cost and hold. Prices change: the date says when these were read."""

from dataclasses import dataclass

AS_OF = "2026-07-20"
"""When the prices were generated: aws/karpenter-provider-aws, `zz_generated.pricing_aws.go`."""
REGION = "us-east-1"


@dataclass(frozen=True)
class Host:
    """An instance type, as far as a plan needs it.

    Attributes:
        hourly_usd: on demand, Linux, in `REGION`; None: it has no such price.
        gpus: how many.
        gpu_bytes: memory of one, as the EC2 pages give it.
    """

    hourly_usd: float | None
    gpus: int
    gpu_bytes: int


_GB = 10**9

PLAIN_HOSTS: dict[str, float] = {
    "c6i.large": 0.085,
    "c6i.xlarge": 0.17,
    "c6i.2xlarge": 0.34,
    "c6i.4xlarge": 0.68,
    "c6i.8xlarge": 1.36,
    "c7i.large": 0.08925,
    "c7i.xlarge": 0.1785,
    "c7i.2xlarge": 0.357,
    "c7i.4xlarge": 0.714,
    "c7i.8xlarge": 1.428,
}
"""Types without GPUs that routers run on: US dollars an hour, from the same file, 2026-01-19."""
ELSEWHERE: dict[str, dict[str, float]] = {
    "us-east-2": {"p5en.48xlarge": 63.296},
    "us-west-2": {"p5en.48xlarge": 63.296},
    "us-west-1": {"p5en.48xlarge": 79.12},
    "eu-north-1": {"p5en.48xlarge": 67.7267},
}
"""Known prices of other regions, from dstack's catalogue, 2026-08."""
GP3_GIB_MONTH = 0.08
"""US dollars a GiB and month of gp3 in `REGION`; what is beyond 3000 IOPS comes on top."""
ADDRESS_HOUR = 0.005
"""US dollars an hour of a public IPv4 address, used or not."""
HOURS_A_MONTH = 730.0


def listed_price(instance_type: str, region: str) -> tuple[float | None, bool]:
    """US dollars an hour on demand, and whether that is the region's own price."""
    own = ELSEWHERE.get(region, {}).get(instance_type)
    if own is not None:
        return own, True
    known = HOSTS.get(instance_type)
    price = known.hourly_usd if known else PLAIN_HOSTS.get(instance_type)
    return price, region == REGION


HOSTS: dict[str, Host] = {
    "p4d.24xlarge": Host(21.957642, 8, 40 * _GB),
    "p4de.24xlarge": Host(27.44705, 8, 80 * _GB),
    "p5.4xlarge": Host(6.88, 1, 80 * _GB),
    "p5.48xlarge": Host(55.04, 8, 80 * _GB),
    "p5e.48xlarge": Host(None, 8, 141 * _GB),
    "p5en.48xlarge": Host(63.296, 8, 141 * _GB),
    "p6-b200.48xlarge": Host(113.9328, 8, 179 * _GB),
    "p6-b300.48xlarge": Host(142.416, 8, 268 * _GB),
    "g6e.48xlarge": Host(30.13118, 8, 48 * _GB),
    "g7e.48xlarge": Host(33.14432, 8, 96 * _GB),
}
