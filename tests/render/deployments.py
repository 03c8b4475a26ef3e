"""Rendered deployments for tests, in a place that is the same on every machine."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from pdctl.config.model import Config
from pdctl.render.deployment import render
from pdctl.render.model import SHOWN, Chosen, Deployment, Place, Secrets
from tests.engine.configs import LOCAL, config

PLACE = Place(
    cache=PurePosixPath("/cache"),
    state=PurePosixPath("/state/x"),
    temp=PurePosixPath("/state/x/tmp"),
    default_python="/usr/bin/python3",
    pdctl_python="/venv/bin/python",
)


def rendered(
    base: Mapping[str, Any] = LOCAL,
    *,
    chosen: Chosen = SHOWN,
    secrets: Secrets = Secrets(),  # noqa: B008
    place: Place = PLACE,
    example: bytes | None = None,
    **change: Any,
) -> tuple[Config, Deployment]:
    """The configuration and what is rendered from it."""
    made = config(base, **change)
    return made, render(made, place, chosen, secrets, example)
