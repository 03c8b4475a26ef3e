"""Configuration to processes, folders and files: the one place that decides what runs where."""

from collections.abc import Iterator, Sequence

from pdctl.base.command import Command
from pdctl.base.process import ProcessSpec, marked
from pdctl.config.model import Config, Ec2Target, ExternalTarget, SshTarget
from pdctl.engine import choices
from pdctl.engine.argv import EnginePaths, EngineSecrets, engine_command
from pdctl.engine.choices import ENGINE_ROLES, EngineRole
from pdctl.engine.environment import engine_python, recipe_of
from pdctl.engine.example import is_archive
from pdctl.engine.models import built_in_dir, built_in_step
from pdctl.engine.plugin_bundle import bundle_files, bundle_name
from pdctl.engine.validate import notices
from pdctl.render.model import (
    NEW_AT_EVERY_START,
    SHOWN,
    Chosen,
    Deployment,
    Place,
    RenderedDir,
    RenderedFile,
    Secrets,
)
from pdctl.render.router import Urls, example_script, router_command, router_files, ttl_file
from pdctl.render.spots import THIS_MACHINE, Spot, hosts_of, spots_of
from pdctl.render.supervise import FOLDER, supervisor_path, supervisor_script

_NO_SECRETS = Secrets()


def render(
    config: Config,
    place: Place,
    chosen: Chosen = SHOWN,
    secrets: Secrets = _NO_SECRETS,
    example: bytes | None = None,
) -> Deployment:
    """The whole deployment. Pure: the same values give the same result.

    Args:
        config: a configuration without problems (`render.check.load_checked`).
        place: where things are on the hosts (`render.place.place_of`).
        chosen: what only a start knows; by default placeholders stand for it.
        secrets: shown as a mask wherever the result is printed.
        example: content of the example proxy's file, where it comes out of an archive; without
            it the file is not among the deployment's.
    """
    recipe = recipe_of(
        config, place.cache, default_python=place.default_python, torch_index=place.torch_index
    )
    external = isinstance(config.target, ExternalTarget)
    python = "" if external else engine_python(config, recipe)
    spots = spots_of(config, chosen)
    engines = [
        _engine(config, spot, place, python, chosen, secrets)
        for spot in spots
        if spot.role != "router"
    ]
    urls = _urls(config, engines)
    cells = {spec.url: spec.cell for spec in engines if spec.cell}
    routers = [
        _spec(
            spot,
            place,
            router_command(config, spot, place, python, urls, secrets.engine_key, cells),
        )
        for spot in spots
        if spot.role == "router"
    ]
    makes_model = choices.is_built_in(config) and not external
    model = config.model.id
    return Deployment(
        name=config.name,
        processes=(*engines, *routers),
        directories=tuple(_directories(config, place, spots)),
        files=(
            *_plugin_files(config, place, spots),
            *_key_files(config, place, spots, secrets),
            *_example_files(config, place, spots, example),
            *_supervisor_files(config, place, spots),
        ),
        recipe=recipe,
        model_step=built_in_step(place.cache, model, python=python) if makes_model else None,
        notices=tuple(notices(config)),
    )


def _model(config: Config, place: Place) -> str:
    if choices.is_built_in(config):
        return str(built_in_dir(place.cache, config.model.id))
    downloaded = choices.source_path(config, place.hub) if place.hub else None
    return config.model.id if downloaded is None else str(downloaded)


def _engine(
    config: Config, spot: Spot, place: Place, python: str, chosen: Chosen, secrets: Secrets
) -> ProcessSpec:
    command = engine_command(
        config,
        _engine_role(spot),
        python=python,
        model=_model(config, place),
        address=spot.address,
        port=spot.port,
        side_channel_port=spot.side_channel_port or 0,
        engine_id=chosen.engine_ids.get(spot.name, NEW_AT_EVERY_START),
        paths=_paths(config, place, spot),
        gpus=spot.gpus,
        secrets=EngineSecrets(secrets.engine_key, secrets.hf_token),
    )
    return _spec(spot, place, command)


