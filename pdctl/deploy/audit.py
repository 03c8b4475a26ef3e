"""One line for every change, so that later somebody can tell who did what and when."""

import os
import time
from contextlib import suppress

from pdctl.base import paths
from pdctl.state.lock import user_name

FILE_NAME = "audit.log"


def note(name: str, change: str) -> None:
    """Append `time pid user change` to the deployment's audit log.

    Words for later, never a reason to fail: where they cannot be written, the work goes on.
    """
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line = f"{stamp} pid={os.getpid()} user={user_name()} {change}\n"
    with suppress(OSError):
        path = paths.deployment_dir(name) / FILE_NAME
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)
