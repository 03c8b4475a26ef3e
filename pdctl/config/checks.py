"""What several keys say together, as far as no knowledge of vLLM is needed to judge it."""

import ipaddress
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pdctl.base.problems import Loc, Problem
from pdctl.config.model import (
    SMALL_MODEL,
    TINY_MODEL,
    Config,
    Ec2Target,
    ExternalTarget,
    LocalTarget,
    Role,
    SshHost,
    SshTarget,
)

Found = Iterator[Problem]


def problems(config: Config) -> list[Problem]:
    """Every contradiction within the file."""
    return [problem for check in _CHECKS for problem in check(config)]


# --- the same port twice -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Ports:
    """A run of ports that one key takes on one machine."""

    machine: str
    first: int
    count: int
    loc: Loc

    def __str__(self) -> str:
        last = self.first + self.count - 1
        return str(self.first) if self.count == 1 else f"{self.first} to {last}"

    def meets(self, other: "_Ports") -> bool:
        if self.machine != other.machine or 0 in {self.first, other.first}:
            return False
        return self.first < other.first + other.count and other.first < self.first + self.count


def _ports(config: Config) -> Found:
    taken: list[_Ports] = []
    for ports in _listeners(config):
        other = next((other for other in taken if ports.meets(other)), None)
        if other is not None and _is_given(config, other.loc) > _is_given(config, ports.loc):
            yield _clash(other, ports)  # told at the key that somebody wrote
        elif other is not None:
            yield _clash(ports, other)
        taken.append(ports)


def _is_given(config: Config, loc: Loc) -> bool:
    """True for a key that is in the file, rather than a default."""
    value: Any = config
    for part in loc:
        if isinstance(part, str) and part not in value.model_fields_set:
            return False
        value = value[part] if isinstance(part, int) else getattr(value, part)
    return True


def _clash(ports: _Ports, other: _Ports) -> Problem:
    here = f"ports {ports} are" if ports.count > 1 else f"port {ports} is"
    there = f", which takes {other}" if other.count > 1 else ""
    message = f"{here} also taken by `{_key(other.loc)}`{ports.machine}{there}"
    return Problem(ports.loc, message, _OTHER_PORT)


def _key(loc: Loc) -> str:
    return Problem(loc, "").key


_OTHER_PORT = "choose another port"


def _listeners(config: Config) -> Iterator[_Ports]:
    match config.target:
        case LocalTarget():
            yield from _local_listeners(config, config.target)
        case SshTarget():
            yield from _ssh_listeners(config, config.target)
        case Ec2Target():
            yield from _ec2_listeners(config, config.target)


def _local_listeners(config: Config, target: LocalTarget) -> Iterator[_Ports]:
    for role, ports in (("prefill", target.prefill), ("decode", target.decode)):
        loc: Loc = ("target", role)
        yield _Ports("", ports.port, 1, (*loc, "port"))
        side = ports.side_channel_port
        yield _Ports("", side, _ranks(config, role), (*loc, "side_channel_port"))
    yield _Ports("", config.router.port, config.router.replicas, ("router", "port"))


def _ranks(config: Config, role: str) -> int:
    """Side-channel ports of one engine: vLLM adds the data-parallel rank to the port."""
    own: Role = config.prefill if role == "prefill" else config.decode
    return own.data_parallel_size or 1


def _ssh_listeners(config: Config, target: SshTarget) -> Iterator[_Ports]:
    for role, index, host in _hosts(target):
        loc: Loc = ("target", "hosts", role, index)
        machine = f" on {_machine(host)}"
        default = config.router.port if role == "router" else target.port
        yield _Ports(machine, host.port or default, 1, (*loc, "port"))
        if role != "router":
            side = host.side_channel_port or target.side_channel_port
            yield _Ports(machine, side, _ranks(config, role), (*loc, "side_channel_port"))
    if not target.hosts.router:
        machine = f" on {_machine(target.hosts.prefill[0])}"
        yield _Ports(machine, config.router.port, 1, ("router", "port"))


