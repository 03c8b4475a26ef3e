"""The models that pdctl makes by itself: where they go and how they are made."""

import hashlib
from importlib import resources
from pathlib import PurePosixPath

from pdctl.base.command import command
from pdctl.config.model import SMALL_MODEL, TINY_MODEL
from pdctl.engine.install import InstallStep, StepFile
from pdctl.engine.layout import models_dir

_SCRIPT = "tiny_model.py"
SIZES = {TINY_MODEL: "tiny", SMALL_MODEL: "small"}
"""What the script calls them, by their id."""


def built_in_dir(cache: PurePosixPath, model: str = TINY_MODEL) -> PurePosixPath:
    """The folder of a built-in model. Its name has the digest of the script that makes it, and
    the script always makes the same bytes."""
    digest = hashlib.sha256(_script()).hexdigest()[:12]
    return models_dir(cache) / f"{SIZES[model]}-random-{digest}"


def built_in_step(cache: PurePosixPath, model: str = TINY_MODEL, *, python: str) -> InstallStep:
    """How a built-in model is made, without a network and in seconds.

    Args:
        cache: the host's folder for what can be made again.
        model: its id.
        python: any Python from 3.10 on.
    """
    out = built_in_dir(cache, model)
    script = models_dir(cache) / f"{out.name}.py"
    line = command(python, "-I", str(script), "--out", str(out), "--size", SIZES[model])
    return InstallStep(
        id="tiny-model",
        what="make the built-in model",
        why=f"`model.id: {model}` needs no hub and no download",
        # In the folder itself, so that removing the folder also removes the marker.
        marker=out / "COMPLETE",
        fingerprint=hashlib.sha256(_script()).hexdigest(),
        commands=(line,),
        files=(StepFile(script, _script()),),
        timeout_s=120.0,
    )


def _script() -> bytes:
    return (resources.files("pdctl.engine.scripts") / _SCRIPT).read_bytes()
