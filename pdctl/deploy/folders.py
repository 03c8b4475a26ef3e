"""The deployment's folders: made private, and refused where somebody else made them first."""

import stat
from collections.abc import Iterator, Sequence

from pdctl.base.command import command
from pdctl.base.errors import PermissionDeniedError
from pdctl.deploy.world import World
from pdctl.render.model import Deployment, RenderedDir
from pdctl.targets.base import Host

_LIMIT_S = 20.0


def missing(world: World, deployment: Deployment) -> list[RenderedDir]:
    """Folders that are not there, or not as they must be."""
    found: list[RenderedDir] = []
    for name, folders in _by_host(deployment):
        good = _good(world.hosts[name], folders)
        found += [each for each in folders if str(each.path) not in good]
    return found


def make(world: World, deployment: Deployment) -> None:
    """Make what is missing.

    Raises:
        PermissionDeniedError: a folder is a link, or belongs to another user. A name in a shared
            folder can be taken by anybody; sockets and keys must not end up there.
    """
    for name, folders in _by_host(deployment):
        host = world.hosts[name]
        good = _good(host, folders)
        for each in (folder for folder in folders if str(folder.path) not in good):
            _make(host, each)


def _make(host: Host, folder: RenderedDir) -> None:
    path = str(folder.path)
    mode = "700" if folder.private else "755"
    result = host.run(command("mkdir", "-p", "-m", mode, path), timeout=_LIMIT_S)
    if not result.ok:
        raise PermissionDeniedError(
            f"`{path}` cannot be made: {result.stderr.strip()}", where=host.name
        )
    # A folder of ours that was open is closed; whose it is comes first, and `stat` follows no link.
    if folder.private and _is_mine(host, path):
        host.run(command("chmod", "700", path), timeout=_LIMIT_S)
    if path not in _good(host, [folder]):
        raise PermissionDeniedError(
            f"`{path}` is not a private folder of this user",
            where=host.name,
            expected="a folder, not a link, owned by this user, with mode 0700",
            hints=[f"see what it is with `ls -ld {path}`, and remove it"],
        )


def _good(host: Host, folders: Sequence[RenderedDir]) -> set[str]:
    user = _user(host)
    return {
        str(each.path)
        for each in folders
        if (found := _stat(host, str(each.path))) is not None
        and stat.S_ISDIR(found[1])
        and (not each.private or (found[0] == user and not found[1] & 0o077))
    }


def _is_mine(host: Host, path: str) -> bool:
    found = _stat(host, path)
    return found is not None and found[0] == _user(host) and stat.S_ISDIR(found[1])


def _stat(host: Host, path: str) -> tuple[int, int] | None:
    """Owner and mode bits, of a link itself; None when there is nothing."""
    result = host.run(command("stat", "-c", "%u %f", path), timeout=_LIMIT_S)
    owner, _, mode = result.stdout.strip().partition(" ")
    return (int(owner), int(mode, 16)) if result.ok and mode else None


def _user(host: Host) -> int:
    return int(host.run(command("id", "-u"), timeout=_LIMIT_S).stdout)


def _by_host(deployment: Deployment) -> Iterator[tuple[str, list[RenderedDir]]]:
    for name in dict.fromkeys(each.host for each in deployment.directories):
        yield name, [each for each in deployment.directories if each.host == name]
