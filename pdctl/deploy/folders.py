"""The deployment's folders: made private, and refused where somebody else made them first."""

import stat
from collections.abc import Sequence
from dataclasses import dataclass

from pdctl.base.command import command
from pdctl.base.errors import PermissionDeniedError
from pdctl.deploy.parallel import on_all
from pdctl.deploy.world import World
from pdctl.render.model import Deployment, RenderedDir
from pdctl.targets.base import Host, Result

_LIMIT_S = 20.0


@dataclass(frozen=True)
class _Found:
    """What is at a path; of a link, the link itself."""

    owner: int
    mode: int

    def is_mine(self, user: int) -> bool:
        return stat.S_ISDIR(self.mode) and self.owner == user

    def is_good(self, folder: RenderedDir, user: int) -> bool:
        if not folder.private:
            return stat.S_ISDIR(self.mode)
        return self.is_mine(user) and not self.mode & 0o077


def missing(host: Host, deployment: Deployment) -> list[RenderedDir]:
    """Folders of a host that are not there, or not as they must be."""
    folders = _on(host, deployment)
    return _bad(folders, _look(host, folders), _user(host)) if folders else []


def make(world: World, deployment: Deployment) -> None:
    """Make what is missing, and close what is this user's but open to others; on all hosts at once.

    Raises:
        PermissionDeniedError: a folder is a link, or belongs to another user. A name in a shared
            folder can be taken by anybody; sockets and keys must not end up there.
    """
    names = dict.fromkeys(each.host for each in deployment.directories)
    on_all([world.hosts[name] for name in names], lambda host: _make(host, _on(host, deployment)))


def _make(host: Host, folders: Sequence[RenderedDir]) -> None:
    user = _user(host)
    wanted = _bad(folders, _look(host, folders), user)
    for mode in ("700", "755"):
        paths = [str(each.path) for each in wanted if each.private == (mode == "700")]
        if paths:
            _require(host.run(command("mkdir", "-p", "-m", mode, *paths), timeout=_LIMIT_S))
    found = _look(host, wanted)
    # Whose it is comes first: `chmod` follows a link.
    open_ = [p for p, each in found.items() if each.is_mine(user) and each.mode & 0o077]
    private = [str(each.path) for each in wanted if each.private and str(each.path) in open_]
    if private:
        _require(host.run(command("chmod", "700", *private), timeout=_LIMIT_S))
        found = _look(host, wanted)
    if bad := _bad(wanted, found, user):
        raise _not_private(host, bad[0])


def _require(result: Result) -> None:
    if not result.ok:
        raise PermissionDeniedError(f"a folder cannot be made: {result.stderr.strip()}")


def _not_private(host: Host, folder: RenderedDir) -> PermissionDeniedError:
    return PermissionDeniedError(
        f"`{folder.path}` is not a private folder of this user",
        where=host.name,
        expected="a folder, not a link, owned by this user, with mode 0700",
        hints=[f"see what it is with `ls -ld {folder.path}`, and remove it"],
    )


def _bad(folders: Sequence[RenderedDir], found: dict[str, _Found], user: int) -> list[RenderedDir]:
    return [
        each
        for each in folders
        if str(each.path) not in found or not found[str(each.path)].is_good(each, user)
    ]


def _look(host: Host, folders: Sequence[RenderedDir]) -> dict[str, _Found]:
    paths = [str(each.path) for each in folders]
    if not paths:
        return {}
    # Its exit status only says that one is missing; the lines say what there is.
    lines = host.run(command("stat", "-c", "%u %f %n", *paths), timeout=_LIMIT_S).stdout
    fields = [line.split(" ", 2) for line in lines.splitlines()]
    return {path: _Found(int(owner), int(mode, 16)) for owner, mode, path in fields}


def _user(host: Host) -> int:
    return int(host.run(command("id", "-u"), timeout=_LIMIT_S).stdout)


def _on(host: Host, deployment: Deployment) -> list[RenderedDir]:
    return [each for each in deployment.directories if each.host == host.name]
