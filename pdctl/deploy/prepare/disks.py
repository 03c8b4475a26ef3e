"""The instance's own NVMe disks: striped and mounted, if they hold nothing at all.

A disk is used only when it says that it is an instance store, by its model or PCI id, never by its
name, and has no partition, no file system, no signature of any kind and no mount.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from pdctl.base.command import command
from pdctl.base.errors import BadAnswerError
from pdctl.deploy.prepare.task import Task
from pdctl.targets.base import Host, OutputSink
from pdctl.targets.privilege import root_words, run_as_root

LABEL = "pdctl-nvme"
MODEL = "Amazon EC2 NVMe Instance Storage"
PCI_ID = "0x1d0f:0xcd01"

_LIMIT_S = 60.0
_MAKE_LIMIT_S = 900.0
_COLUMNS = "PATH,TYPE,SIZE,MODEL,FSTYPE,PTTYPE,LABEL,MOUNTPOINT"
_IDS = (
    "for d in /sys/block/*/device/device; do b=${d#/sys/block/}; b=${b%%/*}; "
    'echo "/dev/$b $(cat "$d/vendor"):$(cat "$d/device")"; done 2>/dev/null; true'
)
# $1 mount point, $2 user, $3 label, the rest disks; looks again, as root, before it writes.
_MAKE = """\
set -eu
PATH=$PATH:/usr/sbin:/sbin
at=$1 user=$2 label=$3; shift 3
for d; do
    [ -z "$(lsblk -nro FSTYPE,PTTYPE,MOUNTPOINT "$d" | tr -d ' \\n')" ] &&
    [ -z "$(wipefs --no-act --noheadings "$d")" ] &&
    [ "$(lsblk -nro PATH "$d" | wc -l)" = 1 ] || { echo "$d holds something" >&2; exit 3; }
done
dev=$1
if [ $# -gt 1 ]; then
    dev=/dev/md/$label
    mdadm --create "$dev" --run --level=0 --raid-devices=$# --homehost=any --name="$label" "$@"
fi
mkfs.ext4 -q -m 0 -L "$label" "$dev"
mkdir -p "$at"
mount "$dev" "$at"
chown "$user" "$at"
"""
_MOUNT = """\
set -eu
PATH=$PATH:/usr/sbin:/sbin
mkdir -p "$1"
mount LABEL="$3" "$1"
chown "$2" "$1"
"""
_REMEMBER = """\
set -eu
grep -v "^LABEL=$2 " /etc/fstab > /etc/fstab.pdctl || true
echo "LABEL=$2 $1 ext4 defaults,nofail,x-systemd.device-timeout=30 0 2" >> /etc/fstab.pdctl
mv -f /etc/fstab.pdctl /etc/fstab
"""


@dataclass(frozen=True)
class Found:
    """What a host has.

    Attributes:
        mounted: something is mounted at the place already.
        ours: a file system of an earlier run is there and not mounted.
        empty: instance disks that hold nothing.
        others: instance disks that hold something, each with what.
    """

    mounted: bool
    ours: bool
    empty: tuple[str, ...]
    others: tuple[str, ...]


def nvme_task(hosts: tuple[str, ...], mount_at: PurePosixPath, *, sudo: bool) -> Task:
    """Mount the instance's own disks."""

    def by_hand(host: Host) -> str:
        disks = " ".join(look_at_disks(host, mount_at).empty) or "DISK"
        return f"make a file system on {disks} and mount it at {mount_at}"

    return Task(
        id="nvme",
        what=f"mount the instance's NVMe disks at {mount_at}",
        done="it is mounted",
        hosts=hosts,
        look=lambda host: _why(host, mount_at),
        apply=lambda host, tell: _make(host, mount_at, tell),
        root=by_hand,
        sudo=sudo,
    )


def look_at_disks(host: Host, mount_at: PurePosixPath) -> Found:
    """Ask a host."""
    listed = host.run(command("lsblk", "--json", "--bytes", "--output", _COLUMNS), timeout=_LIMIT_S)
    ids = host.run(command("sh", "-c", _IDS), timeout=_LIMIT_S)
    if not listed.ok:
        raise BadAnswerError(
            "`lsblk` does not say what disks there are",
            where=host.name,
            detail=listed.stderr.strip().splitlines(),
        )
    return choose(json.loads(listed.stdout), dict(_pairs(ids.stdout)), mount_at)


def _pairs(text: str) -> Iterable[tuple[str, str]]:
    for line in text.splitlines():
        path, _, pci = line.partition(" ")
        yield path, pci


def choose(lsblk: Mapping[str, Any], ids: Mapping[str, str], mount_at: PurePosixPath) -> Found:
    """Which disks may be used. Pure.

    Args:
        lsblk: its `--json` output with bytes.
        ids: PCI ids as `vendor:device` by path.
    """
    disks: list[Mapping[str, Any]] = list(lsblk.get("blockdevices") or ())
    everything = list(_all(disks))
    empty, others = [], []
    for disk in disks:
        path = str(disk.get("path"))
        model = str(disk.get("model") or "").strip()
        if disk.get("type") != "disk" or not (model == MODEL or ids.get(path) == PCI_ID):
            continue
        if what := _holds(disk):
            others.append(f"{path} holds {what}")
        else:
            empty.append(path)
    ours = any(each.get("label") == LABEL and not each.get("mountpoint") for each in everything)
    mounted = any(each.get("mountpoint") == str(mount_at) for each in everything)
    return Found(mounted, ours, tuple(empty), tuple(others))


def _all(disks: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    for disk in disks:
        yield disk
        yield from _all(disk.get("children") or ())


def _holds(disk: Mapping[str, Any]) -> str:
    if disk.get("mountpoint"):
        return f"what is mounted at {disk['mountpoint']}"
    if disk.get("children"):
        return "partitions, or is part of an array"
    if disk.get("pttype"):
        return f"a {disk['pttype']} partition table"
    return f"a {disk['fstype']} file system" if disk.get("fstype") else ""


def _why(host: Host, mount_at: PurePosixPath) -> str:
    found = look_at_disks(host, mount_at)
    if found.mounted:
        return ""
    if found.ours:
        return "an earlier run made a file system on them, and it is not mounted"
    count = len(found.empty)
    return f"{count} disk{'s' * (count != 1)} of the instance hold{'s' * (count == 1)} nothing"


def _make(host: Host, mount_at: PurePosixPath, tell: OutputSink) -> None:
    found = look_at_disks(host, mount_at)
    user = host.run(command("id", "-un"), timeout=_LIMIT_S).stdout.strip()
    if not found.ours and not found.empty:
        raise BadAnswerError(
            "the host has no NVMe disk of its own that holds nothing",
            where=host.name,
            expected=f"disks of the model `{MODEL}`, or PCI id {PCI_ID}",
            detail=found.others,
            hints=["take `target.nvme` out of the file, or mount a disk there yourself"],
        )
    script, disks = (_MOUNT, ()) if found.ours else (_MAKE, found.empty)
    words = ("sh", "-c", script, "sh", str(mount_at), user, LABEL, *disks)
    done = host.run(command(*root_words(host), *words), timeout=_MAKE_LIMIT_S, on_line=tell)
    if not done.ok:
        raise BadAnswerError(
            f"the disks could not be mounted at {mount_at}",
            where=host.name,
            detail=done.stderr.strip().splitlines()[-6:],
        )
    run_as_root(host, "sh", "-c", _REMEMBER, "sh", str(mount_at), LABEL)
