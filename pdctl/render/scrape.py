"""What Prometheus is to read of a deployment: every engine and router, with its labels."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pdctl.base.process import RoleName

JOB = "pdctl"
INTERVAL_S = 15


@dataclass(frozen=True)
class Scraped:
    """A server with a `/metrics` page.

    Attributes:
        process: as in `prefill-0`.
        url: base URL, as the deployment's own hosts reach it.
    """

    process: str
    role: RoleName
    url: str


def scrape_config(name: str, servers: Iterable[Scraped], rules: Sequence[str]) -> dict[str, Any]:
    """A whole `prometheus.yml`; or its one job, for a Prometheus that is there already.

    Args:
        name: of the deployment; the label `deployment` of all its series.
        rules: names of files with alert rules, beside this one.
    """
    return {
        "global": {"scrape_interval": f"{INTERVAL_S}s", "evaluation_interval": f"{INTERVAL_S}s"},
        "rule_files": list(rules),
        "scrape_configs": [
            {
                "job_name": f"{JOB}-{name}",
                "static_configs": [_static(name, server) for server in servers],
            }
        ],
    }


def _static(name: str, server: Scraped) -> dict[str, Any]:
    parts = urlsplit(server.url)
    labels = {"deployment": name, "role": server.role, "process": server.process}
    # Labels with two underscores say how to scrape, and do not end up on series.
    if parts.scheme != "http":
        labels["__scheme__"] = parts.scheme
    if parts.path.strip("/"):
        labels["__metrics_path__"] = f"{parts.path.rstrip('/')}/metrics"
    return {"targets": [parts.netloc], "labels": labels}
