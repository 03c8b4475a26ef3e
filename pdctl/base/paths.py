"""Where pdctl keeps things. Functions, not constants, so that a test can redirect them."""

import hashlib
import os
from importlib import resources
from pathlib import Path

import platformdirs

STATE_DIR_ENV = "PDCTL_STATE_DIR"
CACHE_DIR_ENV = "PDCTL_CACHE_DIR"

_LONGEST_TEMP_DIR = 64  # vLLM adds a UUID, multiprocessing `/pymp-xxxxxxxx/listener-xxxxxxxx`


def state_root() -> Path:
    """State of all deployments: `$PDCTL_STATE_DIR`, else the platform's state directory."""
    override = os.environ.get(STATE_DIR_ENV)
    # By its real path: marks of processes begin with it, and must not depend on the spelling.
    # A loop of links is left as it is, for whoever opens it to say.
    return Path(os.path.realpath(override or platformdirs.user_state_dir("pdctl")))


def deployment_dir(name: str) -> Path:
    """Everything pdctl keeps of one deployment: state file, lock, logs, sockets."""
    return state_root() / name


def log_dir(name: str) -> Path:
    """Logs of a deployment's processes. They survive `down`."""
    return deployment_dir(name) / "logs"


def temp_dir(name: str) -> Path:
    """The temporary directory of a deployment's processes: private, and removed by `down`.

    Engines put Unix sockets there, whose paths end at 107 bytes; where the state directory is too
    deep for that, a folder in `/tmp` with a name made from it takes its place.
    """
    inside = deployment_dir(name) / "tmp"
    if len(os.fsencode(inside)) <= _LONGEST_TEMP_DIR:
        return inside
    digest = hashlib.sha256(os.fsencode(inside)).hexdigest()[:12]
    return Path("/tmp") / f"pdctl-{os.getuid()}-{digest}"


def cache_root() -> Path:
    """What can be made again: engine environments, models. `$PDCTL_CACHE_DIR` overrides."""
    override = os.environ.get(CACHE_DIR_ENV)
    return Path(override or platformdirs.user_cache_dir("pdctl")).absolute()


def templates_dir() -> Path:
    """The templates: inside the package when installed from a wheel, else the checkout's."""
    packaged = Path(str(resources.files("pdctl"))) / "templates"
    if packaged.is_dir():
        return packaged
    return Path(__file__).resolve().parents[2] / "templates"
