"""Where each process goes: host, address for its peers, ports as configured."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pdctl.base.process import RoleName
from pdctl.config.model import Config, Ec2Target, LocalTarget, SshHost, SshTarget
from pdctl.engine.choices import ENGINE_ROLES
from pdctl.render.model import Chosen

THIS_MACHINE = "localhost"
"""Name of the host of local processes, as `targets.local.LocalHost` has it."""


@dataclass(frozen=True)
class Spot:
    """Where one process goes."""

    role: RoleName
    index: int
    host: str
    address: str
    port: int
    side_channel_port: int | None = None
    gpus: tuple[int, ...] = ()
    reached: str | None = None
    """Where it is reached when it listens on all addresses."""
    cell: str = ""

    @property
    def name(self) -> str:
        """`prefill-0`."""
        return f"{self.role}-{self.index}"


def spots_of(config: Config, chosen: Chosen) -> list[Spot]:
    """All of them, prefill first, routers last, with what a start has chosen."""
    return [_settled(spot, chosen) for spot in _spots(config)]


def hosts_of(spots: Sequence[Spot]) -> list[str]:
    """The hosts, each once, in order."""
    return list(dict.fromkeys(spot.host for spot in spots))


def _settled(spot: Spot, chosen: Chosen) -> Spot:
    side = spot.side_channel_port
    known = chosen.addresses.get(spot.host)
    router = spot.role == "router"  # it listens where the configuration says
    return replace(
        spot,
        address=spot.address if router or known is None else known,
        reached=known if router and known is not None else spot.reached,
        port=chosen.ports.get(spot.name, spot.port),
        side_channel_port=None if side is None else chosen.side_channel_ports.get(spot.name, side),
    )


def _spots(config: Config) -> Iterator[Spot]:
    target = config.target
    if isinstance(target, LocalTarget):
        for role in ENGINE_ROLES:
            ports = target.prefill if role == "prefill" else target.decode
            yield Spot(role, 0, THIS_MACHINE, target.host, ports.port, ports.side_channel_port)
        yield from _routers_here(config)
    elif isinstance(target, SshTarget):
        yield from _on_ssh_hosts(config, target)
    elif isinstance(target, Ec2Target):
        yield from _on_ec2_hosts(config, target)
    else:
        yield from _routers_here(config)


def _routers_here(config: Config) -> Iterator[Spot]:
    for index in range(config.router.replicas):
        port = config.router.port + index if config.router.port else 0
        yield Spot("router", index, THIS_MACHINE, config.router.host, port)


def _on_ssh_hosts(config: Config, target: SshTarget) -> Iterator[Spot]:
    for role in ENGINE_ROLES:
        hosts = target.hosts.prefill if role == "prefill" else target.hosts.decode
        for index, host in enumerate(hosts):
            yield Spot(
                role,
                index,
                name_of_host(host),
                _private(host),
                host.port or target.port,
                host.side_channel_port or target.side_channel_port,
                tuple(host.gpus or ()),
                cell=host.cell or "",
            )
    if target.hosts.router:
        for index, host in enumerate(target.hosts.router):
            port = host.port or config.router.port
            yield _ssh_router(config, host, index, port)
    else:
        yield _ssh_router(config, target.hosts.prefill[0], 0, config.router.port)


def _ssh_router(config: Config, host: SshHost, index: int, port: int) -> Spot:
    name = name_of_host(host)
    return Spot("router", index, name, config.router.host, port, reached=_private(host))


def name_of_host(host: SshHost) -> str:
    """What a host is called in a deployment; one address may lead to several by their ports."""
    if host.ssh_port is None:
        return host.address
    return (
        f"[{host.address}]:{host.ssh_port}"
        if ":" in host.address
        else f"{host.address}:{host.ssh_port}"
    )


def host_of_name(name: str) -> SshHost:
    """The least that a name says of a host: where it is reached."""
    address, port = name, None
    if name.startswith("["):
        address, _, port = name[1:].partition("]:")
    elif name.count(":") == 1:
        address, port = name.split(":")
    return SshHost(address=address, ssh_port=int(port) if port else None)


def _private(host: SshHost) -> str:
    return host.private_address or host.address


def _on_ec2_hosts(config: Config, target: Ec2Target) -> Iterator[Spot]:
    for role in ENGINE_ROLES:
        adopted = target.instance_ids.get(role, [])
        count = len(adopted) or (target.prefill if role == "prefill" else target.decode).count
        for index in range(count):
            name = f"{role}-{index}"
            yield Spot(
                role, index, name, f"<address of {name}>", target.port, target.side_channel_port
            )
    adopted = target.instance_ids.get("router", [])
    count = len(adopted) or (target.router.count if target.router else 0)
    for index in range(count):
        yield Spot("router", index, f"router-{index}", config.router.host, config.router.port)
    if not count:
        yield Spot("router", 0, "prefill-0", config.router.host, config.router.port)
