"""The commands as somebody types them, with an account whose calls can be refused."""

from pathlib import Path
from typing import Any

from tests.cli.helpers import CliResult, run_cli
from tests.ec2.cloud import Region, document, write

ARRIVED = "here the test ends"
"""What `up` fails with once all hosts are made: nobody answers at the addresses of moto."""
SERVICES = {
    "get_products": "pricing",
    "get_service_quota": "service-quotas",
    "get_parameter": "ssm",
}
"""Of calls that are not EC2's."""


class Account:
    """A region, and the file that the commands read."""

    def __init__(self, region: Region, folder: Path) -> None:
        self.region, self.folder = region, folder

    def write(self, backends: str = "UCX", **target: Any) -> None:
        capacity = {"kind": "on-demand", "max_hours": 8, "on_failure": "keep"}
        usual = {"instance_type": "c7i.2xlarge", "capacity": capacity}
        content = document(self.region.image, **usual)
        content["target"] |= target
        content["target"] = {k: v for k, v in content["target"].items() if v is not None}
        content["kv"]["backends"] = [backends]
        write(self.folder, content)

    def run(self, *words: str) -> CliResult:
        return run_cli(*words, "-f", str(self.folder / "pd.yaml"))

    def up(self) -> CliResult:
        return self.run("up", "--yes")

    def refuse(self, operation: str) -> None:
        code = "AccessDeniedException" if operation in SERVICES else "UnauthorizedOperation"
        self.region.refusals.clear()
        self.region.refuse(operation, code, times=100)

    def allow(self) -> None:
        self.region.refusals.clear()
