"""Which engine environment a configuration needs, and the interpreter it ends up with."""

from pathlib import PurePosixPath

from pdctl.config.model import Config, ExternalTarget
from pdctl.engine import choices
from pdctl.engine.install import InstallRecipe, cpu_recipe, pip_recipe


def recipe_of(
    config: Config,
    cache: PurePosixPath,
    *,
    default_python: str,
    torch_index: str | None = None,
) -> InstallRecipe | None:
    """The recipe for the engine hosts; None when the user brings the engine.

    Args:
        config: a configuration without problems.
        cache: the host's folder for what can be made again.
        default_python: builds the environment when the configuration names no interpreter.
        torch_index: an extra package index for torch's CPU builds.
    """
    if isinstance(config.target, ExternalTarget) or config.engine.install == "existing":
        return None
    vllm, nixl = choices.vllm_version(config), choices.nixl_version(config)
    if config.engine.install == "cpu":
        return cpu_recipe(
            cache,
            vllm=vllm,
            nixl=nixl,
            python=config.engine.python,
            default_python=default_python,
            torch_index=torch_index,
        )
    return pip_recipe(
        cache, vllm=vllm, nixl=nixl, python=config.engine.python, default_python=default_python
    )


def engine_python(config: Config, recipe: InstallRecipe | None) -> str:
    """The interpreter that runs the engine.

    Raises:
        ValueError: when there is neither a recipe nor `engine.python`.
    """
    if recipe is not None:
        return str(recipe.layout.python)
    if config.engine.python is None:
        raise ValueError("`existing` needs `engine.python`")
    return config.engine.python
