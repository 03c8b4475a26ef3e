"""What a configuration asks of each of its hosts. Pure."""

from collections.abc import Collection, Iterator, Sequence

from pdctl.base.hostfacts import HostWant, WantedPath, WantedPeer, WantedPort
from pdctl.base.instances import INSTANCE_TYPES
from pdctl.base.process import ProcessSpec
from pdctl.config.model import Config, Ec2Target, SshTarget
from pdctl.engine import choices
from pdctl.engine.choices import EngineRole
from pdctl.render.model import Deployment, Place

_STATE_BYTES = 2**30  # logs and control files
_ENV_OF_TRANSPORT = ("FI_", "NIXL_", "UCX_", "RDMAV_", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")


def wants_of(
    config: Config, place: Place, deployment: Deployment, *, started: Collection[str] = ()
) -> dict[str, HostWant]:
    """What is asked of every host, by its name.

    Args:
        place: where things are on the hosts (`render.place.place_of`).
        deployment: as rendered, with the ports that a start chose where one did.
        started: names of the processes that were started; only their ports are connected to.
    """
    hosts: dict[str, list[ProcessSpec]] = {}
    for spec in deployment.processes:
        hosts.setdefault(spec.host, []).append(spec)
    running = [spec for spec in deployment.processes if spec.name in started]
    return {host: _want(config, place, deployment, specs, running) for host, specs in hosts.items()}


def _want(
    config: Config,
    place: Place,
    deployment: Deployment,
    specs: Sequence[ProcessSpec],
    running: Sequence[ProcessSpec],
) -> HostWant:
    engines = [spec for spec in specs if spec.role != "router"]
    kind = _instance_type(config, specs)
    on_cpu = choices.on_cpu(config)
    known = INSTANCE_TYPES.get(kind) if kind else None
    return HostWant(
        target=config.target.kind,
        roles=tuple(dict.fromkeys(spec.role for spec in specs)),
        backends=choices.backends(config),
        on_cpu=on_cpu,
        gpus=_gpus(config, engines),
        instance_type=kind,
        efa=known.efa if known and engines else None,
        engine_python=engines[0].command.argv()[0] if engines else None,
        engine_env=_transport_env(engines),
        units=isinstance(config.target, SshTarget | Ec2Target),
        kv_bytes=sum(_kv_bytes(config, spec) for spec in engines) if on_cpu else 0,
        tensor_parallel=max([_tensor_parallel(config, spec) for spec in engines], default=1),
        marks=f"{place.state}/",
        paths=tuple(_paths(config, place, deployment, engines)),
        ports=tuple(_ports(specs)),
        peers=tuple(_peers(specs, running)),
    )


def _role(spec: ProcessSpec) -> EngineRole:
    return "prefill" if spec.role == "prefill" else "decode"


def _instance_type(config: Config, specs: Sequence[ProcessSpec]) -> str | None:
    """A host's type, as its first process has it configured; routers may have one of their own."""
    target = config.target
    if not isinstance(target, Ec2Target):
        return None
    role = specs[0].role
    own = {"prefill": target.prefill, "decode": target.decode, "router": target.router}[role]
    return (own.instance_type if own else None) or target.instance_type


def _gpus(config: Config, engines: Sequence[ProcessSpec]) -> int | None:
    device = choices.buffer_device(config)
    if device == "cpu" or not engines:
        return 0
    if device is None:
        return None  # an engine of the user's own says itself what it computes on
    return max(_gpus_of(config, spec) for spec in engines)


def _gpus_of(config: Config, spec: ProcessSpec) -> int:
    """How many GPUs the host must have for one engine. Those that name none share the first ones,
    as on a machine with one GPU that tries both roles."""
    named = spec.command.masked_environ().get("CUDA_VISIBLE_DEVICES", "")
    indices = [int(each) for each in named.split(",") if each.strip().isdigit()]
    if indices:
        return max(indices) + 1
    return _tensor_parallel(config, spec) * _copies(config, spec)


def _tensor_parallel(config: Config, spec: ProcessSpec) -> int:
    return choices.tensor_parallel_size(config, _role(spec))


def _copies(config: Config, spec: ProcessSpec) -> int:
    return choices.role_of(config, _role(spec)).data_parallel_size or 1


def _kv_bytes(config: Config, spec: ProcessSpec) -> int:
    gib = int(choices.role_of(config, _role(spec)).cpu_kv_cache_gib or 1)
    return gib * 2**30 * _copies(config, spec)


def _transport_env(engines: Sequence[ProcessSpec]) -> dict[str, str]:
    """The part of the engines' environment that decides about the transport; nothing secret."""
    if not engines:
        return {}
    shown = engines[0].command.masked_environ()
    return {name: value for name, value in shown.items() if name.startswith(_ENV_OF_TRANSPORT)}


def _paths(
    config: Config, place: Place, deployment: Deployment, engines: Sequence[ProcessSpec]
) -> Iterator[WantedPath]:
    recipe = deployment.recipe
    if engines and recipe is not None:
        yield WantedPath(
            "engines", str(recipe.layout.root), recipe.needed_bytes, str(recipe.layout.complete)
        )
    if engines and place.hub is not None and not choices.is_offline(config):
        yield WantedPath("models", str(place.hub), _STATE_BYTES)
    yield WantedPath("state and logs", str(place.state), _STATE_BYTES)
    yield WantedPath("temporary files", str(place.temp), _TEMP_BYTES)


_TEMP_BYTES = 64 * 2**20


def _ports(specs: Sequence[ProcessSpec]) -> Iterator[WantedPort]:
    for spec in specs:
        address = spec.binds or spec.address
        if spec.port:
            yield WantedPort(spec.name, "http", address, spec.port)
        if spec.side_channel_port:
            yield WantedPort(spec.name, "side channel", address, spec.side_channel_port)


def _peers(specs: Sequence[ProcessSpec], running: Sequence[ProcessSpec]) -> Iterator[WantedPeer]:
    """Who talks to whom: engines to the other role's side channel, routers to engines."""
    roles = {spec.role for spec in specs}
    for other in running:
        if other.role == "router":
            continue
        if "router" in roles and other.port:
            yield WantedPeer(other.name, other.host, "http", other.address, other.port)
        wants_side = any(role not in ("router", other.role) for role in roles)
        if wants_side and other.side_channel_port:
            yield WantedPeer(
                other.name, other.host, "side channel", other.address, other.side_channel_port
            )
