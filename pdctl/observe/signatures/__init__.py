"""The signatures: one declared table of lines that mean something."""

from pdctl.observe.signatures.engine import ENGINE
from pdctl.observe.signatures.machine import MACHINE
from pdctl.observe.signatures.model import Signature
from pdctl.observe.signatures.reuse import REUSE
from pdctl.observe.signatures.supervisor import SUPERVISOR
from pdctl.observe.signatures.transport import TRANSPORT

SIGNATURES: tuple[Signature, ...] = (*REUSE, *ENGINE, *TRANSPORT, *MACHINE, *SUPERVISOR)
"""Every signature. Where a line could be several, the first in this order is it."""
BY_ID: dict[str, Signature] = {signature.id: signature for signature in SIGNATURES}
