"""The model that pdctl makes by itself: where it goes and how it is made."""

import hashlib
from importlib import resources
from pathlib import PurePosixPath

from pdctl.base.command import command
from pdctl.engine.install import InstallStep, StepFile
from pdctl.engine.layout import models_dir

_SCRIPT = "tiny_model.py"


def tiny_model_dir(cache: PurePosixPath) -> PurePosixPath:
    """The folder of the built-in model. Its name has the digest of the script that makes it, and
    the script always makes the same bytes."""
    digest = hashlib.sha256(_script()).hexdigest()[:12]
    return models_dir(cache) / f"tiny-random-{digest}"


def tiny_model_step(cache: PurePosixPath, *, python: str) -> InstallStep:
    """How the built-in model is made, without a network and in about a second.

    Args:
        cache: the host's folder for what can be made again.
        python: any Python from 3.10 on.
    """
    out = tiny_model_dir(cache)
    script = models_dir(cache) / f"{out.name}.py"
    return InstallStep(
        id="tiny-model",
        what="make the built-in model",
        why="`model.id: pdctl/tiny-random` needs no hub and no download",
        # In the folder itself, so that removing the folder also removes the marker.
        marker=out / "COMPLETE",
        fingerprint=hashlib.sha256(_script()).hexdigest(),
        commands=(command(python, "-I", str(script), "--out", str(out)),),
        files=(StepFile(script, _script()),),
        timeout_s=120.0,
    )


def _script() -> bytes:
    return (resources.files("pdctl.engine.scripts") / _SCRIPT).read_bytes()
