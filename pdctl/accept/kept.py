"""Bundles of runs that passed, where `plan` and `up` look for them: what was tried with what.

`accept` puts a copy of each there; one from another machine counts when it is put there by hand.
"""

import json
import shutil
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdctl.accept.bundle import REPORT
from pdctl.accept.model import KIND, SCHEMA_VERSION
from pdctl.base import paths
from pdctl.config.model import Config
from pdctl.engine import choices
from pdctl.state.store import explained, make_private

FOLDER = "accepted_bundles"
"""In pdctl's state folder; no deployment can have that name."""
_FIRST = 16  # of a bundle's files: the report is the first
_MOST_BYTES = 64 * 2**20
_NOT_READ = (OSError, EOFError, tarfile.TarError, zlib.error, ValueError, RecursionError)


@dataclass(frozen=True)
class Accepted:
    """A bundle that speaks for a configuration.

    Attributes:
        began_at: when the run began, as it says.
        pdctl: its version then.
    """

    file: Path
    began_at: str
    pdctl: str


def folder() -> Path:
    """Where they are."""
    return paths.state_root() / FOLDER


def keep(bundle: Path) -> Path:
    """Copy one there.

    Raises:
        PdctlError: it cannot be written.
    """
    target = folder() / bundle.name
    with explained(target):
        make_private(target.parent)
        target.touch(mode=0o600)
        shutil.copyfile(bundle, target)
    return target


def find(config: Config) -> tuple[Accepted | None, tuple[str, ...]]:
    """The latest that speaks for a configuration; and which files there cannot be read, and why."""
    found: list[Accepted] = []
    bad: list[str] = []
    for file in sorted(folder().glob("*.tar.gz")):
        try:
            document = _report(file)
        except _NOT_READ as error:
            bad.append(f"{file} is no acceptance bundle: {error or type(error).__name__}")
            continue
        if speaks_for(document, config):
            environment = document["environment"]
            began_at = str(document.get("began_at"))
            found.append(Accepted(file, began_at, str(environment.get("pdctl"))))
    return max(found, key=lambda each: each.began_at, default=None), tuple(bad)


def _report(file: Path) -> Any:
    with tarfile.open(file, "r:gz") as archive:
        for _, member in zip(range(_FIRST), archive, strict=False):
            if not member.name.endswith(f"/{REPORT}"):
                continue
            held = archive.extractfile(member)
            if held is None or member.size > _MOST_BYTES:
                break
            return json.loads(held.read())
    raise ValueError(f"it has no {REPORT}")


def speaks_for(document: Any, config: Config) -> bool:
    """A whole run that passed, on such a target, with these versions, over the same transport."""
    try:
        return _passed(document, config) and _alike(document, config)
    except (KeyError, TypeError, AttributeError):
        return False  # not written by `accept`, or not by one that is known


def _passed(document: Mapping[str, Any], config: Config) -> bool:
    if document["kind"] != KIND or document["schema_version"] > SCHEMA_VERSION:
        return False
    passed = {
        each["id"].partition(".")[0] for each in document["results"] if each["status"] == "pass"
    }
    wanted = {"doctor", "pair", "exact"}
    if "LIBFABRIC" in choices.backends(config):
        wanted.add("efa")
    return document["ok"] is True and wanted <= passed


def _alike(document: Mapping[str, Any], config: Config) -> bool:
    environment = document["environment"]
    doctor = next(each for each in document["results"] if each["id"] == "doctor")
    versions = doctor["data"]["versions"]
    vllm = {str(each).partition("+")[0] for each in versions["vllm"].values()}
    nixl = {host["nixl"] for host in versions["hosts"].values() if host["nixl"]}
    return (
        environment["target"] == config.target.kind
        and environment["transport"].partition(" ")[0] == "+".join(choices.backends(config))
        and vllm == {choices.vllm_version(config)}
        and (nixl or {environment["nixl"]}) == {choices.nixl_version(config)}
    )
