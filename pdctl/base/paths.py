"""Where pdctl keeps things. Functions, not constants, so that a test can redirect them."""

import os
from importlib import resources
from pathlib import Path

import platformdirs

STATE_DIR_ENV = "PDCTL_STATE_DIR"
CACHE_DIR_ENV = "PDCTL_CACHE_DIR"


def state_root() -> Path:
    """State of all deployments: `$PDCTL_STATE_DIR`, else the platform's state directory."""
    override = os.environ.get(STATE_DIR_ENV)
    return Path(override) if override else Path(platformdirs.user_state_dir("pdctl"))


def deployment_dir(name: str) -> Path:
    """Everything pdctl keeps of one deployment: state file, lock, logs, sockets."""
    return state_root() / name


def cache_root() -> Path:
    """What can be made again: engine environments, models. `$PDCTL_CACHE_DIR` overrides."""
    override = os.environ.get(CACHE_DIR_ENV)
    return Path(override) if override else Path(platformdirs.user_cache_dir("pdctl"))


def templates_dir() -> Path:
    """The templates: inside the package when installed from a wheel, else the checkout's."""
    packaged = Path(str(resources.files("pdctl"))) / "templates"
    if packaged.is_dir():
        return packaged
    return Path(__file__).resolve().parents[2] / "templates"
