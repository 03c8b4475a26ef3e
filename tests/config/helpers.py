"""Configurations as text, and what pdctl says about them."""

from pathlib import Path

from pdctl.base.problems import ConfigError
from pdctl.config.load import Check, Loaded, loads

BASE = Path("/srv/app")
MINIMAL = "name: x\nmodel: {id: a/b}\ntarget: {kind: local}\n"


def read(text: str | bytes, *checks: Check) -> Loaded:
    data = text.encode() if isinstance(text, str) else text
    return loads(data, file="pd.yaml", base=BASE, checks=checks)


def said(text: str | bytes, *checks: Check) -> list[str]:
    """The lines of the error, or none for a configuration that loads."""
    try:
        read(text, *checks)
    except ConfigError as error:
        return list(error.detail)
    return []


def told(text: str | bytes) -> str:
    """The one line that the error has."""
    lines = said(text)
    assert len(lines) == 1, lines
    return lines[0].removeprefix("pd.yaml:")
