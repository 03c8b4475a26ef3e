"""The machines of a deployment, by what its configuration says of how to reach them."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from pdctl.base import paths
from pdctl.base.command import command
from pdctl.base.errors import PdctlError, PermissionDeniedError, UsageError
from pdctl.base.events import Listener, ignore
from pdctl.base.process import url_of
from pdctl.config.model import Config, Ec2Target, LocalTarget, SshAccess, SshHost, SshTarget
from pdctl.deploy import audit, services
from pdctl.deploy.ec2hosts import ec2_hosts
from pdctl.deploy.local import this_machine
from pdctl.deploy.world import World, own_url
from pdctl.observe.endpoints import Served
from pdctl.render.check import load_checked
from pdctl.render.place import place_of
from pdctl.render.spots import name_of_host
from pdctl.state.model import DeploymentState
from pdctl.targets.base import Host
from pdctl.targets.ssh.access import Login
from pdctl.targets.ssh.connect import Links
from pdctl.targets.ssh.host import SshHost as Machine
from pdctl.targets.ssh.host import connect_all as try_all

_LIMIT_S = 20.0
PINNED = "known_hosts"
"""File in pdctl's state directory with the keys that `pin-first-use` has kept."""


def world_of(config: Config, listen: Listener = ignore) -> World:
    """All hosts of a deployment; nothing is connected to before it is asked for something.

    Raises:
        UsageError: the target has no hosts that this version can reach, or none yet.
    """
    target = config.target
    if isinstance(target, LocalTarget):
        return this_machine(listen)
    if isinstance(target, SshTarget | Ec2Target):
        hosts = ec2_hosts(config) if isinstance(target, Ec2Target) else ssh_hosts(target)
        if not hosts:
            raise UsageError(
                f"`{config.name}` has no hosts on EC2 yet",
                hints=["`pdctl up` makes or adopts them"],
            )
        tops = tops_of(config)
        return World(
            hosts,
            listen,
            prepare=lambda: _own_all(hosts.values(), tops, sudo=target.access.sudo),
            trail=place_of(config).cache / audit.FILE_NAME,
            near=near_through(hosts),
            supervision=functools.cache(lambda name: services.choose(hosts[name], target)),
        )
    raise UsageError(
        f"hosts of `target.kind: {target.kind}` cannot be reached yet", where="key `target.kind`"
    )


def config_of(state: DeploymentState) -> Config | None:
    """The configuration that says where a recorded deployment is; None for this machine.

    Raises:
        UsageError: its file cannot be used any more.
    """
    if state.target == "local":
        return None
    file = Path(state.config_file)
    try:
        return load_checked(file).config
    except PdctlError as error:
        raise UsageError(
            f"the hosts of `{state.name}` are named in a file that cannot be used: {error.message}",
            where=str(file),
            hints=["name a file that is right: `-f FILE`"],
        ) from error


@contextmanager
def ways_to(config: Config) -> Iterator[Callable[[Served], str]]:
    """How this machine reaches what a deployment serves, as long as the context lasts."""
    if not isinstance(config.target, SshTarget | Ec2Target):
        yield own_url
        return
    world = world_of(config)
    try:
        yield world.near
    finally:
        world.close()


def near_through(hosts: Mapping[str, Host]) -> Callable[[Served], str]:
    """How this machine reaches what these hosts serve, for as long as they are not closed."""

    @functools.cache
    def connect() -> None:  # all at the same time, and only when one is asked for at all
        try_all([host for host in hosts.values() if isinstance(host, Machine)])

    def near(process: Served) -> str:
        connect()
        return _near(hosts, process)

    return near


def _near(hosts: Mapping[str, Host], process: Served) -> str:
    """Through the host's connection: engines and routers listen where only hosts may come."""
    host = hosts.get(process.host)
    address, port = urlsplit(process.url).hostname, process.port
    if not isinstance(host, Machine) or address is None or not port:
        return process.url
    try:
        return url_of("127.0.0.1", host.forward(address, port))
    except PdctlError:
        return process.url  # a host that forwards nothing may still let us in


def ssh_hosts(target: SshTarget) -> Mapping[str, Machine]:
    """The hosts by name, each once; they share what they go through."""
    links = Links()
    found: dict[str, Machine] = {}
    for host in (*target.hosts.prefill, *target.hosts.decode, *target.hosts.router):
        name = name_of_host(host)
        if name not in found:
            found[name] = Machine(name, login_of(target.access, host), links=links)
    return found


def login_of(access: SshAccess, host: SshHost) -> Login:
    """How to log in to one host: its own keys, then those for all."""
    # Only what was written counts before OpenSSH's own configuration.
    limit = access.connect_timeout if "connect_timeout" in access.model_fields_set else None
    return Login(
        address=host.address,
        user=host.user or access.user,
        port=host.ssh_port or access.port,
        key_file=host.key_file or access.key_file,
        jump=access.jump,
        pin=access.host_keys == "pin-first-use",
        connect_timeout=limit,
        pinned=paths.state_root() / PINNED,
    )


def try_to_connect(world: World) -> None:
    """Log in to all hosts at the same time; each tells by itself that it cannot be reached."""
    try_all([host for host in world.hosts.values() if isinstance(host, Machine)])


def connect_all(world: World) -> None:
    """Log in to all hosts at the same time, before anything is done on one of them.

    Raises:
        PdctlError: the first host's error; the others' are its detail.
    """
    hosts = [host for host in world.hosts.values() if isinstance(host, Machine)]
    errors = try_all(hosts)
    if not errors:
        return
    first, *others = errors.items()
    error = first[1]
    raise type(error)(
        error.message,
        where=error.where,
        expected=error.expected,
        hints=error.hints,
        detail=[*error.detail, *(f"{name} too: {each.message}" for name, each in others)],
    )


# --- folders at the top --------------------------------------------------------------------------


def tops_of(config: Config) -> tuple[PurePosixPath, ...]:
    """Folders of the system under which pdctl makes its own, on other machines."""
    place = place_of(config)
    return place.cache, place.temp.parent


def _own_all(hosts: Iterable[Machine], tops: Iterable[PurePosixPath], *, sudo: bool) -> None:
    for host in hosts:
        _own(host, tuple(map(str, tops)), sudo=sudo)


def _own(host: Machine, tops: tuple[str, ...], *, sudo: bool) -> None:
    """Make the folders, with root's help where it takes that; they belong to the user then."""
    usable = command(
        "sh", "-c", 'mkdir -p "$@" && for d; do [ -w "$d" ] || exit 1; done', "-", *tops
    )
    done = host.run(usable, timeout=_LIMIT_S)
    if done.ok:
        return
    user = host.run(command("id", "-u"), timeout=_LIMIT_S).stdout.strip()
    group = host.run(command("id", "-g"), timeout=_LIMIT_S).stdout.strip()
    words = ("install", "-d", "-m", "755", "-o", user, "-g", group, *tops)
    by_hand = f"`ssh {host.name} sudo {' '.join(words)}`"
    said = done.stderr.strip().splitlines()
    if not sudo:
        raise PermissionDeniedError(
            "the user may not make pdctl's folders, and `target.access.sudo` is off",
            where=host.name,
            detail=said,
            hints=[by_hand, "or set `target.base_dir` to a folder of the user"],
        )
    root = host.as_root()
    try:
        result = root.run(command(*words), timeout=_LIMIT_S)
    finally:
        root.close()
    if not result.ok:
        raise PermissionDeniedError(
            "pdctl's folders cannot be made, not even by root",
            where=host.name,
            detail=[*said, *result.stderr.strip().splitlines()],
            hints=[by_hand],
        )
