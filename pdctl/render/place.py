"""Where a deployment's things are, by target: this machine's folders, or `base_dir` on others."""

import os
import sys
from pathlib import PurePosixPath

from pdctl.base import paths
from pdctl.config.model import Config, Ec2Target, SshTarget
from pdctl.engine.install import TORCH_INDEX_ENV
from pdctl.render.model import Place


def place_of(config: Config) -> Place:
    """The usual place. Depends on the configuration and on this user's environment only."""
    torch_index = os.environ.get(TORCH_INDEX_ENV) or None
    if isinstance(config.target, SshTarget | Ec2Target):
        base = PurePosixPath(config.target.base_dir)
        models = _models(config.target, base)
        return Place(
            cache=base,
            state=base / "deployments" / config.name,
            temp=PurePosixPath("/run/pdctl") / config.name,
            default_python="python3",
            pdctl_python=str(base / "pdctl" / "bin" / "python"),
            torch_index=torch_index,
            hub=models,
            compiled=base / "compiled",
        )
    return place_here(config.name)


def _models(target: SshTarget | Ec2Target, base: PurePosixPath) -> PurePosixPath:
    if target.model_dir is not None:
        return PurePosixPath(target.model_dir)
    if target.nvme is not None:
        return PurePosixPath(target.nvme) / "models"
    return base / "models" / "hub"


def place_here(name: str) -> Place:
    """The place of a deployment on this machine, whatever its configuration says."""
    return Place(
        cache=PurePosixPath(paths.cache_root()),
        state=PurePosixPath(paths.deployment_dir(name)),
        temp=PurePosixPath(paths.temp_dir(name)),
        default_python=this_python(),
        pdctl_python=this_python(),
        torch_index=os.environ.get(TORCH_INDEX_ENV) or None,
    )


def this_python() -> str:
    """This interpreter by one name, whichever of `python`, `python3` and so on it was called by:
    a router started by another name for the same thing is not another router."""
    for name in ("python", "python3"):
        path = os.path.join(sys.prefix, "bin", name)
        if os.path.exists(path) and os.path.samefile(path, sys.executable):
            return path
    return sys.executable
