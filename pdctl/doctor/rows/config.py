"""Checks of the configuration, which need nothing that runs."""

from pdctl.doctor.table import Check

CHECKS: tuple[Check, ...] = ()
