"""A rendered deployment as text: launch scripts, systemd units, or one JSON document.

Secrets never get into any of them. Templates fail on a name that is not there, and every value
goes through the quoting of the place it lands in.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import PurePosixPath
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pdctl.base.command import MASK, Secret
from pdctl.base.paths import templates_dir
from pdctl.base.process import ProcessSpec, RoleName
from pdctl.config.model import Config, Ec2Target, ExternalTarget, SshTarget
from pdctl.engine.install import InstallStep
from pdctl.render.model import NEW_AT_EVERY_START, Deployment

Format = Literal["shell", "systemd", "json"]

UNIT_FOLDER = "/etc/systemd/system"
SETTINGS_FOLDER = "/etc/pdctl"
"""Where units go, and where their environment and secrets go."""


@dataclass(frozen=True)
class Text:
    """One file of the output: a name without folders, what is in it, its mode."""

    name: str
    content: str
    mode: int = 0o644


def texts(
    deployment: Deployment, config: Config, form: Format, *, role: RoleName | None = None
) -> list[Text]:
    """The files of a format, in the order the processes start.

    Args:
        deployment: from `render.deployment.render`.
        config: what it was rendered from.
        form: which format.
        role: only this role's processes; None for all.
    """
    processes = [spec for spec in deployment.processes if role in (None, spec.role)]
    if form == "json":
        document = as_json(deployment, processes)
        content = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        return [Text(f"{deployment.name}.json", content)]
    writer = {"shell": _shell, "systemd": _systemd}[form]
    return [text for spec in processes for text in writer(deployment, config, spec)]


def as_json(deployment: Deployment, processes: Sequence[ProcessSpec]) -> dict[str, Any]:
    """Everything as plain values, secrets masked."""
    hosts = {spec.host for spec in processes}
    return {
        "name": deployment.name,
        "processes": [_process(spec) for spec in processes],
        "directories": [
            {"host": item.host, "path": str(item.path), "private": item.private}
            for item in deployment.directories
            if item.host in hosts
        ],
        "files": [
            {
                "host": item.host,
                "path": str(item.path),
                "mode": f"{item.mode:04o}",
                "sha256": None if item.secret else hashlib.sha256(item.content).hexdigest(),
            }
            for item in deployment.files
            if item.host in hosts
        ],
        "install": [
            {
                "id": step.id,
                "what": step.what,
                "why": step.why,
                "commands": [command.masked() for command in step.commands],
            }
            for step in _steps(deployment)
        ],
        "notices": list(deployment.notices),
    }


def _steps(deployment: Deployment) -> list[InstallStep]:
    steps = [] if deployment.recipe is None else list(deployment.recipe.steps)
    return steps if deployment.model_step is None else [*steps, deployment.model_step]


def _process(spec: ProcessSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "role": spec.role,
        "index": spec.index,
        "host": spec.host,
        "address": spec.address,
        "port": spec.port,
        "side_channel_port": spec.side_channel_port,
        "argv": spec.command.masked_argv(),
        "env": spec.command.masked_environ(),
        "cwd": spec.command.cwd,
        "log": spec.log_name,
        "health": spec.health_path,
    }


def _shell(deployment: Deployment, config: Config, spec: ProcessSpec) -> list[Text]:
    content = template("shell/process.sh.j2").render(
        **_common(deployment, spec),
        argv=spec.command.masked_argv(),
        directories=[str(item.path) for item in _own_directories(deployment, spec)],
        engine_id_prefix=f"{deployment.name}-{spec.name}-",
        has_free_port=0 in (spec.port, spec.side_channel_port),
    )
    return [Text(f"{spec.name}.sh", content, 0o755)]


def _own_directories(deployment: Deployment, spec: ProcessSpec) -> list[Any]:
    """The host's folders but for those that are another process's alone."""
    others = {other.name for other in deployment.processes} - {spec.name}
    return [
        item
        for item in deployment.directories
        if item.host == spec.host and item.path.name not in others
    ]


def _systemd(deployment: Deployment, config: Config, spec: ProcessSpec) -> list[Text]:
    return _unit(deployment, config, spec, spec.command.masked_argv(), _user(config))


def unit_name(deployment: str, process: str) -> str:
    """`pdctl-NAME-prefill-0`, of which the unit and its files are called."""
    return f"pdctl-{deployment}-{process}"


def installed_unit(
    deployment: Deployment, config: Config, spec: ProcessSpec, *, user: str
) -> list[Text]:
    """A unit as it is installed: what `texts` shows, with the user and the secrets.

    Those of the environment are in a file of their own; systemd reads all of them as root.
    """
    argv = spec.command.argv()
    unit, env = _unit(deployment, config, spec, argv, user)
    if argv != spec.command.masked_argv():
        unit = replace(unit, mode=0o600)
    values = {k: v.value for k, v in spec.command.env.items() if isinstance(v, Secret)}
    if not values:
        return [unit, env]
    lines = [f"{key}={systemd_env_value(value)}\n" for key, value in values.items()]
    name = unit_name(deployment.name, spec.name)
    return [unit, env, Text(f"{name}.secrets", "".join(lines), 0o600)]


def _unit(
    deployment: Deployment, config: Config, spec: ProcessSpec, argv: Sequence[str], user: str | None
) -> list[Text]:
    unit = unit_name(deployment.name, spec.name)
    folder = PurePosixPath(SETTINGS_FOLDER)
    common = _common(deployment, spec)
    cwd = spec.command.cwd
    service = template("systemd/process.service.j2").render(
        **common,
        argv=[_without_engine_id(word) for word in argv],
        after=_after(deployment, spec),
        env_file=str(folder / f"{unit}.env"),
        secrets_file=str(folder / f"{unit}.secrets"),
        user=user,
        runtime_directory=cwd.removeprefix("/run/") if cwd and cwd.startswith("/run/") else None,
        stop_timeout=_seconds(config),
    )
    env = template("systemd/process.env.j2").render(**common)
    return [Text(f"{unit}.service", service), Text(f"{unit}.env", env, 0o600)]


def _after(deployment: Deployment, spec: ProcessSpec) -> list[str]:
    """Units of the same host that a router starts after."""
    if spec.role != "router":
        return []
    return [
        f"{unit_name(deployment.name, other.name)}.service"
        for other in deployment.processes
        if other.role != "router" and other.host == spec.host
    ]


def _common(deployment: Deployment, spec: ProcessSpec) -> dict[str, Any]:
    env = spec.command.env
    return {
        "name": deployment.name,
        "spec": spec,
        "cwd": spec.command.cwd,
        "env": {key: value for key, value in env.items() if not isinstance(value, Secret)},
        "secrets": [key for key, value in env.items() if isinstance(value, Secret)],
        "has_engine_id": any(NEW_AT_EVERY_START in word for word in spec.command.masked_argv()),
    }


def _without_engine_id(word: str) -> str:
    return word.replace(f'"engine_id":"{NEW_AT_EVERY_START}",', "")


def _user(config: Config) -> str | None:
    target = config.target
    return target.access.user if isinstance(target, SshTarget | Ec2Target) else None


def _seconds(config: Config) -> int:
    target = config.target
    return 60 if isinstance(target, ExternalTarget) else int(target.stop_timeout)


# --- quoting -------------------------------------------------------------------------------------

_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+")


def systemd_words(argv: Sequence[str]) -> str:
    """Arguments for `ExecStart=`: no specifier, no variable, no escape is left to expand."""
    program, *arguments = argv
    return " ".join([systemd_specifiers(_systemd_word(program)), *map(_exec_word, arguments)])


def _exec_word(word: str) -> str:
    return systemd_specifiers(_systemd_word(word)).replace("$", "$$")


def _systemd_word(word: str) -> str:
    if _PLAIN.fullmatch(word):
        return word
    return '"' + _escaped(word) + '"'


def systemd_specifiers(text: str) -> str:
    """Text of a unit file in which systemd expands `%`."""
    return text.replace("%", "%%")


def systemd_env_value(value: str) -> str:
    """A value in an `EnvironmentFile=`, where `$` and `%` mean nothing."""
    if _PLAIN.fullmatch(value):
        return value
    # Within double quotes a backslash escapes these four and nothing else.
    return '"' + re.sub(r'([\\"`$])', r"\\\1", value) + '"'


def _escaped(word: str) -> str:
    named = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return "".join(
        named.get(character, character)
        if character.isprintable() or character in named
        else "".join(f"\\x{byte:02x}" for byte in character.encode())
        for character in word
    )


def shell_word(word: str) -> str:
    """A word for POSIX `sh`; the engine id's placeholder becomes `$ENGINE_ID`."""
    parts = word.split(NEW_AT_EVERY_START)
    if len(parts) == 1:
        return shlex.quote(word)
    return '"$ENGINE_ID"'.join(shlex.quote(part) if part else "" for part in parts)


