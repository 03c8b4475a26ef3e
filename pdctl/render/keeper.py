"""Editions of what keeps processes running, so that `up` sees when this pdctl has another one."""

import hashlib
from functools import cache

from pdctl.base.paths import templates_dir
from pdctl.base.process import Supervision
from pdctl.render.supervise import supervisor_script

_LENGTH = 12


@cache
def edition_of(supervision: Supervision) -> str:
    """Changes with the templates of units, or with the supervisor; empty where there is neither.

    What a configuration puts into them is no part of it: that is compared by itself.
    """
    if supervision == "none":
        return ""
    if supervision == "process":
        return _digest(supervisor_script())
    files = sorted((templates_dir() / "systemd").iterdir(), key=lambda file: file.name)
    return _digest(b"".join(file.read_bytes() for file in files))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_LENGTH]
