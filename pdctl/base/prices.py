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
