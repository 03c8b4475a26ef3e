"""The EFA installer: only when the configuration names a version, and only what AWS signed."""

import re
from pathlib import PurePosixPath

from pdctl.base.command import command
from pdctl.base.errors import BadAnswerError
from pdctl.deploy.prepare.task import Task
from pdctl.targets.base import Host, OutputSink
from pdctl.targets.privilege import run_as_root

INSTALLED = PurePosixPath("/opt/amazon/efa_installed_packages")
SOURCE = "https://efa-installer.amazonaws.com"
KEY_FINGERPRINT = "4E9091BCBB97A96B26B15E59A05480B1DD2D3CCC"
"""Of the key that AWS signs installers with, as its user guide has it."""

_VERSION = re.compile(rb"^# EFA installer version: (\S+)", re.MULTILINE)
_DOWNLOAD_LIMIT_S = 900.0
_INSTALL_LIMIT_S = 3600.0

# $1 source, $2 version, $3 SHA-256 or empty, $4 fingerprint of the key
_FETCH = """\
set -eu
cd "$(mktemp -d)"
trap '[ $? = 0 ] || rm -rf "$PWD"' EXIT
f=aws-efa-installer-$2.tar.gz
get() { curl -fsSL --retry 3 -o "$1" "$src/$1"; }
src=$1
get "$f"
if [ -n "$3" ]; then
    echo "$3  $f" | sha256sum -c - >&2 || { echo "the checksum of $f is another one" >&2; exit 3; }
else
    get aws-efa-installer.key
    get "$f.sig"
    mkdir -m 700 keys
    export GNUPGHOME="$PWD/keys"
    gpg --batch --quiet --import aws-efa-installer.key
    gpg --batch --status-fd 3 --verify "$f.sig" "$f" 3>status 2>&2 || true
    grep -q "^\\[GNUPG:\\] VALIDSIG .*$4" status || { echo "AWS did not sign $f" >&2; exit 3; }
fi
tar -xf "$f"
pwd
"""


def efa_task(hosts: tuple[str, ...], version: str, checksum: str | None, *, sudo: bool) -> Task:
    """Install it where it is missing or older.

    Args:
        checksum: SHA-256 of the tarball; without one its signature is checked.
    """
    tarball = f"aws-efa-installer-{version}.tar.gz"
    return Task(
        id="efa",
        what=f"install EFA's software {version}",
        done=f"version {version} or newer is there",
        hosts=hosts,
        look=lambda host: _look(host, version),
        apply=lambda host, tell: _install(host, version, checksum, tell),
        root=lambda host: (
            f"curl -O {SOURCE}/{tarball} && tar -xf {tarball} && "
            "cd aws-efa-installer && sudo ./efa_installer.sh -y"
        ),
        sudo=sudo,
    )


def installed_version(host: Host) -> str | None:
    """As the installer itself wrote it down."""
    found = _VERSION.search(host.read_file(INSTALLED) or b"")
    return found[1].decode() if found else None


def _look(host: Host, version: str) -> str:
    now = installed_version(host)
    if now is None:
        return "it was never installed"
    return "" if _parts(now) >= _parts(version) else f"version {now} is older"


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(word) for word in re.findall(r"\d+", version))


def _install(host: Host, version: str, checksum: str | None, tell: OutputSink) -> None:
    words = ("sh", "-c", _FETCH, "sh", SOURCE, version, checksum or "", KEY_FINGERPRINT)
    fetched = host.run(command(*words), timeout=_DOWNLOAD_LIMIT_S)
    if not fetched.ok:
        raise BadAnswerError(
            f"the EFA installer {version} cannot be had",
            where=host.name,
            detail=fetched.stderr.strip().splitlines()[-6:],
            hints=["nothing was installed; `target.efa_installer` names the version"],
        )
    folder = fetched.stdout.strip().splitlines()[-1]
    script = 'cd "$1/aws-efa-installer" && ./efa_installer.sh -y'
    try:
        run_as_root(host, "sh", "-c", script, "sh", folder, timeout=_INSTALL_LIMIT_S, on_line=tell)
    finally:
        run_as_root(host, "rm", "-rf", "--", folder)
    if why := _look(host, version):
        raise BadAnswerError(f"the EFA installer ended well, and {why}", where=host.name)
