"""The TTL that was set while a router ran, kept in a file for when it is started again.

Decode keeps its own in a file too. A router that came back with what it was once started with could
offer handles for longer than decode keeps the blocks.
"""

import logging
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from pdctl.router.admin import WrongSetting, parse_ttl

log = logging.getLogger("pdctl.router")

UNKNOWN_S = 1.0
"""In force when the file cannot be read: hardly any reuse, and never a handle that is too old."""


def read_ttl(file: Path, configured: float) -> float:
    """What is in force, seconds: what the file says, else what is configured."""
    try:
        ttl = parse_ttl(file.read_bytes())
    except FileNotFoundError:
        return configured
    except (OSError, WrongSetting) as error:
        log.error("the TTL that was set is not known: %s: %s", file, error)
        ttl = UNKNOWN_S
    log.warning("handles are offered for %g s from now on, not %g s", ttl, configured)
    return ttl


def write_ttl(file: Path, ttl: float) -> None:
    """Replace the file; after a crash it holds the old value or the new.

    Raises:
        OSError: it cannot be written.
    """
    handle, scratch = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with os.fdopen(handle, "w") as written:
            written.write(f'{{"ttl": {ttl!r}}}\n')
            written.flush()
            os.fsync(written.fileno())
        os.replace(scratch, file)
    except BaseException:
        with suppress(OSError):
            os.unlink(scratch)
        raise