def _shell_words(argv: Sequence[str]) -> str:
    # A masked argument would run as the mask: better that nothing runs.
    words = [
        '"${SECRET:?an argument is a secret and not shown here}"'
        if word == MASK
        else shell_word(word)
        for word in argv
    ]
    return " \\\n  ".join(_lines(words))


def _lines(words: Sequence[str]) -> list[str]:
    """One option a line, with its value."""
    lines: list[str] = []
    for word in words:
        if lines and not word.startswith("--") and lines[-1].startswith("--"):
            lines[-1] += f" {word}"
        elif lines and len(lines) == 1 and not word.startswith("--"):
            lines[0] += f" {word}"
        else:
            lines.append(word)
    return lines


_FILTERS: Mapping[str, Callable[..., str]] = {
    "envfile": systemd_env_value,
    "execstart": systemd_words,
    "sh": shell_word,
    "sh_words": _shell_words,
    "specifiers": systemd_specifiers,
}


@cache
def _environment() -> Environment:
    # No autoescape: this is not HTML, and every value has a filter for the place it lands in.
    environment = Environment(
        loader=FileSystemLoader(templates_dir()),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(_FILTERS)
    return environment


def template(name: str) -> Any:
    """A template by its path in `templates/`."""
    return _environment().get_template(name)
