"""What keeps processes running on hosts without systemd: a small program beside them."""

import hashlib
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import PurePosixPath

from pdctl.base.command import reveal
from pdctl.base.process import ProcessSpec
from pdctl.render.model import NEW_AT_EVERY_START, Place

FOLDER = "supervised"
"""Folder of the deployment in which supervisors say what they started."""


@cache
def supervisor_script() -> bytes:
    """The program; standard library only."""
    return (resources.files("pdctl.engine.scripts") / "supervise.py").read_bytes()


def supervisor_path(place: Place) -> PurePosixPath:
    """Where it is on a host; one that changed is another file, since the old one still runs."""
    digest = hashlib.sha256(supervisor_script()).hexdigest()[:12]
    return place.cache / "supervisor" / f"supervise-{digest}.py"


def report_path(place: Place, name: str) -> PurePosixPath:
    """The file in which the supervisor of a process says what it started."""
    return place.state / FOLDER / f"{name}.json"


def supervised(spec: ProcessSpec, place: Place, deployment: str) -> ProcessSpec:
    """The same process started by its supervisor, with the same environment.

    An engine id that is new at every start is made by the supervisor.
    """
    parts = spec.command.parts
    new_id: tuple[str, ...] = ()
    if any(NEW_AT_EVERY_START in reveal(part) for part in parts):
        new_id = ("--new-id", NEW_AT_EVERY_START, f"{deployment}-{spec.name}-")
    words = (
        *(reveal(parts[0]), "-I", "-S", str(supervisor_path(place))),
        *("--name", spec.name, "--report", str(report_path(place, spec.name))),
        *new_id,
        "--",
    )
    return replace(spec, command=replace(spec.command, parts=(*words, *parts)))
