"""moto as a server whose instances get the addresses of hosts that really exist.

python -m tests.ec2.server PORT ADDRESS…
"""

import sys
from typing import Any

from moto.ec2.models.subnets import Subnet
from moto.server import main


def hand_out(addresses: list[str]) -> None:
    """Instances get these in order, the first one that is free each."""
    usual = Subnet.get_available_subnet_ip

    def get(self: Subnet, instance: Any) -> str:
        return addresses.pop(0) if addresses else usual(self, instance)

    Subnet.get_available_subnet_ip = get  # type: ignore[method-assign]


if __name__ == "__main__":
    hand_out(sys.argv[2:])
    main(["-H", "127.0.0.1", "-p", sys.argv[1]])
