"""What rendering takes and gives, as plain values. `render.deployment.render` does the work:

    render(config, place, chosen=SHOWN, secrets=Secrets()) -> Deployment

It is pure: the same values give the same deployment, so what `pdctl render` shows is what `up`
starts, but for what only a start can know (`Chosen`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from pdctl.base.command import Secret
from pdctl.base.process import ProcessSpec
from pdctl.engine.install import InstallRecipe, InstallStep

NEW_AT_EVERY_START = "<new at every start>"
"""Stands for the engine id until a start makes one."""


@dataclass(frozen=True)
class Place:
    """Where things are on the hosts.

    Attributes:
        cache: what can be made again: engine environments, models, plugin bundles.
        state: what belongs to this deployment: control files, logs, keys.
        temp: working directory, temporary files and Unix sockets of the engines; a short path.
        default_python: builds engine environments when the configuration names no interpreter.
        pdctl_python: interpreter that has pdctl, for the router.
        torch_index: an extra package index for torch, or None.
        hub: where engines keep downloaded models; None for the user's usual place.
        compiled: where engines keep what they compile; None for the user's usual places.
    """

    cache: PurePosixPath
    state: PurePosixPath
    temp: PurePosixPath
    default_python: str
    pdctl_python: str
    torch_index: str | None = None
    hub: PurePosixPath | None = None
    compiled: PurePosixPath | None = None


@dataclass(frozen=True)
class Chosen:
    """What only a start knows, by process name such as `prefill-0`; `addresses` by host.

    Whatever is missing shows as configured: port 0, a placeholder for the rest.

    Attributes:
        ports: HTTP ports, also of `router-0`.
        side_channel_ports: NIXL handshake ports of the engines.
        engine_ids: new at every start, or the peer keeps talking to the dead engine (FACTS T2).
        addresses: of hosts that did not exist when the configuration was written (ec2).
    """

    ports: Mapping[str, int] = field(default_factory=dict)
    side_channel_ports: Mapping[str, int] = field(default_factory=dict)
    engine_ids: Mapping[str, str] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)


SHOWN = Chosen()
"""Nothing chosen: what `pdctl render` shows."""


@dataclass(frozen=True)
class Secrets:
    """What reaches processes through their environment and is never shown or stored.

    Attributes:
        engine_key: the key in `engine.api_key_file`; None shows a mask where one is configured.
        client_keys: content of `router.api_keys_file`, for routers on other hosts.
        hf_token: the hub token, for engines on other hosts. On this machine it is inherited.
    """

    engine_key: Secret | None = None
    client_keys: Secret | None = None
    hf_token: Secret | None = None


@dataclass(frozen=True)
class RenderedDir:
    """A directory that must be there before the processes start.

    `private`: mode 0700 and owned by the user who runs pdctl; found otherwise, do not use it.
    """

    host: str
    path: PurePosixPath
    private: bool = True


@dataclass(frozen=True)
class RenderedFile:
    """A file that must be there before the processes start. `secret`: never show its content."""

    host: str
    path: PurePosixPath
    content: bytes = field(repr=False)
    mode: int = 0o644
    secret: bool = False


@dataclass(frozen=True)
class Deployment:
    """A whole deployment, ready to run.

    Attributes:
        name: of the deployment.
        processes: in the order they start: prefill, decode, router.
        directories, files: to make before that; the plugin bundle's files are among them.
        recipe: the engine environment to install, the same on every engine host; None when the
            user's own is used.
        model_step: makes the built-in model; None for any other model.
        notices: what the user should know, in sentences.
    """

    name: str
    processes: tuple[ProcessSpec, ...]
    directories: tuple[RenderedDir, ...]
    files: tuple[RenderedFile, ...]
    recipe: InstallRecipe | None
    model_step: InstallStep | None
    notices: tuple[str, ...] = ()
