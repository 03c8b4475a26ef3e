"""Checks of what AWS says of the deployment's instances and network."""

from pdctl.doctor.table import Check

CHECKS: tuple[Check, ...] = ()
