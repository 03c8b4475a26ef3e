"""The machines of a deployment, by what its configuration says of how to reach them."""

import functools
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from pdctl.base import paths
from pdctl.base.command import command
from pdctl.base.errors import PdctlError, PermissionDeniedError, TemporaryError, UsageError
from pdctl.base.events import Listener, Note, ignore
from pdctl.base.process import url_of
from pdctl.config.model import Config, Ec2Target, LocalTarget, SshAccess, SshHost, SshTarget
from pdctl.deploy import audit, services
from pdctl.deploy.ec2hosts import ec2_hosts
from pdctl.deploy.local import this_machine
from pdctl.deploy.parallel import on_all
from pdctl.deploy.world import World, own_url
from pdctl.observe.endpoints import Served
from pdctl.render.check import load_checked
from pdctl.render.place import place_of
from pdctl.render.spots import host_of_name, name_of_host
from pdctl.state import lock
from pdctl.state.model import DeploymentState
from pdctl.state.store import StateStore
from pdctl.targets.base import Host
from pdctl.targets.ssh.access import Login
from pdctl.targets.ssh.connect import Links
from pdctl.targets.ssh.host import SshHost as Machine
from pdctl.targets.ssh.host import connect_all as try_all

_LIMIT_S = 20.0
_LOOK_S = 0.5
_AT_ONCE = 32
PINNED = "known_hosts"
"""File in pdctl's state directory with the keys that `pin-first-use` has kept."""


def world_of(config: Config, listen: Listener = ignore, recorded: Iterable[str] = ()) -> World:
    """All hosts of a deployment; nothing is connected to before it is asked for something.

    Args:
        recorded: hosts that have processes of it, whether the configuration still has them or not.

    Raises:
        UsageError: the target has no hosts that this version can reach, or none yet.
    """
    target = config.target
    if isinstance(target, LocalTarget):
        return this_machine(listen)
    if isinstance(target, SshTarget | Ec2Target):
        if isinstance(target, Ec2Target):
            wanted = hosts = ec2_hosts(config)
        else:
            wanted, hosts = ssh_hosts(target), ssh_hosts(target, recorded)
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
            leaving=frozenset(hosts.keys() - wanted.keys()),
        )
    raise UsageError(
        f"hosts of `target.kind: {target.kind}` cannot be reached yet", where="key `target.kind`"
    )


def recorded_hosts(store: StateStore) -> list[str]:
    """Hosts that have processes of a deployment, as far as its state can be read."""
    try:
        state = store.load()
    except PdctlError:
        return []  # told by whoever needs the state
    return list(dict.fromkeys(r.host for r in state.processes.values())) if state else []


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


def ssh_hosts(target: SshTarget, recorded: Iterable[str] = ()) -> dict[str, Machine]:
    """The hosts by name, each once; they share what they go through.

    Args:
        recorded: names of more; what the file said of them besides is not known any more.
    """
    links = Links()
    found: dict[str, Machine] = {}
    hosts = (*target.hosts.prefill, *target.hosts.decode, *target.hosts.router)
    for host in (*hosts, *map(host_of_name, recorded)):
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


def without_lost(world: World) -> World:
    """`connect_all`, but hosts that the configuration has no more may be gone for good.

    Raises:
        PdctlError: a host that the configuration has cannot be reached.
    """
    leaving = [h for n, h in world.hosts.items() if n in world.leaving and isinstance(h, Machine)]
    lost = try_all(leaving)
    for name, error in lost.items():
        world.listen(
            Note(
                f"{name} is not in the configuration any more and cannot be reached "
                f"({error.message}); what ran there is given up",
                warning=True,
            )
        )
    rest = replace(world, hosts={n: h for n, h in world.hosts.items() if n not in lost})
    connect_all(rest)
    return rest


def give_up_lost(world: World, store: StateStore) -> None:
    """Forget the processes of hosts that `without_lost` gave up; the lock is held."""
    state = store.load()
    if state is None or not world.leaving:
        return
    lost = [r for r in state.processes.values() if r.host not in world.hosts]
    for record in lost:
        state = state.without_process(record.name)
        audit.note(store.name, f"give up {record.name} on {record.host}, which is lost")
    if lost:
        store.save(state)


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


# --- one at a time ------------------------------------------------------------------------------


@contextmanager
def hold(name: str, world: World, marks: str, command: str, *, wait: float = 0.0) -> Iterator[None]:
    """Hold a deployment's lock: here, and on its hosts, where others may come from elsewhere.

    Args:
        marks: what tells the deployment on its hosts.
        command: what others are told, such as `pdctl up`.
        wait: seconds to wait for another holder.

    Raises:
        TemporaryError: somebody else holds it; says who.
    """
    deadline = time.monotonic() + wait
    with lock.hold(name, command, wait=wait):
        who = f"{lock.user_name()} at {socket.gethostname()} (`{command}`, pid {os.getpid()})"
        hosts = [host for host in world.hosts.values() if isinstance(host, Machine)]
        while (held := _claim(hosts, marks, who)) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        if held:
            raise _busy(name, held, wait)
        yield  # the claims end with the connections, which are this command's own


def _claim(hosts: Sequence[Machine], marks: str, who: str) -> dict[str, str]:
    """Claim all; the first before the others, so that of two who come at once one gets them.

    Returns:
        who holds it, by the hosts on which another does.
    """

    def claim(host: Machine) -> str | None:
        holder = host.claim(marks, who)
        return None if holder == who else holder  # one machine may have two names

    if not hosts:
        return {}
    if first := claim(hosts[0]):
        return {hosts[0].name: first}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        holders = list(pool.map(claim, hosts[1:]))
    return {h.name: each for h, each in zip(hosts[1:], holders, strict=True) if each is not None}


def _busy(name: str, held: Mapping[str, str], wait: float) -> TemporaryError:
    waited = f" and did not end within {wait:g} s" if wait else ""
    return TemporaryError(
        f"another pdctl works on `{name}`{waited}",
        where=", ".join(held),
        detail=[f"held by {holder}" for holder in dict.fromkeys(held.values())],
        hints=["wait for it to end, or give `--lock-wait SECONDS`"],
    )


# --- folders at the top --------------------------------------------------------------------------


def tops_of(config: Config) -> tuple[PurePosixPath, ...]:
    """Folders of the system under which pdctl makes its own, on other machines."""
    place = place_of(config)
    return place.cache, place.temp.parent


def _own_all(hosts: Iterable[Machine], tops: Iterable[PurePosixPath], *, sudo: bool) -> None:
    wanted = tuple(map(str, tops))
    on_all(list(hosts), lambda host: _own(host, wanted, sudo=sudo))


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
