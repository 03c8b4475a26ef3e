"""All checks. Order is dependence: a check stands after those it needs."""

from pdctl.doctor.rows import aws, config, engine, host, logs, router, runtime
from pdctl.doctor.table import Check

CHECKS: tuple[Check, ...] = (
    *config.CHECKS,
    *aws.CHECKS,
    *host.CHECKS,
    *engine.CHECKS,
    *router.CHECKS,
    *runtime.CHECKS,
    *logs.CHECKS,
)
"""Every check, in the order it is judged."""