def _ec2_listeners(config: Config, target: Ec2Target) -> Iterator[_Ports]:
    where = " on the same host"
    yield _Ports(where, target.port, 1, ("target", "port"))
    ranks = max(_ranks(config, "prefill"), _ranks(config, "decode"))
    yield _Ports(where, target.side_channel_port, ranks, ("target", "side_channel_port"))
    if target.router is None and not target.instance_ids.get("router"):
        yield _Ports(where, config.router.port, 1, ("router", "port"))


def _hosts(target: SshTarget) -> Iterator[tuple[str, int, SshHost]]:
    for role in ("prefill", "decode", "router"):
        for index, host in enumerate(getattr(target.hosts, role)):
            yield role, index, host


def _machine(host: SshHost) -> str:
    # What the other hosts call it: two hosts behind one forwarded address are two machines.
    return _as_one(host.private_address or host.address)


def _as_one(address: str) -> str:
    """The same for all ways to write a name or an address."""
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return address.lower().removesuffix(".")


# --- ssh -----------------------------------------------------------------------------------------


def _ssh(config: Config) -> Found:
    if not isinstance(config.target, SshTarget):
        return
    yield from _logins(config.target)
    yield from _downloads(config, config.target)
    engines = [each for each in _hosts(config.target) if each[0] != "router"]
    for position, (role, index, host) in enumerate(engines):
        loc: Loc = ("target", "hosts", role, index)
        if host.gpus is not None and len(set(host.gpus)) < len(host.gpus):
            yield Problem((*loc, "gpus"), "a GPU is listed twice")
        for other_role, other_index, other in engines[:position]:
            if _machine(other) == _machine(host):
                other_key = _key(("target", "hosts", other_role, other_index))
                yield from _shared_gpus(host, other, loc, f"`{other_key}`")
    yield from _cells(config.target)
    yield from _routers(config, len(config.target.hosts.router), ("target", "hosts", "router"))


def _downloads(config: Config, target: SshTarget) -> Found:
    if target.efa_installer_sha256 is not None and target.efa_installer is None:
        loc: Loc = ("target", "efa_installer_sha256")
        yield Problem(loc, "without `efa_installer` nothing is installed", "name the version too")
    path = config.model.id.startswith(("/", "./", "../", "~"))
    if target.model_source is not None and (path or config.model.id in (TINY_MODEL, SMALL_MODEL)):
        message = "the model is there without a download, as `model.id` says"
        yield Problem(("target", "model_source"), message, "remove it, or name the model's id")


def _cells(target: SshTarget) -> Found:
    """A cell is of use with both roles only."""
    roles = {"prefill": target.hosts.prefill, "decode": target.hosts.decode}
    for role, other in (("prefill", "decode"), ("decode", "prefill")):
        partners = {host.cell for host in roles[other]}
        for index, host in enumerate(roles[role]):
            if host.cell not in partners:
                loc: Loc = ("target", "hosts", role, index)
                cell = f"cell `{host.cell}`" if host.cell else "its cell (that of hosts without)"
                hint = f"give a {other} host the same `cell`, or none of them one"
                yield Problem(loc, f"{cell} has no {other} host", hint)
    for index, host in enumerate(target.hosts.router):
        if host.cell is not None:
            at: Loc = ("target", "hosts", "router", index, "cell")
            yield Problem(at, "a router serves all cells", "remove it")


_SSH_PORT = 22


def _logins(target: SshTarget) -> Found:
    """A host is logged in to once, so it is written in one way wherever it stands."""
    seen: dict[tuple[str, int], tuple[SshHost, str]] = {}
    for role, index, host in _hosts(target):
        loc: Loc = ("target", "hosts", role, index)
        port = host.ssh_port or target.access.port or _SSH_PORT
        first, name = seen.setdefault((_as_one(host.address), port), (host, f"`{_key(loc)}`"))
        for key in ("address", "ssh_port"):
            if getattr(first, key) != getattr(host, key):
                # Else it would be prepared twice at the same time.
                message = f"is the same host as {name}, with `{key}` written in another way"
                yield Problem((*loc, key), message, "write a host in one way wherever it stands")
        for key in ("user", "key_file"):
            if getattr(first, key) != getattr(host, key):
                message = f"is the same host as {name}, with another `{key}`"
                yield Problem((*loc, key), message, "log in to a host in one way")


