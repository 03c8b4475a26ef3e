"""What a host on EC2 does at its first start: it sets the timer that will end it. Pure."""

from datetime import UTC, datetime

from pdctl.config.model import Ec2Target
from pdctl.render.formats import template
from pdctl.render.supervise import FOLDER

DRAIN_MINUTES = 5
"""So long before its end a host says that it ends, and processes may finish what they are at."""


def user_data(name: str, target: Ec2Target, *, ends_at: float | None = None) -> str:
    """The script.

    Args:
        name: of the deployment.
        ends_at: when the host is to be off at the latest, seconds since the epoch.
    """
    hours = target.capacity.max_hours
    end = None if ends_at is None else datetime.fromtimestamp(ends_at - DRAIN_MINUTES * 60, UTC)
    return str(
        template("ec2/user-data.sh.j2").render(
            name=name,
            max_minutes=None if hours is None else max(1, round(hours * 60) - DRAIN_MINUTES),
            ends_at=None if end is None else f"{end:%Y-%m-%d %H:%M:%S} UTC",
            drain_minutes=DRAIN_MINUTES,
            user=target.access.user or "root",
            base_dir=target.base_dir,
            # What the supervisors of routers have in their arguments, and nothing else has.
            reports=f"{target.base_dir}/deployments/{name}/{FOLDER}/router-",
        )
    )
