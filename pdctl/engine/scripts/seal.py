"""Seal an engine environment when it is complete, and check the seal before it is used again.

Usage: python -I seal.py write|verify COMPLETE_FILE NAME==VERSION ...

`write` demands the named distributions at these versions and records the checksum of every
distribution's RECORD, which itself has the checksum of every file. `verify` compares with what is
there now and looks at the files of the named ones. Exit status 0: in order. 1: each difference on
a line of its own.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence

SCHEMA = 1

Found = dict[str, dict[str, str]]


def survey() -> Found:
    """Give `{name: {"version", "record_sha256"}}` of everything installed."""
    found: Found = {}
    for distribution in importlib.metadata.distributions():
        record = distribution.read_text("RECORD") or ""
        found[_normal(distribution.metadata["Name"])] = {
            "version": distribution.version,
            "record_sha256": hashlib.sha256(record.encode()).hexdigest(),
        }
    return dict(sorted(found.items()))


def wrong_versions(found: Found, wanted: Mapping[str, str]) -> list[str]:
    """Name each wanted distribution that is missing or of another version.

    A local version such as `2.13.0+cpu` is a build of 2.13.0.
    """
    problems = []
    for name, version in wanted.items():
        there = found.get(name, {}).get("version")
        if there is None or there.partition("+")[0] != version:
            problems.append(f"{name} {version} is wanted, {there or 'nothing'} is installed")
    return problems


def damaged_files(names: Iterable[str]) -> list[str]:
    """Name each file of these distributions that is missing or has another size."""
    problems = []
    for name in names:
        try:
            files = importlib.metadata.files(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.size is None:
                continue
            try:
                size = os.stat(file.locate()).st_size
            except OSError:
                problems.append(f"{name}: {file} is missing")
                continue
            if size != file.size:
                problems.append(f"{name}: {file} has {size} bytes, installed were {file.size}")
    return problems


def changes(before: Found, now: Found) -> list[str]:
    """Name each distribution that came, went or changed since the seal."""
    problems = []
    for name in sorted(before.keys() | now.keys()):
        if name not in now:
            problems.append(f"{name} was removed")
        elif name not in before:
            problems.append(f"{name} was added")
        elif before[name] != now[name]:
            versions = f"{before[name]['version']} -> {now[name]['version']}"
            problems.append(f"{name} changed ({versions})")
    return problems


def write(path: str, wanted: Mapping[str, str]) -> list[str]:
    """Write the seal, whole or not at all, if everything is in order."""
    found = survey()
    problems = wrong_versions(found, wanted) + damaged_files(wanted)
    if not problems:
        seal = {
            "schema_version": SCHEMA,
            "python": platform.python_version(),
            "wanted": dict(wanted),
            "distributions": found,
        }
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump(seal, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + ".part", path)
    return problems


def verify(path: str, wanted: Mapping[str, str]) -> list[str]:
    """Compare the environment with its seal."""
    try:
        with open(path, encoding="utf-8") as file:
            seal = json.load(file)
        before, python = seal["distributions"], seal["python"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"the seal cannot be read: {error}"]
    problems = []
    if python != platform.python_version():
        problems.append(f"python changed ({python} -> {platform.python_version()})")
    now = survey()
    return problems + changes(before, now) + wrong_versions(now, wanted) + damaged_files(wanted)


def main(arguments: Sequence[str]) -> int:
    """Run one of the two, print what is wrong."""
    action, path, *pins = arguments
    wanted = dict(pin.split("==", 1) for pin in pins)
    problems = {"write": write, "verify": verify}[action](path, wanted)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
