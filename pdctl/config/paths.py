"""Relative paths in the file mean: relative to the file, wherever pdctl is run from."""

import os.path
from pathlib import Path
from typing import Any, TypeVar

from pdctl.config.model import Config, Ec2Target, LocalTarget, Section, SshTarget

_S = TypeVar("_S", bound=Section)


def absolute(config: Config, base: Path) -> Config:
    """The configuration with `~` and relative paths of this machine made absolute.

    Paths on other hosts are left alone: relative ones are refused there.
    """
    local = _section(config, base)
    if isinstance(config.target, SshTarget | Ec2Target):
        return _with_remote_log(local, config.router.request_log)
    if not isinstance(config.target, LocalTarget):
        return local
    update: dict[str, Any] = {}
    if config.model.id.startswith(("./", "../", "~/")):
        update["id"] = str(_path(config.model.id, base))
    if config.model.chat_template is not None:
        update["chat_template"] = str(_path(config.model.chat_template, base))
    return local.model_copy(update={"model": config.model.model_copy(update=update)})


def _with_remote_log(config: Config, request_log: Path | None) -> Config:
    if request_log is None:
        return config
    router = config.router.model_copy(update={"request_log": request_log})
    return config.model_copy(update={"router": router})


def _section(section: _S, base: Path) -> _S:
    update = {}
    for name in section.model_fields_set:
        value = getattr(section, name)
        changed = _value(value, base)
        if changed is not value:
            update[name] = changed
    return section.model_copy(update=update) if update else section


def _value(value: object, base: Path) -> object:
    if isinstance(value, Path):
        return _path(value, base)
    if isinstance(value, Section):
        return _section(value, base)
    if isinstance(value, list) and any(isinstance(item, Section) for item in value):
        return [_value(item, base) for item in value]
    return value


def _path(path: str | Path, base: Path) -> Path:
    return base / os.path.expanduser(path)
