"""Checks of what the logs say."""

from pdctl.doctor.table import Check

CHECKS: tuple[Check, ...] = ()