def _engine_role(spot: Spot) -> EngineRole:
    return "prefill" if spot.role == "prefill" else "decode"


def _spec(spot: Spot, place: Place, command: Command) -> ProcessSpec:
    # A router that listens on all addresses is still reached at one.
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(spot.address)
    if reached is not None and spot.reached is not None:
        reached = spot.reached
    spec = ProcessSpec(
        role=spot.role,
        index=spot.index,
        host=spot.host,
        address=reached or spot.address,
        port=spot.port,
        side_channel_port=spot.side_channel_port,
        command=command,
        log_name=f"{spot.name}.log",
        binds=spot.address if reached else None,
        cell=spot.cell,
    )
    return marked(spec, place.state)


def _paths(config: Config, place: Place, spot: Spot) -> EnginePaths:
    on = config.engine.plugin != "off"
    return EnginePaths(
        temp=place.temp,
        control=place.state / "control" / spot.name,
        status=place.state / "plugin" / spot.name,
        plugin=place.cache / "plugins" / bundle_name(bundle_files()) if on else None,
        hub=place.hub,
        compiled=place.compiled,
    )


def _urls(config: Config, engines: Sequence[ProcessSpec]) -> Urls:
    if isinstance(config.target, ExternalTarget):
        return {"prefill": config.target.prefill, "decode": config.target.decode}
    return {role: [spec.url for spec in engines if spec.role == role] for role in ENGINE_ROLES}


def _directories(config: Config, place: Place, spots: Sequence[Spot]) -> Iterator[RenderedDir]:
    for host in hosts_of(spots):
        yield RenderedDir(host, place.state)
        yield RenderedDir(host, place.temp)
        if may_supervise(config):
            yield RenderedDir(host, place.state / FOLDER)
    for spot in spots:
        if spot.role != "router":
            paths = _paths(config, place, spot)
            yield RenderedDir(spot.host, paths.control)
            yield RenderedDir(spot.host, paths.status)
        elif config.router.kind == "pdctl":
            yield RenderedDir(spot.host, ttl_file(place, spot).parent)
        elif _copies_example(config):
            yield RenderedDir(spot.host, example_script(config, place).parent)


def _plugin_files(config: Config, place: Place, spots: Sequence[Spot]) -> Iterator[RenderedFile]:
    if config.engine.plugin == "off":
        return
    files = bundle_files()
    folder = place.cache / "plugins" / bundle_name(files)
    for host in hosts_of([spot for spot in spots if spot.role != "router"]):
        for name, content in files.items():
            yield RenderedFile(host, folder / name, content)


def _key_files(
    config: Config, place: Place, spots: Sequence[Spot], secrets: Secrets
) -> Iterator[RenderedFile]:
    """Keys go to routers on other hosts; on this machine the configured files are read."""
    for spot in spots:
        if spot.role != "router" or spot.host == THIS_MACHINE:
            continue
        files = router_files(config, place, spot)
        for path, key in (
            (files.client_keys, secrets.client_keys),
            (files.engine_key, secrets.engine_key),
        ):
            if path is not None:
                content = b"" if key is None else key.value.encode()
                yield RenderedFile(spot.host, path, content, mode=0o600, secret=True)


def _example_files(
    config: Config, place: Place, spots: Sequence[Spot], content: bytes | None
) -> Iterator[RenderedFile]:
    for spot in spots:
        if spot.role == "router" and content is not None and _copies_example(config):
            yield RenderedFile(spot.host, example_script(config, place), content)


def _supervisor_files(
    config: Config, place: Place, spots: Sequence[Spot]
) -> Iterator[RenderedFile]:
    if may_supervise(config):
        for host in hosts_of(spots):
            yield RenderedFile(host, supervisor_path(place), supervisor_script())


def may_supervise(config: Config) -> bool:
    """Whether processes may be kept running by pdctl's own supervisor."""
    target = config.target
    return isinstance(target, SshTarget | Ec2Target) and target.supervision != "systemd"


def _copies_example(config: Config) -> bool:
    source = config.router.source
    return config.router.kind == "vllm-example" and source is not None and is_archive(source)
