"""What `up`, `plan` and `down` need when everything runs on this machine."""

import os
from pathlib import Path
from secrets import token_urlsafe

from pdctl.base import paths
from pdctl.base.command import Secret
from pdctl.base.errors import NotFoundError, UsageError
from pdctl.base.events import Listener, ignore
from pdctl.base.explain import ADMIN_TENANT
from pdctl.config.model import Config, Ec2Target, ExternalTarget, SshTarget
from pdctl.deploy.ec2hosts import with_addresses
from pdctl.deploy.prepare.everything import tasks_of
from pdctl.deploy.prepare.model import hub_token
from pdctl.deploy.survey import Wanted
from pdctl.deploy.ttl import Keys
from pdctl.deploy.world import World
from pdctl.engine import choices
from pdctl.engine.example import is_archive, read_from_archive
from pdctl.observe.endpoints import tenant_key
from pdctl.render.deployment import render
from pdctl.render.model import SHOWN, Secrets
from pdctl.render.place import place_of
from pdctl.render.spots import THIS_MACHINE
from pdctl.state.store import explained, make_private
from pdctl.targets.local import LocalHost


def this_machine(listen: Listener = ignore) -> World:
    """The world of a local deployment: one host."""
    return World({THIS_MACHINE: LocalHost(THIS_MACHINE)}, listen)


def wanted_of(config: Config, file: Path, secrets: Secrets, *, verify: bool = True) -> Wanted:
    """What `up` is asked for, rendered for the hosts it is about.

    Raises:
        NotFoundError: the archive that has the example proxy cannot be read.
    """
    place = place_of(config)
    example = read_example(config)
    shown = render(config, place, SHOWN, secrets, example)
    return Wanted(
        config=config,
        file=file,
        marks=f"{place.state}/",
        rendered=lambda chosen: render(
            config, place, with_addresses(config, chosen), secrets, example
        ),
        place=place,
        verify=verify,
        keys=keys_of(secrets),
        tasks=tasks_of(config, place, shown, secrets),
    )


def keys_of(secrets: Secrets) -> Keys:
    """What engines and routers want to be shown."""
    clients = secrets.client_keys
    return Keys(
        engine=secrets.engine_key.value if secrets.engine_key else None,
        admin=tenant_key(clients.value, ADMIN_TENANT) if clients else None,
    )


def read_secrets(config: Config) -> Secrets:
    """The keys in the files that the configuration names.

    Raises:
        NotFoundError: a file cannot be read; says which key names it.
    """
    configured = config.engine.api_key_file
    made = made_key(config.name) if configured is None and choices.asks_key(config) else None
    return Secrets(
        engine_key=_key("engine.api_key_file", configured, first_line=True)
        or (_key("the engines' key", made, first_line=True) if made and made.exists() else None),
        client_keys=_key("router.api_keys_file", config.router.api_keys_file),
        hf_token=hub_token() if isinstance(config.target, SshTarget | Ec2Target) else None,
    )


def made_key(name: str) -> Path:
    """Where the key is that `up` makes for engines which ask for one, when the file names none."""
    return paths.deployment_dir(name) / "keys" / "engine"


def make_key(config: Config) -> None:
    """Make that key, unless it is there or none is needed.

    Raises:
        PdctlError: it cannot be written.
    """
    file = made_key(config.name)
    if config.engine.api_key_file is not None or not choices.asks_key(config) or file.exists():
        return
    with explained(file):
        make_private(file.parent)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as written:
            written.write(token_urlsafe(32) + "\n")


def read_example(config: Config) -> bytes | None:
    """The example proxy's file, where it has to come out of an archive; None where not.

    Raises:
        NotFoundError: it cannot be read, or has no such file.
    """
    source = config.router.source
    if config.router.kind != "vllm-example" or source is None or not is_archive(source):
        return None
    return read_from_archive(source)


def _key(key: str, file: Path | None, *, first_line: bool = False) -> Secret | None:
    if file is None:
        return None
    try:
        text = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise NotFoundError(f"`{key}` cannot be read: {reason}", where=str(file)) from error
    if not text:
        raise NotFoundError(f"`{key}` is empty", where=str(file), expected="a key")
    return Secret(text.splitlines()[0].strip() if first_line else text)


def require_reachable(config: Config, command: str) -> None:
    """Refuse a target on which there is nothing to bring up or down.

    Raises:
        UsageError: something else runs the engines.
    """
    if not isinstance(config.target, ExternalTarget):
        return
    raise UsageError(
        f"`pdctl {command}` has nothing to do: something else runs these engines",
        where="key `target.kind`",
        hints=[
            "`pdctl render --role router --format shell` shows the router's command line",
            "`pdctl verify` works on engines and a router that run",
        ],
    )