def _shared_gpus(host: SshHost, other: SshHost, loc: Loc, name: str) -> Found:
    if host.gpus is None or other.gpus is None:
        yield Problem(
            (*loc, "gpus"),
            f"is on the same host as {name}, and not both say which GPUs they use",
            "give each its own `gpus`, or another host",
        )
    elif shared := sorted(set(host.gpus) & set(other.gpus)):
        gpus = ", ".join(map(str, shared))
        several = "GPUs" if len(shared) > 1 else "GPU"
        yield Problem((*loc, "gpus"), f"{several} {gpus} also belong{_s(shared)} to {name}")


def _s(things: Sequence[object]) -> str:
    return "s" if len(things) == 1 else ""


def _routers(config: Config, hosts: int, loc: Loc) -> Found:
    replicas = config.router.replicas
    if not hosts and replicas > 1:
        message = f"{replicas} routers need as many router hosts, and there are none"
        yield Problem(("router", "replicas"), message, f"add `{_key(loc)}`")
    elif hosts and replicas != hosts:
        yield Problem(loc, f"{_count(hosts, 'router host')}, but `router.replicas` is {replicas}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# --- external ------------------------------------------------------------------------------------


def _external(config: Config) -> Found:
    if not isinstance(config.target, ExternalTarget):
        return
    seen: dict[tuple[str, int], str] = {}
    for role, urls in (("prefill", config.target.prefill), ("decode", config.target.decode)):
        for index, url in enumerate(urls):
            loc: Loc = ("target", role, index)
            name = f"`{_key(loc)}`"
            host, port = _endpoint(url)
            if (host, port) in seen:
                yield Problem(loc, f"is the same engine as {seen[host, port]}")
            elif host == "localhost" and port in _router_ports(config):
                yield Problem(
                    ("router", "port"), f"port {port} is also taken by {name}", _OTHER_PORT
                )
            seen.setdefault((host, port), name)


def _router_ports(config: Config) -> range:
    first = config.router.port
    return range(first, first + config.router.replicas) if first else range(0)


def _endpoint(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    return ("localhost" if is_loopback(host) else host), port


# --- ec2 -----------------------------------------------------------------------------------------


def _ec2(config: Config) -> Found:
    target = config.target
    if not isinstance(target, Ec2Target):
        return
    for index, zone in enumerate(target.zones):
        if zone in target.zones[:index]:
            yield Problem(("target", "zones", index), f"zone `{zone}` is listed twice")
        elif not zone.startswith(target.region) or zone == target.region:
            message = f"zone `{zone}` is not in `{target.region}`"
            yield Problem(("target", "zones", index), message, f"such as `{target.region}a`")
    yield from _capacity(target)
    yield from _allow_from(target)
    yield from _instances(target)
    adopted = target.instance_ids.get("router")
    if adopted:
        yield from _routers(config, len(adopted), ("target", "instance_ids", "router"))
    else:
        count = target.router.count if target.router is not None else 0
        yield from _routers(config, count, ("target", "router"))


def _capacity(target: Ec2Target) -> Found:
    capacity = target.capacity
    loc: Loc = ("target", "capacity")
    reserved = capacity.kind in {"odcr", "capacity-block"}
    if reserved and capacity.reservation_id is None:
        yield Problem((*loc, "kind"), f"`{capacity.kind}` needs `reservation_id`")
    if not reserved and capacity.reservation_id is not None:
        yield Problem(
            (*loc, "reservation_id"),
            f"is not used by `{capacity.kind}`",
            "set `kind: odcr` or `kind: capacity-block`, or remove it",
        )


def _allow_from(target: Ec2Target) -> Found:
    for index, text in enumerate(target.network.allow_from):
        loc: Loc = ("target", "network", "allow_from", index)
        try:
            network = ipaddress.ip_network(text, strict=False)
        except ValueError:
            yield Problem(loc, f"found `{text}`, expected a CIDR such as `203.0.113.0/24`")
            continue
        if "/" not in text or network.network_address != ipaddress.ip_interface(text).ip:
            yield Problem(loc, f"`{text}` is not a network", f"write `{network}`")
        elif network.prefixlen == 0 and not target.network.force_open:
            yield Problem(
                loc,
                f"`{text}` opens SSH and the router to the whole internet",
                "name your own network, or set `force_open: true`",
            )


def _instances(target: Ec2Target) -> Found:
    seen: set[str] = set()
    for role, ids in target.instance_ids.items():
        loc: Loc = ("target", "instance_ids", role)
        sized = getattr(target, role)
        count = sized.count if sized is not None else len(ids)
        if len(ids) != count:
            message = f"{_count(len(ids), 'instance')}, but `target.{role}.count` is {count}"
            yield Problem(loc, message)
        for index, instance in enumerate(ids):
            if instance in seen:
                yield Problem((*loc, index), f"`{instance}` is listed twice")
            seen.add(instance)


# --- router --------------------------------------------------------------------------------------


def _router(config: Config) -> Found:
    router = config.router
    if router.replicas > 1 and router.store == "memory":
        yield Problem(
            ("router", "replicas"),
            f"{router.replicas} routers with a store each would use a handle twice",
            "set `store: redis://host:port/db`",
        )
    if not (is_loopback(router.host) or router.api_keys_file or router.allow_unauthenticated):
        yield Problem(
            ("router", "host"),
            f"`{router.host}` is reachable from elsewhere, and clients need no API key",
            "set `api_keys_file`, or `allow_unauthenticated: true`",
        )
    if router.renew_idle and config.engine.plugin == "off":
        message = "decode cannot be asked to keep turns for longer without pdctl's plugin"
        yield Problem(("router", "renew_idle"), message, "remove one of the two")
    if router.tenant_salt and not router.api_keys_file:
        message = "has no effect without API keys, which tell tenants apart"
        yield Problem(("router", "tenant_salt"), message, "set `api_keys_file`, or remove it")


_PDCTL_ONLY = (
    "ttl",
    "renew_idle",
    "store",
    "api_keys_file",
    "tenant_salt",
    "reuse_share",
    "audit_share",
    "audit_floor",
    "request_log",
    "request_log_mib",
    "request_log_keep",
    "otlp_endpoint",
    "limits",
    "replicas",
)


def _router_kind(config: Config) -> Found:
    router = config.router
    if router.kind == "pdctl" and router.source is not None:
        yield Problem(("router", "source"), "is used by `kind: vllm-example` only", "remove it")
    if router.kind != "vllm-example":
        return
    if router.source is None:
        yield Problem(
            ("router", "kind"),
            "`vllm-example` needs `source`: a checkout or source distribution of vLLM",
        )
    if isinstance(config.target, ExternalTarget):
        for role, urls in (("prefill", config.target.prefill), ("decode", config.target.decode)):
            for index, url in enumerate(urls):
                if url.startswith("https:"):
                    said = "`vllm-example` speaks plain HTTP to the engines"
                    yield Problem(("target", role, index), said)
    for key in _PDCTL_ONLY:
        if key in router.model_fields_set:
            yield Problem(
                ("router", key), "has no effect on `kind: vllm-example`", "remove it", on_key=True
            )


def is_loopback(host: str) -> bool:
    """True when only this machine can reach a server that listens on `host`."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# --- addresses and paths -------------------------------------------------------------------------


def _on_other_hosts(config: Config) -> Found:
    """Relative paths mean something here, not on hosts that pdctl reaches from here."""
    if not isinstance(config.target, SshTarget | Ec2Target):
        return
    paths = {
        ("router", "request_log"): config.router.request_log,
        ("target", "base_dir"): config.target.base_dir,
        ("target", "model_dir"): getattr(config.target, "model_dir", None),
    }
    for loc, path in paths.items():
        if path is not None and not str(path).startswith("/"):
            yield Problem(loc, f"`{path}` is a path on another host", "write an absolute path")


def _local_host(config: Config) -> Found:
    if isinstance(config.target, LocalTarget) and config.target.host in {"0.0.0.0", "::"}:
        yield Problem(
            ("target", "host"),
            f"`{config.target.host}` is no address that engines can reach each other at",
            "write 127.0.0.1, or this machine's own address",
        )


_CHECKS: tuple[Callable[[Config], Found], ...] = (
    _ports,
    _ssh,
    _external,
    _ec2,
    _router,
    _router_kind,
    _on_other_hosts,
    _local_host,
)
